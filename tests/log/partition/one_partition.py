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

    def __init__(self, fs: FaultyFileSystem | None = None) -> None:
        self.fs = fs or FaultyFileSystem()
        self.clock = ManualClock(NOW)
        self.open()

    def open(self) -> None:
        self.store: LogStore = open_store("/data", self.clock, self.fs)

    def log(self, **configs: str) -> PartitionLog:
        return open_log(self.store, {k.replace("_", "."): v for k, v in configs.items()})

    def filled(self, batches: int, size: int = 50, **configs: str) -> PartitionLog:
        """Return the partition with so many batches of one record, all of them synced."""
        log = self.log(**configs)
        for _ in range(batches):
            log.append(batch_of(size=size), now_ms=NOW)
        log.flush()
        return log

    def reopen(self) -> None:
        self.store.close()
        self.open()

    def kill(self) -> None:
        """Kill the process, and open the store again."""
        self.fs.kill()
        self.open()


def batch_of(count: int = 1, *, size: int = 10, at: int = NOW, **fields: int) -> bytearray:
    """Return a batch of ``count`` records with ``size`` bytes each."""
    records = [NewRecord(b"k", bytes(size)) for _ in range(count)]
    return encode_batch(records, timestamp_ms=at, **fields)  # type: ignore[arg-type]


def batch_from(
    sequence: int, count: int = 1, *, producer: int = 1, epoch: int = 0, **more: int
) -> bytearray:
    """Return a batch of a producer with sequences."""
    identity = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
    return batch_of(count, **identity, **more)


def base_offsets(log: PartitionLog) -> list[int]:
    """Return the base offsets of the segments."""
    return [segment.base_offset for segment in log.segments]
