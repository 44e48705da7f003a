"""Joins of two streams in pipelines: their results equal a model, in each format of their state."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import Broker
from tests.support import effort
from tests.support.committed import read_to_end
from tidemill.spark import TopicSink, stream_stream
from tidemill.spark.pipelines.checkpoint import Checkpoint
from tidemill.spark.pipelines.declared import Pipeline
from tidemill.spark.pipelines.runner import Runner, RunOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOIN_STATE = "spark.sql.streaming.join.stateFormatVersion"
HOW = ("inner", "left", "right", "full")
EARLIER = HOW if effort.IS_NIGHTLY else ("inner", "full")
"""The joins whose state has an earlier format. A full one is a left one and a right one."""
RESTARTS = 3 if effort.IS_NIGHTLY else 1
"""With events that still meet some of before. Each start of a query costs a second."""
AFTER_S = 20
"""The right event is at most so many seconds later than the left one."""
NAMES = ("left_events", "right_events")

Event = tuple[int, int, int]
"""Number, key, and second."""
Pair = tuple[int | None, int | None]


class Place:
    """A pipeline with joins of some kinds, and all events of its streams."""

    def __init__(self, broker: Broker, folder: Path, kinds: Sequence[str]) -> None:
        self.kinds = kinds
        self._broker = broker
        self._options = RunOptions(broker.bootstrap, folder / "state", until_caught_up=True)
        self._topics = [broker.topic(2), broker.topic(2)]
        self.events: tuple[list[Event], list[Event]] = ([], [])
        self.name = f"joins-{self._topics[0]}"

    def send(self, left: list[Event], right: list[Event]) -> None:
        for topic, seen, new in zip(self._topics, self.events, (left, right), strict=True):
            seen += new
            for partition in range(2):
                values = [
                    json.dumps({"n": n, "k": k, "at": at(t).isoformat()})
                    for n, k, t in new
                    if n % 2 == partition
                ]
                self._broker.produce(topic, values, partition=partition)

    def run(self) -> None:
        for status in Runner(self._pipeline(), self._options).run():
            assert (status.state, status.error) == ("done", None)

    def pairs(self, how: str) -> Counter[Pair]:
        records: list[Any] = read_to_end(self._broker.bootstrap, f"{self.name}.{how}")
        found = (json.loads(each.value()) for each in records)
        return Counter((each.get("n"), each.get("m")) for each in found)

    def format_of(self, how: str) -> str:
        """The format of the state in the checkpoint of a query."""
        folder = Checkpoint(self._options.state, self.name, how).spark_folder / "offsets"
        last = max((f for f in folder.iterdir() if f.name.isdecimal()), key=lambda f: int(f.name))
        return str(json.loads(last.read_text().splitlines()[1])["conf"][JOIN_STATE])

    def _pipeline(self) -> Pipeline:
        p = Pipeline(self.name)
        for name, topic in zip(NAMES, self._topics, strict=True):
            schema = "n INT, k INT, at TIMESTAMP"
            p.stream(
                name,
                topic=topic,
                schema=schema,
                event_time="at",
                watermark="5 seconds",
                dead_letters=None,
                starting="earliest",
            )
        for how in self.kinds:
            p.query(sink=TopicSink(f"{self.name}.{how}"), name=how)(joined(how))
        return p


def joined(how: str) -> Any:
    def build(left_events: Any, right_events: Any) -> Any:
        right = right_events.df.selectExpr("n AS m", "k", "at AS right_at")
        within = ("0 seconds", f"{AFTER_S} seconds")
        return stream_stream(left_events.df, right, on="k", within=within, how=how).select("n", "m")

    return build


def at(second: int) -> datetime:
    return datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=second)


def model(how: str, left: list[Event], right: list[Event], end: int) -> Counter[Pair]:
    """All pairs, and the events before ``end`` without a partner."""
    found: Counter[Pair] = Counter(
        (n, m) for n, k, t in left for m, other, u in right if k == other and t <= u <= t + AFTER_S
    )
    met = {n for n, _ in found}, {m for _, m in found}
    if how in ("left", "full"):
        found.update((n, None) for n, _, t in left if n not in met[0] and t < end)
    if how in ("right", "full"):
        found.update((None, m) for m, _, t in right if m not in met[1] and t < end)
    return found


def some(numbers: range, start: int, chosen: random.Random) -> list[Event]:
    """Events within ten seconds, several of them with the same key and second."""
    return [(n, chosen.randrange(6), start + chosen.randrange(10)) for n in numbers]


@pytest.mark.parametrize("first", ["4", *effort.in_nightly_runs("3"), "2"])
def test_joins_equal_the_model_after_restarts_and_keep_the_format_of_their_first_start(
    spark: SparkSession, tidemill_broker: Broker, tmp_path: Path, first: str
) -> None:
    kinds = HOW if first == "4" else EARLIER
    place, chosen = Place(tidemill_broker, tmp_path, kinds), random.Random(7)
    if first != "4":  # as an earlier release started the query, or a user's setting
        spark.conf.set(JOIN_STATE, first)
    try:
        place.send(some(range(40), 0, chosen), some(range(40), 5, chosen))
        place.run()
    finally:
        spark.conf.unset(JOIN_STATE)
    for batch in range(1, 1 + RESTARTS):
        numbers = range(100 * batch, 100 * batch + 40)
        begin = 14 * batch
        place.send(some(numbers, begin, chosen), some(numbers, begin + 5, chosen))
        place.run()
    end = 1000
    place.send([(900, 99, end), (901, 99, end)], [(900, 98, end), (901, 98, end)])
    place.run()

    for how in kinds:
        assert place.format_of(how) == first
        assert place.pairs(how) == model(how, *place.events, end)
