"""A partition for tests of transactions in the log."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import open_log, open_store
from tidemill.clock import ManualClock
from tidemill.log.format.markers import Marker
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.log.partition.append import AppendInfo
from tidemill.log.partition.partition import PartitionLog


class TxnLog:
    """A partition with transactional producers, on a file system that fails on demand."""

    def __init__(self, configs: Mapping[str, str] | None = None) -> None:
        self.fs = FaultyFileSystem()
        self.clock = ManualClock()
        self.configs = dict(configs or {})
        self.open()
        self.log.flush()

    def open(self) -> None:
        self.store = open_store("/data", self.clock, self.fs)
        self.log: PartitionLog = open_log(self.store, self.configs)

    def batch(
        self, producer: int, sequence: int = 0, *, epoch: int = 0, transactional: bool = True
    ) -> bytearray:
        return encode_batch(
            [NewRecord(b"k", b"v")],
            timestamp_ms=self.clock.now_ms(),
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )

    def write(self, producer: int, sequence: int = 0, *, epoch: int = 0) -> AppendInfo:
        batch = self.batch(producer, sequence, epoch=epoch)
        return self.log.append(batch, now_ms=self.clock.now_ms())

    def end(
        self, producer: int, *, commit: bool, epoch: int = 0, coordinator: int = 0
    ) -> AppendInfo | None:
        marker = Marker(producer, epoch, commit, coordinator)
        return self.log.append_marker(marker, now_ms=self.clock.now_ms())
