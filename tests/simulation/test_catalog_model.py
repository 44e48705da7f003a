"""The catalog against a dict of topics, with commands in flight, failed writes and restarts."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.state.driver import compacted
from tests.support.effort import examples
from tidemill.errors import TidemillError
from tidemill.state.catalog.catalog import Catalog
from tidemill.state.catalog.types import AlterOp, ConfigChange, NewTopic
from tidemill.state.outcome import Outcome, StateRecord

MAX_PARTITIONS = 12
names = st.sampled_from(["a.b", "a_b", "c", "d"])
Topics = dict[str, tuple[int, dict[str, str]]]


class CatalogSimulation(RuleBasedStateMachine):
    """``upcoming`` is the model when all that was accepted is written; ``seen`` when it is now."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(2)
        self.catalog = self._new()
        self.log: list[StateRecord] = []
        self.in_flight: deque[tuple[Outcome[Any], Topics]] = deque()
        self.seen: Topics = {}
        self.upcoming: Topics = {}
        self.ids: set[UUID] = set()

    def _new(self) -> Catalog:
        return Catalog(
            max_partitions=MAX_PARTITIONS, new_topic_id=lambda: UUID(int=next(self.numbers))
        )

    def _accepted(self, outcome: Outcome[Any], after: Topics) -> None:
        self.upcoming = after
        self.in_flight.append((outcome, after))

    # --- commands --------------------------------------------------------------------------------

    @rule(name=names, partitions=st.integers(0, 6), retention=st.sampled_from([None, "5", "x"]))
    def create(self, name: str, partitions: int, retention: str | None) -> None:
        configs = {} if retention is None else {"retention.ms": retention}
        outcome = self.catalog.create([NewTopic(name, partitions, 1, configs=configs)])
        folded = {each.replace(".", "_") for each in self.upcoming}
        total = sum(count for count, _ in self.upcoming.values())
        possible = (
            name.replace(".", "_") not in folded
            and partitions > 0
            and total + partitions <= MAX_PARTITIONS
            and retention != "x"
        )
        assert isinstance(outcome.result[0], TidemillError) != possible
        if not isinstance(outcome.result[0], TidemillError):
            assert outcome.result[0].topic_id not in self.ids
            self.ids.add(outcome.result[0].topic_id)
            self._accepted(outcome, self.upcoming | {name: (partitions, configs)})

    @rule(name=names)
    def delete(self, name: str) -> None:
        outcome = self.catalog.delete([name])
        assert isinstance(outcome.result[0], TidemillError) == (name not in self.upcoming)
        if name in self.upcoming:
            self._accepted(outcome, {k: v for k, v in self.upcoming.items() if k != name})

    @rule(name=names, total=st.integers(0, 8))
    def extend(self, name: str, total: int) -> None:
        count, configs = self.upcoming.get(name, (99, {}))
        everything = sum(each for each, _ in self.upcoming.values()) - count + total
        try:
            outcome = self.catalog.add_partitions(name, total)
        except TidemillError:
            assert total <= count or everything > MAX_PARTITIONS
        else:
            assert total > count
            self._accepted(outcome, self.upcoming | {name: (total, configs)})

    @rule(
        name=names,
        config=st.sampled_from(["retention.ms", "segment.ms"]),
        value=st.sampled_from([None, "1", "2"]),
    )
    def alter(self, name: str, config: str, value: str | None) -> None:
        op = AlterOp.DELETE if value is None else AlterOp.SET
        try:
            outcome = self.catalog.alter_topic(name, [ConfigChange(config, op, value)])
        except TidemillError:
            assert name not in self.upcoming
            return
        count, configs = self.upcoming[name]
        configs = {k: v for k, v in configs.items() if k != config}
        if value is not None:
            configs[config] = value
        self._accepted(outcome, self.upcoming | {name: (count, configs)})

    # --- the disk --------------------------------------------------------------------------------

    @rule()
    def a_write_lands(self) -> None:
        if not self.in_flight:
            return
        outcome, self.seen = self.in_flight.popleft()
        for record in outcome.records:
            self.log.append(record)
            assert self.catalog.replay(record.key, record.value)

    @rule()
    def all_writes_fail(self) -> None:
        while self.in_flight:
            self.catalog.write_failed(self.in_flight.popleft()[0])
        self.upcoming = self.seen

    @rule()
    def restart(self) -> None:
        self.in_flight.clear()
        self.upcoming = self.seen
        self.catalog = self._new()
        for record in compacted(self.log):
            self.catalog.replay(record.key, record.value)

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def what_is_seen_is_what_was_written(self) -> None:
        topics = self.catalog.topics()
        assert {t.name: (t.partitions, self.catalog.config_of(t.name)) for t in topics} == self.seen
        assert self.catalog.partitions == sum(count for count, _ in self.seen.values())
        assert all(self.catalog.topic_by_id(t.topic_id) == t for t in topics)


TestCatalog = CatalogSimulation.TestCase
TestCatalog.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
