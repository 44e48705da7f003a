"""The Python edition of ``RecordEncoder``: Arrow columns to records, by partition.

It gives the same results as ``src/native/encoder.c`` and is used where that was not built. Must not
know: Arrow, topics, brokers. Sources: Kafka's documentation, "Message Format"; KIP-82; MurmurHash2
as Kafka's Java client uses it.
"""

from __future__ import annotations

import struct
from typing import Any

ALL_READ, FULL, TOO_LARGE, UNKNOWN_PARTITION, NULL_HEADER_KEY = range(5)
"""What ended a call of ``add``."""
MURMUR2, MURMUR2_RANDOM = range(2)

STICKY_BYTES = 65_536
"""Bytes of records without a key in a row that go to the same partition."""
_MOST_PARTITIONS = 1_000_000
_LENGTHS = 64
"""More than the lengths, the timestamp and the offset of a record take."""

Body = tuple[int, int, int, int, Any]
"""Partition, number of records, first and greatest timestamp in ms, and the records."""


class RecordEncoder:
    """Collects the records of each partition until they fill a batch.

    Args:
        partitions: Number of partitions.
        batch_bytes: Most bytes of a body, unless one record is larger.
        record_bytes: Most bytes of a record.
        open_bytes: Bytes of all bodies at which ``add`` returns.
        method: ``MURMUR2`` or ``MURMUR2_RANDOM``.
        start: The first partition of records without a key.

    Raises:
        ValueError: A limit is invalid.
    """

    def __init__(
        self,
        partitions: int,
        batch_bytes: int,
        record_bytes: int,
        open_bytes: int,
        method: int,
        start: int,
    ) -> None:
        limits = (batch_bytes, record_bytes)
        if not all(0 < limit <= 0x3FFFFFFF for limit in limits) or open_bytes < 1 or start < 0:
            raise ValueError("a limit or the partitioner is invalid")
        if method not in (MURMUR2, MURMUR2_RANDOM):
            raise ValueError("a limit or the partitioner is invalid")
        self._open: list[_Open] = []
        self.grow(partitions)
        self._batch_bytes, self._record_bytes = limits
        self._most_open_bytes = open_bytes
        self._open_bytes = 0
        self._method = method
        self._sticky = start % partitions
        self._sticky_left = STICKY_BYTES
        self._closed: list[Body] = []

    def add(
        self, columns: tuple[Any, ...], row: int, timestamp: int
    ) -> tuple[int, int, list[Body]]:
        """Add rows until a body is closed, or one of them can't be added.

        Args:
            columns: Value, key, partition and headers, each as ``columns.py`` makes it.
            row: The first row.
            timestamp: The time of the records in ms since 1970.

        Returns:
            The row to continue with, what ended the call, and the closed bodies.

        Raises:
            ValueError: The columns are not valid Arrow columns.
        """
        value, key, partition, headers = _rows(columns)
        closed: list[Body] = []
        if not 0 <= row <= value.rows:
            raise _invalid("the first row")
        status = ALL_READ
        while status == ALL_READ and row < value.rows:
            pairs = None if headers is None else headers.pairs(row)
            if pairs is not None and any(name is None for name, _ in pairs):
                return row, NULL_HEADER_KEY, closed
            wanted = None if partition is None else partition.number(row)
            record = (None if key is None else key.bytes(row), value.bytes(row), pairs or [])
            status = self._add(record, wanted, timestamp, closed)
            if status > FULL:
                break
            row += 1
        return row, status, closed

    def append(self, key: bytes | None, value: bytes | None, timestamp: int) -> int:
        """Add one record without headers. Bodies that are full wait for ``closed`` and ``take``.

        Args:
            key: Its key.
            value: Its value.
            timestamp: Its time in ms since 1970.

        Returns:
            ``ALL_READ``, or ``TOO_LARGE``: it was not added.
        """
        status = self._add((key, value, []), None, timestamp, self._closed)
        return status if status > FULL else ALL_READ

    def closed(self) -> list[Body]:
        """Return the bodies that ``append`` has closed."""
        closed, self._closed = self._closed, []
        return closed

    def take(self) -> list[Body]:
        """Return all bodies, and begin new ones."""
        closed = self.closed()
        for partition, each in enumerate(self._open):
            if each.count:
                self._close(partition, closed)
        return closed

    def grow(self, partitions: int) -> None:
        """Raise the number of partitions.

        Raises:
            ValueError: It is less than before, or more than a million.
        """
        if not max(1, len(self._open)) <= partitions <= _MOST_PARTITIONS:
            raise ValueError("an invalid number of partitions")
        self._open += [_Open() for _ in range(partitions - len(self._open))]

    def size(self) -> int:
        """Return the bytes of the bodies that are not closed."""
        return self._open_bytes

    def partitions(self) -> int:
        """Return the number of partitions."""
        return len(self._open)

    def _add(
        self,
        record: tuple[bytes | None, bytes | None, list[tuple[Any, bytes | None]]],
        wanted: int | None,
        timestamp: int,
        closed: list[Body],
    ) -> int:
        key, value, headers = record
        after = bytearray()
        for part in (key, value):
            _put_sized(after, part)
        _put_varint(after, len(headers))
        for name, content in headers:
            _put_sized(after, name)
            _put_sized(after, content)
        most = len(after) + _LENGTHS
        if most > self._record_bytes:
            return TOO_LARGE
        partition = self._partition(wanted, key)
        if partition < 0:
            return UNKNOWN_PARTITION
        to = self._open[partition]
        is_full = to.count > 0 and len(to.body) + most > self._batch_bytes
        if is_full:
            self._close(partition, closed)
        if not to.count:
            to.base_timestamp = to.max_timestamp = timestamp
        before = bytearray(1)  # attributes
        _put_varint(before, timestamp - to.base_timestamp)
        _put_varint(before, to.count)
        begin = len(to.body)
        _put_varint(to.body, len(before) + len(after))
        to.body += before
        to.body += after
        written = len(to.body) - begin
        to.count += 1
        to.max_timestamp = max(to.max_timestamp, timestamp)
        self._open_bytes += written
        if partition == self._sticky:
            self._sticky_left -= written
        return FULL if is_full or self._open_bytes >= self._most_open_bytes else ALL_READ

    def _partition(self, wanted: int | None, key: bytes | None) -> int:
        """Return the partition of a record; -1 if it asks for one that does not exist."""
        if wanted is not None and wanted != -1:
            return wanted if 0 <= wanted < len(self._open) else -1
        if key is not None or self._method == MURMUR2:
            return (murmur2(key or b"") & 0x7FFFFFFF) % len(self._open)
        if self._sticky_left <= 0:
            self._sticky = (self._sticky + 1) % len(self._open)
            self._sticky_left = STICKY_BYTES
        return self._sticky

    def _close(self, partition: int, closed: list[Body]) -> None:
        done = self._open[partition]
        self._open_bytes -= len(done.body)
        closed.append(
            (partition, done.count, done.base_timestamp, done.max_timestamp, bytes(done.body))
        )
        done.count, done.body = 0, bytearray()


