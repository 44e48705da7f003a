"""A partition for tests of its parts."""

from __future__ import annotations

from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import open_log, open_store
from tidemill.clock import ManualClock
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.store import LogStore

NOW = 1_700_000_000_000
HOUR = 3_600_000


class OnePartition:
    """A partition on a file system that fails on demand."""

    def __init__(self) -> None:
        self.fs = FaultyFileSystem()
        self.clock = ManualClock(NOW)
        self.store: LogStore = open_store("/data", self.clock, self.fs)

    def log(self, **configs: str) -> PartitionLog:
        return open_log(self.store, {k.replace("_", "."): v for k, v in configs.items()})

    def reopen(self) -> None:
        self.store.close()
        self.store = open_store("/data", self.clock, self.fs)


def batch_of(count: int = 1, *, size: int = 10, at: int = NOW, **fields: int) -> bytearray:
    """Return a batch of ``count`` records with ``size`` bytes each."""
    records = [NewRecord(b"k", bytes(size)) for _ in range(count)]
    return encode_batch(records, timestamp_ms=at, **fields)  # type: ignore[arg-type]


def base_offsets(log: PartitionLog) -> list[int]:
    """Return the base offsets of the segments."""
    return [segment.base_offset for segment in log.segments]
