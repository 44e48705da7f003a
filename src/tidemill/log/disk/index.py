"""The sparse indexes of a segment in Kafka's format, in memory and on disk.

``.index`` holds 8-byte entries (relative offset i32, position i32), ``.timeindex`` 12-byte entries
(timestamp i64, relative offset i32), both big-endian and ascending. An offset entry has the last
offset of a batch and the position of that batch. A time entry says that no record before the batch
with its offset has this timestamp or a later one. Source: Apache Kafka's ``OffsetIndex`` and
``TimeIndex``.

The entries of the active segment are kept in memory in the same format and written lazily. The
files of closed segments are mapped on demand. A sealed index ends with an entry for the segment's
last batch, which shows whether the segment is complete.

Knows no batches and no segments. Offsets here are relative to the segment's base offset.
"""

from __future__ import annotations

import errno
import mmap
import struct
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing

from tidemill import system
from tidemill.log.disk.files import FileSystem, storage_errors
from tidemill.native import extension

Entries = bytes | bytearray | mmap.mmap

OFFSET_ENTRY = 8
TIME_ENTRY = 12
MAX_RELATIVE_OFFSET = 0x7FFFFFFF

IndexTable = extension.IndexTable
"""The indexes of the active segment in memory; see ``tidemill.native.extension.IndexTable``."""

_OFFSET = struct.Struct(">ii")
_TIME = struct.Struct(">qi")


def _count_until(entries: Entries, layout: struct.Struct, field: int, most: int) -> int:
    """Return the number of entries at the front whose field is not above ``most``."""
    low, high = 0, len(entries) // layout.size
    while low < high:
        middle = (low + high) >> 1
        if layout.unpack_from(entries, middle * layout.size)[field] <= most:
            low = middle + 1
        else:
            high = middle
    return low


def find_entry(entries: Entries, relative: int) -> tuple[int, int] | None:
    """Return (relative offset, position) of the last entry at or below an offset, or None."""
    count = _count_until(entries, _OFFSET, 0, relative)
    return _OFFSET.unpack_from(entries, (count - 1) * OFFSET_ENTRY) if count else None


def find_position(entries: Entries, position: int) -> int:
    """Return the highest position of an entry that is not above a position; 0 if there is none."""
    count = _count_until(entries, _OFFSET, 1, position)
    return int(_OFFSET.unpack_from(entries, (count - 1) * OFFSET_ENTRY)[1]) if count else 0


def find_time_entry(entries: Entries, timestamp: int) -> tuple[int, int] | None:
    """Return (timestamp, relative offset) of the last entry not later than a time, or None."""
    count = _count_until(entries, _TIME, 0, timestamp)
    return _TIME.unpack_from(entries, (count - 1) * TIME_ENTRY) if count else None


def last_offset_entry(entries: Entries) -> tuple[int, int] | None:
    """Return (relative offset, position) of the last entry, or None."""
    count = len(entries) // OFFSET_ENTRY
    return _OFFSET.unpack_from(entries, (count - 1) * OFFSET_ENTRY) if count else None


def last_time_entry(entries: Entries) -> tuple[int, int] | None:
    """Return (timestamp, relative offset) of the last entry, or None."""
    count = len(entries) // TIME_ENTRY
    return _TIME.unpack_from(entries, (count - 1) * TIME_ENTRY) if count else None


def offset_entries(entries: Entries) -> Iterator[tuple[int, int]]:
    """Iterate over (relative offset, position) of each entry. All of them are whole."""
    return _OFFSET.iter_unpack(entries)


def time_entries(entries: Entries) -> Iterator[tuple[int, int]]:
    """Iterate over (timestamp, relative offset) of each entry. All of them are whole."""
    return _TIME.iter_unpack(entries)


def offset_entries_until(entries: bytes, relative: int) -> bytes:
    """Return the first entries, up to and including ``relative``."""
    return entries[: _count_until(entries, _OFFSET, 0, relative) * OFFSET_ENTRY]


def find_time_end(entries: bytes, relative: int) -> int:
    """Return the size of the first valid time entries, up to and including ``relative``."""
    end = 0
    latest, last = -(1 << 63), -1
    for timestamp, offset in _TIME.iter_unpack(entries):
        if offset > relative or timestamp <= latest or offset < last:
            break
        latest, last = timestamp, offset
        end += TIME_ENTRY
    return end


def plausible(offsets: Entries, times: Entries, size: int) -> bool:
    """Return whether the ends of two index files match a segment of ``size`` bytes."""
    if len(offsets) % OFFSET_ENTRY or len(times) % TIME_ENTRY or (size and not times):
        return False
    last = last_offset_entry(offsets)
    if last is not None and not (last[0] >= 0 and 0 <= last[1] < size):
        return False
    latest = last_time_entry(times)
    return latest is None or latest[1] >= 0


def ascending(entries: Entries, size: int) -> bool:
    """Return whether all offset entries ascend within ``size`` bytes. A torn write breaks this."""
    relative, position = -1, -1
    for each in _OFFSET.iter_unpack(bytes(entries)):
        if each[0] <= relative or each[1] <= position:
            return False
        relative, position = each
    return position < size


def write_entries(fs: FileSystem, path: str, entries: bytearray, written: int) -> int:
    """Write the entries that are not in an index file yet, without a sync.

    Args:
        written: size of the entries that are in the file.

    Returns:
        The new size of the entries in the file.

    Raises:
        DiskFullError, StorageError: they can't be written. The file is unchanged.
    """
    if written and written == len(entries):
        return written
    with storage_errors("writing", path):
        if written == 0:
            fs.write_bytes(path, entries)
            return len(entries)
        with closing(fs.open(path, create=True)) as raw:
            rest = entries[written:]
            if raw.pwrite((rest,), written) != len(rest):
                raw.truncate(written)
                raise OSError(errno.ENOSPC, "No space left on device")
    return len(entries)


MOST_MAPS = 256


def most_maps(open_files: int) -> int:
    """Return how many index files are mapped with so many open files. Each has a descriptor."""
    return min(MOST_MAPS, open_files // 4)


class MapCache:
    """At most ``limit`` mapped index files. Used from one thread.

    Python keeps a descriptor open for each map.
    """

    def __init__(self, fs: FileSystem, limit: int = MOST_MAPS) -> None:
        self._fs = fs
        self._limit = limit
        self._maps: OrderedDict[str, mmap.mmap | bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._maps)

    def get(self, path: str) -> mmap.mmap | bytes:
        """Return the content of an index file that no longer changes."""
        found = self._maps.get(path)
        if found is None:
            found = self._maps[path] = self._map(path)
            if len(self._maps) > self._limit:
                self._maps.popitem(last=False)
        else:
            self._maps.move_to_end(path)
        return found

    def _map(self, path: str) -> mmap.mmap | bytes:
        """Map a file. If the system allows no more open files, drop all other maps first."""
        try:
            return self._fs.map_bytes(path)
        except OSError as error:
            if not (system.is_too_many_open(error) and self._maps):
                raise
        self._maps.clear()
        return self._fs.map_bytes(path)

    def drop(self, path: str) -> None:
        """Drop a file that was removed, renamed or rewritten."""
        self._maps.pop(path, None)