class _Open:
    """The records of a partition that have no batch yet."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.count = 0
        self.base_timestamp = self.max_timestamp = 0


class _Column:
    """A column: its first row in the buffers, rows, validity bits, 4-byte values, data."""

    def __init__(self, given: Any, extra: int) -> None:
        if not isinstance(given, tuple) or len(given) != 5:
            raise _invalid("a column is not a tuple")
        self._first, self.rows, bits, ends, data = given
        if self._first < 0 or self.rows < 0:
            raise _invalid("a number of rows")
        self._bits = None if bits is None else memoryview(bits).cast("B")
        self._data = memoryview(b"" if data is None else data).cast("B")
        last = self._first + self.rows
        if self._bits is not None and len(self._bits) < (last + 7) // 8:
            raise _invalid("too few validity bits")
        self.is_null = ends is None
        raw = memoryview(b"" if ends is None else ends).cast("B")
        if self.rows and len(raw) < 4 * (last + extra):
            raise _invalid("too few values")
        self._numbers: memoryview = raw[: len(raw) // 4 * 4].cast("i")

    def is_valid(self, row: int) -> bool:
        if self._bits is None:
            return True
        row += self._first
        return bool(self._bits[row >> 3] >> (row & 7) & 1)

    def number(self, row: int) -> int | None:
        if self.is_null or not self.is_valid(row):
            return None
        return int(self._numbers[self._first + row])

    def ends(self, row: int) -> tuple[int, int]:
        at = self._first + row
        return self._numbers[at], self._numbers[at + 1]

    def bytes(self, row: int) -> bytes | None:
        if self.is_null or not self.is_valid(row):
            return None
        begin, end = self.ends(row)
        if begin < 0 or end < begin:
            raise _invalid("offsets that do not grow")
        if end > len(self._data):
            raise _invalid("an offset outside of the data")
        return bytes(self._data[begin:end])


class _Headers:
    """A list of headers for each row."""

    def __init__(self, given: Any) -> None:
        if not isinstance(given, tuple) or len(given) != 3:
            raise _invalid("headers are not a tuple")
        self.lists, self._keys, self._values = (_Column(each, 1) for each in given)
        if self._keys.rows != self._values.rows:
            raise _invalid("headers of unequal length")

    def pairs(self, row: int) -> list[tuple[bytes | None, bytes | None]]:
        if self.lists.is_null or not self.lists.is_valid(row):
            return []
        first, last = self.lists.ends(row)
        if not 0 <= first <= last <= self._keys.rows:
            raise _invalid("a list of headers outside of the headers")
        return [(self._keys.bytes(i), self._values.bytes(i)) for i in range(first, last)]


def _rows(
    columns: Any,
) -> tuple[_Column, _Column | None, _Column | None, _Headers | None]:
    if not isinstance(columns, tuple) or len(columns) != 4:
        raise _invalid("they are not a tuple")
    value = _Column(columns[0], 1)
    key = None if columns[1] is None else _Column(columns[1], 1)
    partition = None if columns[2] is None else _Column(columns[2], 0)
    headers = None if columns[3] is None else _Headers(columns[3])
    others = (key, partition, None if headers is None else headers.lists)
    if any(each is not None and each.rows != value.rows for each in others):
        raise _invalid("they have unequal lengths")
    return value, key, partition, headers


def _invalid(what: str) -> ValueError:
    return ValueError(f"the columns are invalid: {what}")


def murmur2(data: bytes) -> int:
    """Return the MurmurHash2 of a key, as Kafka's Java client computes it, without a sign."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for (k,) in struct.iter_unpack("<I", data[:whole]):
        k = k * m & mask
        k ^= k >> 24
        h = (h * m & mask) ^ (k * m & mask)
    if rest := data[whole:]:
        h = ((h ^ int.from_bytes(rest, "little")) * m) & mask
    h ^= h >> 13
    h = h * m & mask
    return h ^ h >> 15


def _put_varint(to: bytearray, number: int) -> None:
    left = (number << 1 ^ number >> 63) & 0xFFFFFFFFFFFFFFFF
    while left >= 0x80:
        to.append(left & 0x7F | 0x80)
        left >>= 7
    to.append(left)


def _put_sized(to: bytearray, data: bytes | None) -> None:
    if data is None:
        _put_varint(to, -1)
        return
    _put_varint(to, len(data))
    to += data
