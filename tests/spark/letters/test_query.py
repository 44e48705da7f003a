"""Dead letters are written exactly once, whatever happens between the steps of a batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import Broker
from tests.support.committed import read_to_end
from tests.support.processes import poll_until
from tidemill.reading import fetch
from tidemill.reading.ranges import OffsetRange
from tidemill.spark.errors import OtherTopicError
from tidemill.spark.letters import query as letters_query
from tidemill.spark.letters.log import BatchLog
from tidemill.spark.letters.query import LetterPlan, LetterQuery
from tidemill.spark.letters.records import HEADERS
from tidemill.spark.sinks.topic.delivery import exactly_once
from tidemill.spark.source.planning.options import parse_source_options
from tidemill.spark.source.planning.parsing import RowPlan
from tidemill.spark.source.refusals import Reports, send

WAIT_S = 60


@pytest.fixture(autouse=True)
def close_clients() -> Iterator[None]:
    yield
    exactly_once.close_idle_writers()
    fetch.close_idle_clients()


class Place:
    """A topic, its dead letters, and a checkpoint."""

    def __init__(self, broker: Broker, folder: Path, partitions: int = 2) -> None:
        self.broker = broker
        self.folder = folder / "checkpoint"
        self.topic = broker.topic(partitions)
        self.letters_topic = broker.topic()

    def plan(
        self, *, until_caught_up: bool, reports: Reports | None = None, **options: str
    ) -> LetterPlan:
        given = {
            "kafka.bootstrap.servers": self.broker.bootstrap,
            "kafka.isolation.level": "read_committed",
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            **options,
        }
        return LetterPlan(
            pipeline="night",
            stream="departures",
            options=parse_source_options(given),
            rows=RowPlan("id INT", drop_malformed=True, refused=True),
            topic=self.letters_topic,
            kafka=self.broker.kafka,
            sink_id=f"night.departures.{self.topic}",
            until_caught_up=until_caught_up,
            reports=reports,
        )

    def run(self, reports: Reports | None = None, **options: str) -> list[dict[str, Any]]:
        """Run until all records are read, and return the progress."""
        plan = self.plan(until_caught_up=True, reports=reports, **options)
        started = LetterQuery(plan, self.folder)
        poll_until(lambda: not started.is_active, WAIT_S, "the end of the query")
        if (error := started.error()) is not None:
            raise error
        return started.updates()

    def produce(self, *values: Any, partition: int = 0) -> None:
        self.broker.produce(self.topic, values, partition=partition)

    def letters(self) -> list[tuple[int, int, bytes | None]]:
        """Partition, offset and value of each dead letter, sorted."""
        found = []
        for each in read_to_end(self.broker.bootstrap, self.letters_topic):
            headers: Any = dict(each.headers() or [])
            partition, offset = headers["source.partition"], headers["source.offset"]
            found.append((int(partition), int(offset), each.value()))
        return sorted(found)


@pytest.fixture
def place(tidemill_broker: Broker, tmp_path: Path) -> Place:
    return Place(tidemill_broker, tmp_path)


def test_a_letter_has_its_record_the_reason_and_the_position(place: Place) -> None:
    place.produce('{"id": 1}', {"value": "no", "key": "k", "headers": [("trace", b"1")]})
    updates = place.run()
    (letter,) = read_to_end(place.broker.bootstrap, place.letters_topic)
    assert (letter.key(), letter.value()) == (b"k", b"no")
    headers: list[Any] = list(letter.headers() or [])
    assert headers.pop(0) == ("trace", b"1")
    assert tuple(name for name, _ in headers) == HEADERS
    told = {name: value.decode() for name, value in headers}
    assert int(told.pop("source.timestamp")) > 0
    assert told == {
        "error.reason": "the value is not a JSON object",
        "source.topic": place.topic,
        "source.partition": "0",
        "source.offset": "1",
        "pipeline": "night",
        "stream": "departures",
    }
    assert sum(each["numInputRows"] for each in updates) == 1


def test_a_run_continues_where_the_one_before_ended(place: Place) -> None:
    place.produce("a", '{"id": 1}')
    place.produce("b", partition=1)
    place.run()
    assert place.letters() == [(0, 0, b"a"), (1, 0, b"b")]
    assert sum(each["numInputRows"] for each in place.run()) == 0
    place.produce("c", partition=1)
    place.run()
    assert place.letters() == [(0, 0, b"a"), (1, 0, b"b"), (1, 1, b"c")]


def test_a_batch_that_was_written_but_not_committed_is_not_written_again(place: Place) -> None:
    place.produce('{"id": 1}', "a")
    place.produce("b", partition=1)
    place.run()
    last = BatchLog(place.folder).last()
    assert last is not None
    (place.folder / "commits" / str(last.number)).unlink()  # killed just before
    exactly_once.close_idle_writers()
    place.produce("c")
    place.run()
    assert place.letters() == [(0, 1, b"a"), (0, 2, b"c"), (1, 0, b"b")]


def test_a_batch_that_was_planned_but_not_written_is_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.produce('{"id": 1}', "a")
    place.produce('{"id": 2}', partition=1)

    def fail(*_: Any, **__: Any) -> int:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(exactly_once, "write_share", fail)
        with pytest.raises(OSError, match="killed"):
            place.run()
    assert place.letters() == []
    place.produce("b", partition=1)
    place.run()
    assert place.letters() == [(0, 1, b"a"), (1, 1, b"b")]


def test_clean_records_before_a_refused_one_do_not_change_the_parts_of_its_batch(
    place: Place,
) -> None:
    """The batch is planned from the position just before it, which was not saved until then."""
    place.produce('{"id": 1}', partition=0)
    plan = place.plan(until_caught_up=False)
    running = LetterQuery(plan, place.folder)
    try:
        poll_until(lambda: _read(running, place.topic) == 1, WAIT_S, "the first record")
        place.produce("a", partition=1)
        poll_until(lambda: _read(running, place.topic) == 2, WAIT_S, "the second record")
    finally:
        running.stop()
    last = BatchLog(place.folder).last()
    assert last is not None
    assert last.start is not None
    assert json.loads(last.start)[place.topic] == {"0": 1, "1": 0}
    (place.folder / "commits" / str(last.number)).unlink()
    exactly_once.close_idle_writers()
    place.run()
    assert place.letters() == [(1, 0, b"a")]


def _read(running: LetterQuery, topic: str) -> int:
    if (error := running.error()) is not None:
        raise error
    updates = running.updates()
    if not updates:
        return -1
    return int(sum(updates[-1]["sources"][0]["endOffset"].get(topic, {}).values()))


def test_latest_is_where_the_query_was_first_started(place: Place) -> None:
    place.produce("before")
    place.run(startingOffsets="latest")
    place.produce("after")
    place.run(startingOffsets="latest")
    assert place.letters() == [(0, 1, b"after")]


def test_a_backlog_is_read_in_several_batches(place: Place) -> None:
    place.produce(*("x" for _ in range(50)))
    updates = place.run(maxOffsetsPerTrigger="20")
    assert [each["numInputRows"] for each in updates if each["numInputRows"]] == [20, 20, 10]
    assert [offset for _, offset, _ in place.letters()] == list(range(50))


def test_the_position_is_saved_while_nothing_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters_query, "SAVED_EVERY_S", 0.0)
    running = LetterQuery(place.plan(until_caught_up=False), place.folder)
    try:
        place.produce('{"id": 1}')

        def is_saved() -> bool:
            last = BatchLog(place.folder).last()
            return last is not None and '"0": 1' in last.end

        poll_until(is_saved, WAIT_S, "the position in the checkpoint")
    finally:
        running.stop()
    assert not running.is_active
    assert running.error() is None


def test_a_range_that_tasks_call_clean_is_not_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are refused, so letters of reported ranges would show that they were read."""
    monkeypatch.setattr(letters_query, "PATIENCE_S", 0.0)
    place.produce("a", "b", "c", "d")
    place.produce("e", partition=1)
    reports = Reports()
    send(reports.path, OffsetRange(place.topic, 0, 1, 3), 0)
    place.run(reports)
    assert place.letters() == [(0, 0, b"a"), (0, 3, b"d"), (1, 0, b"e")]
    assert sum(each["numInputRows"] for each in place.run(reports)) == 0


