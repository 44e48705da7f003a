"""The sparse indexes of a segment, in Kafka's format, in memory and on disk.

``.index`` holds 8-byte entries (relative offset i32, position i32), ``.timeindex`` 12-byte entries
(timestamp i64, relative offset i32), both big-endian and ascending. An offset entry names the last
offset of a batch and where that batch starts; a time entry says that no record before its offset's
batch has that timestamp or a later one. Source: Apache Kafka's ``OffsetIndex`` and ``TimeIndex``.

The active segment's entries are kept in memory in the very same bytes and written lazily; closed
segments' files are mapped on demand. A sealed index ends with an entry of the segment's last
batch, so that a shortened segment can be told from a whole one.

Knows no batches and no segments; offsets here are relative to the segment's base offset.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from bisect import bisect_left
from collections import OrderedDict

from tidemill.log.files import FileSystem

Entries = bytes | bytearray | mmap.mmap

OFFSET_ENTRY = 8
TIME_ENTRY = 12
MAX_RELATIVE_OFFSET = 0x7FFFFFFF

_OFFSET = struct.Struct(">ii")
_TIME = struct.Struct(">qi")
_RECENT = 1024


def find_position(entries: Entries, relative: int) -> int:
    """Where to start scanning for an offset: position of the last entry at or below it, or 0."""
    unpack = _OFFSET.unpack_from
    low, high = 0, len(entries) // OFFSET_ENTRY  # all below low are <= relative, from high on not
    while low < high:
        middle = (low + high) >> 1
        if unpack(entries, middle * OFFSET_ENTRY)[0] <= relative:
            low = middle + 1
        else:
            high = middle
    return int(unpack(entries, (low - 1) * OFFSET_ENTRY)[1]) if low else 0


def find_time(entries: Entries, timestamp: int) -> int:
    """Relative offset of the last entry whose timestamp is at most ``timestamp``, or -1."""
    unpack = _TIME.unpack_from
    low, high = 0, len(entries) // TIME_ENTRY
    while low < high:
        middle = (low + high) >> 1
        if unpack(entries, middle * TIME_ENTRY)[0] <= timestamp:
            low = middle + 1
        else:
            high = middle
    return int(unpack(entries, (low - 1) * TIME_ENTRY)[1]) if low else -1


def last_offset_entry(entries: Entries) -> tuple[int, int] | None:
    """(relative offset, position) of the last entry."""
    count = len(entries) // OFFSET_ENTRY
    return _OFFSET.unpack_from(entries, (count - 1) * OFFSET_ENTRY) if count else None


def last_time_entry(entries: Entries) -> tuple[int, int] | None:
    """(timestamp, relative offset) of the last entry."""
    count = len(entries) // TIME_ENTRY
    return _TIME.unpack_from(entries, (count - 1) * TIME_ENTRY) if count else None


def offset_entries_until(entries: bytes, relative: int) -> bytes:
    """The leading entries at or below ``relative``."""
    low, high = 0, len(entries) // OFFSET_ENTRY
    while low < high:
        middle = (low + high) >> 1
        if _OFFSET.unpack_from(entries, middle * OFFSET_ENTRY)[0] <= relative:
            low = middle + 1
        else:
            high = middle
    return entries[: low * OFFSET_ENTRY]


def find_time_end(entries: bytes, relative: int) -> int:
    """Bytes of the leading time entries whose offsets are at or below ``relative``."""
    end = 0
    latest, last = -(1 << 63), -1
    for timestamp, offset in _TIME.iter_unpack(entries):
        if offset > relative or timestamp <= latest or offset < last:
            break
        latest, last = timestamp, offset
        end += TIME_ENTRY
    return end


def plausible(offsets: Entries, times: Entries, size: int) -> bool:
    """Whether the ends of two index files fit a segment of ``size`` bytes."""
    if len(offsets) % OFFSET_ENTRY or len(times) % TIME_ENTRY or (size and not times):
        return False
    last = last_offset_entry(offsets)
    if last is not None and not (last[0] >= 0 and 0 <= last[1] < size):
        return False
    latest = last_time_entry(times)
    return latest is None or latest[1] >= 0


def ascending(entries: Entries, size: int) -> bool:
    """Whether all offset entries ascend within ``size`` bytes: what a torn write breaks."""
    relative, position = -1, -1
    for each in _OFFSET.iter_unpack(bytes(entries)):
        if each[0] <= relative or each[1] <= position:
            return False
        relative, position = each
    return position < size


class IndexTable:
    """The indexes of the active segment.

    Attributes:
        offsets, times: the entries, as they stand in the files.
        last_relative, last_position: the last batch that was added; -1 where none was.
        max_timestamp, max_relative: latest timestamp so far and its batch's last offset.
    """

    __slots__ = (
        "_recent_positions",
        "_recent_relatives",
        "_since_entry",
        "last_position",
        "last_relative",
        "max_relative",
        "max_timestamp",
        "offsets",
        "times",
        "written_offsets",
        "written_times",
    )

    def __init__(self, offsets: bytearray | None = None, times: bytearray | None = None) -> None:
        self.offsets = bytearray() if offsets is None else offsets
        self.times = bytearray() if times is None else times
        self.written_offsets = len(self.offsets)
        self.written_times = len(self.times)
        last = last_offset_entry(self.offsets)
        self.last_relative, self.last_position = (-1, -1) if last is None else last
        latest = last_time_entry(self.times)
        self.max_timestamp, self.max_relative = (-1, 0) if latest is None else latest
        self._since_entry = 0
        # Every batch of the recent past, so that readers at the tail find their place at once.
        self._recent_relatives = array("l")
        self._recent_positions = array("l")

    def add(
        self, relative: int, position: int, size: int, max_timestamp: int, interval: int
    ) -> None:
        """A batch of ``size`` bytes with last offset ``relative`` was put at ``position``."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_relative = relative
        if self._since_entry > interval:
            self.offsets += _OFFSET.pack(relative, position)
            self._add_time()
            self._since_entry = 0
        self._since_entry += size
        self.last_relative = relative
        self.last_position = position
        recent = self._recent_relatives
        recent.append(relative)
        self._recent_positions.append(position)
        if len(recent) > _RECENT:
            del recent[: _RECENT // 2]
            del self._recent_positions[: _RECENT // 2]

    def _add_time(self) -> None:
        latest = last_time_entry(self.times)
        if latest is None or self.max_timestamp > latest[0]:
            self.times += _TIME.pack(self.max_timestamp, self.max_relative)

    def seal(self) -> None:
        """End both indexes with what is known of the last batch and the latest timestamp."""
        if self.last_relative >= 0:
            last = last_offset_entry(self.offsets)
            if last is None or last[0] < self.last_relative:
                self.offsets += _OFFSET.pack(self.last_relative, self.last_position)
                self._since_entry = 0
            self._add_time()

    def find_recent(self, relative: int, end: int) -> tuple[int, int] | None:
        """Position and size of the batch that holds an offset, where it is one of the last ones.

        Args:
            relative: the offset.
            end: size of the segment.
        """
        recent = self._recent_relatives
        at = bisect_left(recent, relative)
        if at == 0 or at == len(recent):
            return None
        positions = self._recent_positions
        position = positions[at]
        return position, (positions[at + 1] if at + 1 < len(positions) else end) - position

    def is_full(self, max_bytes: int) -> bool:
        """Whether a file of ``max_bytes`` has no room for another entry (and the seal)."""
        return (
            len(self.offsets) + 2 * OFFSET_ENTRY > max_bytes
            or len(self.times) + 2 * TIME_ENTRY > max_bytes
        )


class MapCache:
    """Mapped index files, at most ``limit`` of them; used from one thread."""

    def __init__(self, fs: FileSystem, limit: int = 256) -> None:
        self._fs = fs
        self._limit = limit
        self._maps: OrderedDict[str, mmap.mmap | bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._maps)

    def get(self, path: str) -> mmap.mmap | bytes:
        """The content of an index file that no longer changes.

        Raises:
            OSError: it can't be read.
        """
        found = self._maps.get(path)
        if found is None:
            found = self._maps[path] = self._fs.map_bytes(path)
            if len(self._maps) > self._limit:
                self._maps.popitem(last=False)
        else:
            self._maps.move_to_end(path)
        return found

    def drop(self, path: str) -> None:
        """Forget a file that was removed, renamed or written anew."""
        self._maps.pop(path, None)
