"""Gives access to the compiled extension, where it was built.

Each function of the extension has an edition in Python that gives the same results, so tidemill
works where there was no compiler. ``TIDEMILL_NATIVE=0`` in the environment switches the extension
off. This module must not know what the functions do.
"""

from __future__ import annotations

import os
from types import ModuleType

SWITCH = "TIDEMILL_NATIVE"
"""The environment variable that switches the extension off with 0."""
NAMES = (
    *("Block", "ChangeEncoder", "Decoder", "EntryThread", "JsonParser", "RecordEncoder"),
    "SyncThread",
    *("admit_run", "append_run", "prepare_append"),
    *("encode_pieces", "finish_pieces", "take_pieces"),
    *("check_batch", "crc32c", "decode_produce", "read_request", "read_run", "scan_batches"),
    "walk_records",
    *("encode_binlog", "encode_changelog", "encode_pgoutput"),
    *("scan_binlog", "scan_pgoutput", "send_parts", "split_packets"),
)
"""What the extension must have. One that was built from older sources is not used."""


def load() -> ModuleType | None:
    """Return the compiled extension; None if it was not built, is older, or is switched off."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        from tidemill import _native
    except ImportError:
        return None
    return _native if all(hasattr(_native, name) for name in NAMES) else None
