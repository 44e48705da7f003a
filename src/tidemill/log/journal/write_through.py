"""Write an entry and sync it, with the methods of the file, for every file system.

The native edition is a thread (``src/native/journal.c``, ``engine/threads/entries.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.log.disk.files import Buffer, RawFile
from tidemill.log.format.crc import crc32c, extend_crc32c
from tidemill.log.journal.entry import CRC_START

_BUFFERS = 512
"""Most buffers of one system call; Linux allows 1024."""


class EntrySyncError(OSError):
    """The entry was written, but the sync failed."""


def write_through(raw: RawFile, header: bytearray, buffers: list[Buffer], position: int) -> None:
    """Set the CRC of an entry, write it at ``position`` and sync the file; blocks.

    Args:
        header: the header of the entry. Its bytes 4 to 7 get the CRC of all that follows.
        buffers: what follows the header, and the zeros behind the entry.

    Raises:
        EntrySyncError: the sync failed.
        OSError: it can't be written.
    """
    *content, zeros = buffers
    crc = crc32c(memoryview(header)[CRC_START:])
    for buffer in content:
        crc = extend_crc32c(crc, buffer)
    header[4:8] = crc.to_bytes(4, "big")
    _write_all(raw, [header, *content, zeros], position)
    try:
        raw.datasync()
    except OSError as error:
        raise EntrySyncError(error.errno, error.strerror) from error


def _write_all(raw: RawFile, buffers: Sequence[Buffer], position: int) -> None:
    for start in range(0, len(buffers), _BUFFERS):
        part = buffers[start : start + _BUFFERS]
        size = sum(map(len, part))
        written = raw.pwrite(part, position)
        if written < size:  # rare: the disk is full, or a signal
            rest = memoryview(b"".join(part))
            while written < size:
                more = raw.pwrite((rest[written:],), position + written)
                if more == 0:
                    raise OSError(5, "nothing was written")
                written += more
        position += size
