"""Loads the compiled extension, or says how to compile it.

Everything that calls C code imports it from here:

    from tidemill.native import extension

An extension that was compiled from other sources would fail in the middle of something, so a
checkout refuses it here. This module must not know what the functions do.

Raises:
    ExtensionError: the extension is missing, can't be loaded, or is older than its sources.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from tidemill.errors import ExtensionError

__all__ = ["extension", "source_checksum"]

CHECKOUT = Path(__file__).parents[2]


def source_checksum(checkout: Path) -> int | None:
    """Return the checksum of the extension's sources; None where there are none, as in a wheel.

    ``scripts/build_native.py`` computes the same, and the extension has it as ``SOURCES``.
    """
    if not (checkout / "scripts" / "build_native.py").is_file():
        return None
    checksum = 0
    for source in sorted((checkout / "src" / "native").glob("*.[ch]")):
        checksum = zlib.crc32(source.read_bytes(), checksum)
    return checksum


try:
    from tidemill import _native as extension
except ImportError as error:
    raise ExtensionError(f"tidemill's compiled extension can't be loaded: {error}") from error
if source_checksum(CHECKOUT) not in (None, extension.SOURCES):
    raise ExtensionError("tidemill's compiled extension was built from other sources")