def test_a_refused_record_is_a_letter_although_other_ranges_have_no_report(place: Place) -> None:
    place.produce('{"id": 1}', "a")
    place.produce("b", partition=1)
    reports = Reports()
    send(reports.path, OffsetRange(place.topic, 0, 0, 2), 1)
    place.run(reports)
    assert place.letters() == [(0, 1, b"a"), (1, 0, b"b")]


def test_a_query_that_waits_for_reports_can_be_stopped(place: Place) -> None:
    place.produce("a")
    plan = place.plan(until_caught_up=True, reports=Reports())
    running = LetterQuery(plan, place.folder)
    poll_until(lambda: bool(running.updates()), WAIT_S, "the start")
    running.stop()
    assert not running.is_active
    assert place.letters() == []
    place.run()
    assert place.letters() == [(0, 0, b"a")]


def test_a_topic_that_was_created_again_is_an_error(place: Place) -> None:
    place.produce("a")
    place.run()
    place.broker.admin.delete_topics([place.topic])[place.topic].result(60)
    poll_until(
        lambda: place.topic not in place.broker.admin.list_topics(timeout=60).topics,
        WAIT_S,
        "the end of the topic",
    )
    place.broker.topic(2, name=place.topic)
    with pytest.raises(OtherTopicError):
        place.run()
