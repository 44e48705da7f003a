"""The journal: what of its log counts after a restart."""

from __future__ import annotations

import random
from typing import cast
from uuid import UUID

import pytest

from tests.engine.support import HeldDisk
from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import open_store
from tidemill.clock import ManualClock
from tidemill.engine.flusher import Flusher
from tidemill.engine.state_log import BATCH_BYTES, StateLog, StateLogRecord
from tidemill.log.compaction.run import compact
from tidemill.log.config.parse import parse_config
from tidemill.log.errors import BatchTooLargeError
from tidemill.log.format.markers import Marker
from tidemill.log.format.validate import BUILT_BYTES
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.state.outcome import StateRecord
from tidemill.state.types import NO_PRODUCER, ProducerIdentity

Pair = tuple[str, str | None]
P, Q = ProducerIdentity(7, 0), ProducerIdentity(8, 0)
STATE = TopicPartition("__state", 0)
SEGMENT_BYTES = 1 << 20
CONFIG = parse_config({"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES)})


class Place:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.disk = HeldDisk()
        self.fs = FaultyFileSystem()
        store = open_store("/data", self.clock, self.fs)
        self.use(store.create(STATE, CONFIG, UUID(int=1)))
        self.errors: list[Exception | None] = []

    def use(self, log: PartitionLog) -> None:
        self.log = log
        self.journal = StateLog(log, cast(Flusher, self.disk), self.clock)

    def restart(self) -> None:
        """After a power cut."""
        self.fs.power_cut(random.Random(1))
        self.fs.kill()
        log = open_store("/data", self.clock, self.fs).get(STATE)
        log.config = CONFIG
        self.use(log)

    def write(self, *pairs: Pair, producer: ProducerIdentity = NO_PRODUCER) -> int:
        records = [
            StateRecord(key.encode(), None if value is None else value.encode())
            for key, value in pairs
        ]
        first = self.journal.submit(records, self.errors.append, producer)
        self.disk.sync()
        return first

    def end(self, producer: ProducerIdentity, commit: bool) -> bool:
        marker = Marker(producer.producer_id, producer.epoch, commit)
        is_appended = self.journal.append_marker(marker, self.errors.append)
        self.disk.sync()
        return is_appended

    def recovered(self) -> list[tuple[str, str | None, int, int]]:
        return [_plain(record) for record in self.journal.recover()]

    def compact(self) -> None:
        self.log.roll(self.clock.now_ms())
        self.log.flush()
        for _ in compact(self.log, self.clock.now_ms()):
            pass


def _plain(record: StateLogRecord) -> tuple[str, str | None, int, int]:
    value = None if record.value is None else record.value.decode()
    return record.key.decode(), value, record.log_offset, record.producer_id


@pytest.fixture
def place() -> Place:
    return Place()


def test_the_last_record_of_each_key_counts_in_the_order_of_the_log(place: Place) -> None:
    assert place.write(("a", "1"), ("b", "1")) == 0
    assert place.write(("c", "1"), ("a", "2"), ("b", None)) == 2
    assert place.recovered() == [("c", "1", 2, -1), ("a", "2", 3, -1), ("b", None, 4, -1)]
    assert place.journal.latest() == {b"c": b"1", b"a": b"2", b"b": None}
    assert place.errors == [None, None]


def test_nothing_is_appended_for_no_records(place: Place) -> None:
    assert place.write() == -1
    assert place.errors == [None]
    assert place.log.log_end_offset == 0


def test_records_of_an_open_transaction_have_their_producer_id(place: Place) -> None:
    place.write(("a", "1"))
    place.write(("a", "2"), ("b", "2"), producer=P)
    place.write(("a", "3"), producer=P)
    place.write(("a", "4"), producer=Q)
    assert place.recovered() == [
        ("a", "1", 0, -1),
        ("b", "2", 2, 7),
        ("a", "3", 3, 7),
        ("a", "4", 4, 8),
    ]
    assert place.journal.latest() == {b"a": b"1"}


def test_a_marker_decides_about_its_producer_only(place: Place) -> None:
    place.write(("a", "1"), ("b", "1"))
    place.write(("a", "2"), producer=P)
    place.write(("b", "2"), producer=Q)
    assert place.end(P, commit=True)
    assert place.recovered() == [("b", "1", 1, -1), ("a", "2", 2, -1), ("b", "2", 3, 8)]
    assert place.end(Q, commit=False)
    assert place.recovered() == [("b", "1", 1, -1), ("a", "2", 2, -1)]


def test_a_record_written_after_that_of_the_transaction_counts(place: Place) -> None:
    place.write(("a", "1"), ("b", "1"), producer=P)
    place.write(("a", "2"), ("b", None))
    assert place.end(P, commit=True)
    assert place.recovered() == [("a", "2", 2, -1), ("b", None, 3, -1)]


def test_a_deletion_drops_the_records_of_open_transactions_for_the_key(place: Place) -> None:
    place.write(("a", "1"), ("b", "1"), producer=P)
    place.write(("a", "2"), producer=Q)
    place.write(("a", None))
    place.write(("a", "3"))
    place.write(("a", "4"), producer=Q)
    assert place.recovered() == [("b", "1", 1, 7), ("a", "3", 4, -1), ("a", "4", 5, 8)]


def test_a_marker_without_a_transaction_is_not_appended(place: Place) -> None:
    assert not place.end(P, commit=True)
    place.write(("a", "1"), producer=P)
    assert place.end(P, commit=True)
    end = place.log.log_end_offset
    assert not place.end(P, commit=True)
    assert place.log.log_end_offset == end
    assert place.errors == [None] * 4


def test_many_records_of_a_transaction_are_ended_by_one_marker(place: Place) -> None:
    pairs = [(str(number), "x" * 1000) for number in range(2 * BATCH_BYTES // 1000)]
    place.write(*pairs, producer=P)
    assert {record.producer_id for record in place.journal.recover()} == {7}
    assert place.end(P, commit=True)
    assert [(record[0], record[3]) for record in place.recovered()] == [
        (key, -1) for key, _ in pairs
    ]


@pytest.mark.parametrize("producer", [NO_PRODUCER, P])
def test_records_larger_than_a_segment_are_stored(place: Place, producer: ProducerIdentity) -> None:
    large = "x" * (3 * SEGMENT_BYTES)
    place.write(("a", "1"))
    place.write(("b", "2"), ("c", large), ("d", "y" + large), ("e", "3"), producer=producer)
    place.write(("f", "4"), ("c", "z" + large), producer=producer)
    if producer != NO_PRODUCER:
        place.end(producer, commit=True)
    place.write(("g", "5"))
    assert place.errors == [None] * len(place.errors)
    before = place.recovered()
    assert [key for key, *_ in before] == ["a", "b", "d", "e", "f", "c", "g"]
    assert [value and value[0] for _, value, *_ in before] == ["1", "2", "y", "3", "4", "z", "5"]
    assert len(place.log.segments) > 1
    for _ in range(2):
        place.restart()
        assert place.recovered() == before
        place.compact()
        assert place.recovered() == before
    for name in place.fs.files(place.log.chain.folder):
        if name.endswith("index"):
            place.fs.remove(f"{place.log.chain.folder}/{name}")
    place.restart()
    assert place.recovered() == before


def test_a_record_that_is_too_large_for_readers_is_refused(place: Place) -> None:
    place.write(("a", "1"))
    assert place.write(("b", "1"), ("c", "x" * BUILT_BYTES), ("d", "1")) == -1
    assert [type(error) for error in place.errors] == [type(None), BatchTooLargeError]
    place.write(("e", "1"))
    assert place.recovered() == [("a", "1", 0, -1), ("e", "1", 1, -1)]


@pytest.mark.parametrize("commit", [True, False])
def test_compaction_changes_nothing(place: Place, commit: bool) -> None:
    place.write(("a", "1"), ("b", "1"), ("c", "1"))
    place.write(("a", "2"), ("b", "2"), producer=P)
    place.write(("b", "3"))
    place.end(P, commit=commit)
    place.write(("c", "4"), producer=Q)
    before = place.recovered()
    for _ in range(3):
        place.compact()
        assert place.recovered() == before
        place.clock.advance(2 * 86_400_000)
    place.end(Q, commit=commit)
    before = place.recovered()
    place.compact()
    assert place.recovered() == before
