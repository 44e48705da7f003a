"""Simulation of offsets in transactions on a real log, compared with a model of a few lines.

Plain commits, commits in the transactions of two producers, markers, topic deletions, compactions
that are whole, dropped or crash in the middle, rolls, syncs, kills, power cuts and clean restarts,
in any order. A fetch always returns, for each position, the last record in the log among plain
commits and those of committed transactions. Held back are the offsets that open transactions have
committed since the position was last deleted.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any, NamedTuple, cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.crashfs import CrashingFileSystem
from tests.support.effort import examples
from tests.support.faultyfs import CrashError
from tests.support.logs import open_log, open_store
from tidemill.clock import ManualClock
from tidemill.engine.flusher import Flusher
from tidemill.engine.state_log import Done, StateLog
from tidemill.log.compaction.run import compact
from tidemill.log.format.markers import Marker
from tidemill.log.partition.partition import PartitionLog
from tidemill.state.groups.format import OffsetKey, decode_key, decode_offset_value
from tidemill.state.groups.machine import Groups
from tidemill.state.offsets.machine import Offsets
from tidemill.state.outcome import Outcome
from tidemill.state.types import (
    NO_PRODUCER,
    CommitRequest,
    OffsetToCommit,
    ProducerIdentity,
    TxnOffsetCommit,
)

RETENTION_MS = 20_000
CONFIGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "500",
    "index.interval.bytes": "80",
    "delete.retention.ms": str(RETENTION_MS),
    "file.delete.delay.ms": "500",
}
producers = st.sampled_from([7, 8])
commits = st.lists(
    st.sampled_from([("g", "t", 0), ("g", "t", 1), ("g", "u", 0), ("h", "t", 0)]),
    min_size=1,
    max_size=3,
    unique=True,
)
Place = tuple[str, str, int]
"""(group id, topic, partition)"""


class Written(NamedTuple):
    """One record of the log: an offset of a position (None: its deletion), or a marker."""

    producer_id: int
    place: Place | None
    offset: int | None = None
    commit: bool = False


def seen(log: dict[int, Written]) -> dict[Place, int]:
    """The model: what a reader finds after this log."""
    last: dict[Place, tuple[int, int | None]] = {}
    for at, record in log.items():
        if record.place is None:
            continue
        ends = (log[k].commit for k in sorted(log) if k > at and _is_end(log[k], record))
        if record.producer_id == -1 or next(ends, False):
            last[record.place] = max(last.get(record.place, (-1, None)), (at, record.offset))
    return {place: offset for place, (_, offset) in last.items() if offset is not None}


def held_back(log: dict[int, Written]) -> dict[int, dict[Place, int]]:
    """The model: what open transactions will commit."""
    found: dict[int, dict[Place, int]] = {}
    for at, record in sorted(log.items()):
        if record.producer_id == -1 or record.place is None or record.offset is None:
            continue
        after = [log[k] for k in log if k > at]
        deletion = Written(-1, record.place)
        if deletion not in after and not any(_is_end(each, record) for each in after):
            found.setdefault(record.producer_id, {})[record.place] = record.offset
    return found


def _is_end(marker: Written, record: Written) -> bool:
    return marker.place is None and marker.producer_id == record.producer_id


class ManualDisk:
    """Stands for the flusher: nothing is durable before ``sync``."""

    def __init__(self) -> None:
        self._waiting: list[Done] = []

    def written(self, log: PartitionLog) -> None:
        pass

    def call_when_durable(self, log: PartitionLog, offset: int, done: Done) -> None:
        self._waiting.append(done)

    def sync(self, log: PartitionLog) -> None:
        log.flush()
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(None)


class OffsetsInTransactions(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.fs = CrashingFileSystem()
        self.clock = ManualClock()
        self.written: dict[int, Written] = {}
        self.epochs = {7: 0, 8: 0}
        self.durable = 0
        self.serial = 0
        self.open()

    def open(self) -> None:
        self.store = open_store("/data", self.clock, self.fs)
        assert not self.store.offline, self.store.offline
        self.log = open_log(self.store, CONFIGS)
        assert self.log.log_end_offset >= self.durable
        self.disk = ManualDisk()
        self.journal = StateLog(self.log, cast(Flusher, self.disk), self.clock)
        self.offsets = self.recovered()
        self.written = {at: r for at, r in self.written.items() if at < self.log.log_end_offset}
        self.disk.sync(self.log)
        self.durable = self.log.log_end_offset

    def recovered(self) -> Offsets:
        groups = Groups()
        offsets = Offsets(groups)
        for record in self.journal.recover():
            assert offsets.replay(*record)
        groups.loaded(self.clock.now_ms())
        offsets.loaded(self.clock.now_ms())
        return offsets

    # --- what is written -------------------------------------------------------------------------

    @rule(places=commits)
    def commit(self, places: list[Place]) -> None:
        for group_id in {place[0] for place in places}:
            request = self._request(group_id, places)
            self._submit(self.offsets.commit(request, self.clock.now_ms()), NO_PRODUCER)

    @rule(places=commits, producer_id=producers)
    def commit_in_transaction(self, places: list[Place], producer_id: int) -> None:
        producer = ProducerIdentity(producer_id, self.epochs[producer_id])
        for group_id in {place[0] for place in places}:
            request = TxnOffsetCommit("tx", producer, self._request(group_id, places))
            outcome = self.offsets.commit_in_transaction(request, self.clock.now_ms())
            self._submit(outcome, producer)

    def _request(self, group_id: str, places: list[Place]) -> CommitRequest:
        self.serial += 1
        chosen = [OffsetToCommit(t, p, self.serial) for g, t, p in places if g == group_id]
        return CommitRequest(group_id, -1, "", None, tuple(chosen))

    @rule(topic=st.sampled_from("tu"))
    def delete_topic(self, topic: str) -> None:
        self.sync()
        self._submit(self.offsets.topics_deleted([topic]), NO_PRODUCER)

    def _submit(self, outcome: Outcome[Any], producer: ProducerIdentity) -> None:
        first = -1
        records = outcome.records

        def done(error: Exception | None) -> None:
            assert error is None
            for at, record in enumerate(records, first):
                assert self.offsets.replay(record.key, record.value, at, producer.producer_id)

        first = self.journal.submit(records, done, producer)
        for at, record in enumerate(records, first):
            key = decode_key(record.key)
            assert isinstance(key, OffsetKey)
            place = (key.group_id, key.topic, key.partition)
            offset = decode_offset_value(record.value).offset if record.value else None
            self.written[at] = Written(producer.producer_id, place, offset)

    @rule(producer_id=producers, commit=st.booleans(), bump=st.booleans(), sync=st.booleans())
    def end(self, producer_id: int, commit: bool, bump: bool, sync: bool) -> None:
        at = self.log.log_end_offset
        is_open = any(each.producer_id == producer_id for each in self.log.open_transactions())
        self.epochs[producer_id] += bump
        appended = False

        def done(error: Exception | None) -> None:
            assert error is None
            if appended:
                self.offsets.end_transaction(producer_id, commit=commit)

        marker = Marker(producer_id, self.epochs[producer_id], commit)
        appended = self.journal.append_marker(marker, done)
        assert appended == is_open
        if appended:
            self.written[at] = Written(producer_id, None, commit=commit)
        if sync:
            self.sync()

    # --- what happens to the log -----------------------------------------------------------------

    @rule()
    def sync(self) -> None:
        self.disk.sync(self.log)
        self.durable = self.log.log_end_offset

    @rule()
    def roll(self) -> None:
        self.log.roll(self.clock.now_ms())

    @rule(milliseconds=st.sampled_from([1, 1000, RETENTION_MS]))
    def wait(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.store.purge_deleted()

    @rule(steps=st.sampled_from([0, 3, 10, 20, 40, 10_000, 10_000, 10_000]))
    def compact(self, steps: int) -> None:
        """Whole, or dropped in the middle."""
        run = compact(self.log, self.clock.now_ms())
        for _ in range(steps):
            if next(run, run) is run:
                break
        run.close()

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.open()

    @rule(power=st.booleans(), seed=st.integers(0, 1000), call=st.none() | st.integers(0, 40))
    def crash(self, power: bool, seed: int, call: int | None) -> None:
        """At any moment, or while it is compacted."""
        if call is not None:
            self.fs.arm(call)
            with suppress(CrashError):
                self.compact(10_000)
        self.fs.power_cut(random.Random(seed)) if power else self.fs.kill()
        self.fs.arm(None)
        self.open()

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def what_is_seen_is_what_the_durable_log_says(self) -> None:
        durable = {at: record for at, record in self.written.items() if at < self.durable}
        _agree(self.offsets, durable)

    @invariant()
    def recovery_gives_what_the_log_says(self) -> None:
        _agree(self.recovered(), self.written)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


def _agree(offsets: Offsets, log: dict[int, Written]) -> None:
    stored = {
        (key.group_id, key.topic, key.partition): (logged.value.offset, logged.log_offset)
        for key, logged in offsets.stored()
    }
    assert {place: offset for place, (offset, _) in stored.items()} == seen(log)
    assert all(log[at].place == place for place, (_, at) in stored.items())
    pending = {
        producer_id: {(g, *position): logged.value.offset for (g, position), logged in of.items()}
        for producer_id, of in offsets.pending().items()
    }
    assert pending == held_back(log)


TestOffsetsInTransactions = OffsetsInTransactions.TestCase
TestOffsetsInTransactions.settings = settings(
    max_examples=examples(100),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
