"""Compute CRC-32C, the checksum of record batches, producer snapshots and the manifest.

The log gets it from here. ``kafka_client``, which must not know the log, and the extension have
their own.

CRC-32C is the CRC of iSCSI (RFC 3720, section 12.1). ``fastcrc`` uses the processor's instructions,
reads any buffer without a copy and has a permissive license.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from fastcrc import crc32

crc32c = cast("Callable[[bytes | bytearray | memoryview], int]", crc32.iscsi)
"""Return the CRC-32C of a contiguous buffer."""


def extend_crc32c(crc: int, data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32C of bytes with the CRC ``crc``, followed by ``data``."""
    return cast("Callable[[bytes | bytearray | memoryview, int], int]", crc32.iscsi)(data, crc)
