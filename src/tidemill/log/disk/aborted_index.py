"""The index of a segment's aborted transactions, in Kafka's format (``.txnindex``).

Entries of 34 bytes, big-endian: version i16 = 0, producer id i64, first offset i64, offset of the
marker i64, last stable offset i64 (as of the time when the marker is synced). A transaction has its
entry in the segment with its marker, so entries ascend by the marker's offset and by the last
stable offset. A segment without entries has no file. Source: Apache Kafka's ``AbortedTxn`` and
``TransactionIndex``.

An entry is written before its marker, and synced with it. So all entries below the high watermark
are synced, and recovery trusts the entries below the recovery point.

Knows files and entries; ``partition.producers`` decides which transactions are aborted.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import closing
from typing import NamedTuple

from tidemill import system
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import storage_error, storage_errors, write_fully
from tidemill.log.disk.index import Entries
from tidemill.log.errors import StorageError
from tidemill.log.format.crc import extend_crc32c

_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted.

    Attributes:
        last_offset: the offset of its marker.
        last_stable_offset: the last stable offset when the marker is synced. Transactions that end
            later begin at or above it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_aborted(entries: Iterable[AbortedTransaction]) -> bytes:
    """Return entries in the format of the file."""
    return b"".join(_ENTRY.pack(0, *entry) for entry in entries)


def decode_aborted(data: Entries, *, whole: bool = True) -> list[AbortedTransaction]:
    """Return the entries of a file.

    Args:
        whole: False returns the entries before the first malformed one, instead of an error.

    Raises:
        ValueError: the file is cut, of another version, or does not ascend.
    """
    entries: list[AbortedTransaction] = []
    last = -1
    end = len(data) - len(data) % ENTRY_SIZE
    for version, *fields in _ENTRY.iter_unpack(data[:end]):
        entry = AbortedTransaction(*fields)
        if version != 0 or not 0 <= entry.first_offset < entry.last_offset > last:
            if not whole:
                return entries
            raise ValueError(f"entry {len(entries)} has an unknown version, or does not ascend")
        last = entry.last_offset
        entries.append(entry)
    if whole and end != len(data):
        raise ValueError(f"{len(data)} bytes are not a multiple of the entry size {ENTRY_SIZE}")
    return entries


class AbortedIndex:
    """The index file of one segment. It is read for each lookup.

    Attributes:
        size: bytes of its entries.
        synced_size: how many of these bytes are synced.
        crc: the CRC-32C of its entries.
        synced_crc: the CRC-32C of the synced bytes.
        named: whether the folder's entry for the file is synced.
    """

    __slots__ = ("_next_crc", "crc", "named", "size", "synced_crc", "synced_size")

    def __init__(self, size: int = 0, crc: int = 0, *, named: bool = True) -> None:
        self.size = size
        self.synced_size = size
        self.crc = crc
        self.synced_crc = crc
        self.named = named
        self._next_crc = crc

    def write(self, env: Environment, path: str, entry: AbortedTransaction) -> None:
        """Write an entry behind the others. It becomes valid with ``accept``."""
        data = encode_aborted([entry])
        self._next_crc = extend_crc32c(self.crc, data)
        with storage_errors("writing", path), closing(env.fs.open(path, create=True)) as raw:
            write_fully(raw, (data,), self.size)
        env.maps.drop(path)

    def retract(self, env: Environment, path: str) -> None:
        """Remove the entry that was written last, because its marker could not be appended."""

        def truncate() -> None:
            with closing(env.fs.open(path, create=True)) as raw:
                raw.truncate(self.size)

        with storage_errors("truncating", path):
            system.with_spare_descriptors(truncate)
        env.maps.drop(path)

    def accept(self) -> None:
        """Make the entry that was written last valid, because its marker was appended."""
        self.size += ENTRY_SIZE
        self.crc = self._next_crc

    def synced(self, size: int, crc: int) -> None:
        """Record that the first ``size`` bytes, with this CRC, are synced."""
        if size >= self.synced_size:
            self.synced_size = size
            self.synced_crc = crc
        self.named = True

    def entries(self, env: Environment, path: str) -> Entries:
        """Return the bytes of the entries."""
        try:
            data = env.maps.get(path)
        except OSError as error:
            raise storage_error(error, "reading", path) from error
        if len(data) < self.size:
            raise StorageError(
                f"{path} has {len(data)} bytes, expected {self.size}",
                hint="Restart the broker; it rebuilds the file from the log.",
            )
        return data

    def find(
        self, env: Environment, path: str, first_offset: int, end_offset: int
    ) -> tuple[list[AbortedTransaction], bool]:
        """Return the transactions that overlap ``[first_offset, end_offset)``.

        Returns:
            The transactions, and whether they are complete: no transaction in a later segment can
            overlap the range.
        """
        data = self.entries(env, path)
        unpack = _ENTRY.unpack_from
        places = range(0, self.size, ENTRY_SIZE)
        start = bisect_left(places, first_offset, key=lambda at: unpack(data, at)[3])
        found = []
        for position in places[start:]:
            entry = AbortedTransaction(*unpack(data, position)[1:])
            if entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return found, True
        return found, False
