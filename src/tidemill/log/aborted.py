"""The index of a segment's aborted transactions, in Kafka's format (``.txnindex``).

Entries of 34 bytes, big-endian: version i16 = 0, producer id i64, first offset i64, offset of the
marker i64, last stable offset i64 (as it is once the marker is synced). A transaction stands in the
segment that holds its marker, so entries ascend by the marker's offset, and by the last stable
offset. No file stands for no entries. Source: Apache Kafka's ``AbortedTxn``, ``TransactionIndex``.

An entry is written before its marker, and synced with it. So all entries below the high watermark
are on disk, and recovery trusts those below its recovery point.

Knows files and entries; which transactions are aborted is ``producers``' to say.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from tidemill.errors import StorageError
from tidemill.log.environment import Environment
from tidemill.log.files import storage_error
from tidemill.log.index import Entries

_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted.

    Attributes:
        last_offset: of its marker.
        last_stable_offset: once the marker is synced: all that end later begin at or above it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_aborted(entries: Iterable[AbortedTransaction]) -> bytes:
    """Entries as they stand in the file."""
    return b"".join(_ENTRY.pack(0, *entry) for entry in entries)


def decode_aborted(data: Entries, *, whole: bool = True) -> list[AbortedTransaction]:
    """The entries of a file.

    Args:
        whole: False gives those in front of the first that is not well-formed.

    Raises:
        ValueError: it is cut, of another version, or does not ascend.
    """
    entries: list[AbortedTransaction] = []
    last = -1
    end = len(data) - len(data) % ENTRY_SIZE
    for version, *fields in _ENTRY.iter_unpack(data[:end]):
        entry = AbortedTransaction(*fields)
        if version != 0 or not 0 <= entry.first_offset < entry.last_offset > last:
            if not whole:
                return entries
            raise ValueError(f"entry {len(entries)} is not of version 0, or does not ascend")
        last = entry.last_offset
        entries.append(entry)
    if whole and end != len(data):
        raise ValueError(f"{len(data)} bytes are not entries of {ENTRY_SIZE}")
    return entries


class AbortedIndex:
    """One segment's file, which is read when it is asked.

    Attributes:
        size: bytes of its entries.
        synced_size: how many of them are on disk.
        named: the folder's entry for the file is on disk.
    """

    __slots__ = ("named", "size", "synced_size")

    def __init__(self, size: int = 0, *, named: bool = True) -> None:
        self.size = size
        self.synced_size = size
        self.named = named

    def write(self, env: Environment, path: str, entry: AbortedTransaction) -> None:
        """Write an entry behind the others; it counts from ``accept`` on.

        Raises:
            DiskFullError, StorageError: it can't be written; to be repeated.
        """
        try:
            raw = env.fs.open(path, create=True)
            try:
                if raw.pwrite((encode_aborted([entry]),), self.size) != ENTRY_SIZE:
                    raise OSError(28, "No space left on device")
            finally:
                raw.close()
        except OSError as error:
            raise storage_error(error, "writing", path) from error
        env.maps.drop(path)

    def retract(self, env: Environment, path: str) -> None:
        """Take back the entry that was written last: its marker could not be appended.

        Raises:
            StorageError: the file system refuses.
        """
        try:
            raw = env.fs.open(path, create=True)
            try:
                raw.truncate(self.size)
            finally:
                raw.close()
        except OSError as error:
            raise storage_error(error, "truncating", path) from error
        env.maps.drop(path)

    def accept(self) -> None:
        """The marker of the entry that was written last is appended."""
        self.size += ENTRY_SIZE

    def entries(self, env: Environment, path: str) -> Entries:
        """The entries' bytes.

        Raises:
            StorageError: the file is lost, cut or can't be read.
        """
        try:
            data = env.maps.get(path)
        except OSError as error:
            raise storage_error(error, "reading", path) from error
        if len(data) < self.size:
            raise StorageError(
                f"{path} has {len(data)} bytes, not {self.size}",
                hint="Restart the broker: it is rebuilt from the log.",
            )
        return data

    def find(
        self, env: Environment, path: str, first_offset: int, end_offset: int
    ) -> tuple[list[AbortedTransaction], bool]:
        """Transactions that touch ``[first_offset, end_offset)``, and whether none that end later
        can do so.

        Raises:
            StorageError: the file is lost, cut or can't be read.
        """
        data = self.entries(env, path)
        unpack = _ENTRY.unpack_from
        low, high = 0, self.size // ENTRY_SIZE
        while low < high:
            middle = (low + high) >> 1
            if unpack(data, middle * ENTRY_SIZE)[3] < first_offset:
                low = middle + 1
            else:
                high = middle
        found = []
        for position in range(low * ENTRY_SIZE, self.size, ENTRY_SIZE):
            entry = AbortedTransaction(*unpack(data, position)[1:])
            if entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return found, True
        return found, False
