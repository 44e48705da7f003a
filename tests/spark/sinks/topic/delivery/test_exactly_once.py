"""A share of a batch is in the topic exactly once, also if its writer dies or is fenced."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import kafka as kafka_python
import pyarrow as pa
import pytest
from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin._listoffsets import OffsetSpec

from tests.conftest import BrokerFactory
from tests.contracts.deliver import DeliverContract, Delivery, Write, Written, batch
from tests.spark.conftest import Broker, broker_at
from tests.spark.sinks.topic.delivery.dying_writer import MOMENTS
from tests.support.committed import read_to_end, values
from tests.support.ports import reserve_port
from tests.support.processes import poll_until
from tidemill.confluent import producing as librdkafka
from tidemill.confluent.pooling import ClientPool
from tidemill.errors import UnreachableError
from tidemill.kafka_client.producing.transactional import Marker
from tidemill.spark.errors import CheckpointRestoredError, DeliveryError, OptionError
from tidemill.spark.sinks.topic.delivery import exactly_once
from tidemill.spark.sinks.topic.delivery.at_least_once import SWITCH
from tidemill.spark.sinks.topic.delivery.exactly_once import Share, write_share
from tidemill.spark.sinks.topic.delivery.share import check_marker


@pytest.fixture(autouse=True, params=["own", "librdkafka"])
def edition(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The client that writes."""
    monkeypatch.setenv(SWITCH, request.param)
    yield request.param
    exactly_once.close_idle_writers()


def new_share(batch_id: int = 0, **more: Any) -> Share:
    return Share(f"sink-{uuid.uuid4().hex[:8]}", 0, batch_id, **more)


def rows(*numbers: int) -> list[pa.RecordBatch]:
    return [batch(value=pa.array([b"%d" % i for i in numbers]))]


class Sink:
    """Writes shares of batches to one topic, and reads what is committed."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic

    def write(self, share: Share, batches: Any, **settings: str) -> int:
        kafka = {"bootstrap.servers": self.bootstrap, **settings}
        return write_share(batches, self.topic, kafka, share, marker_topic=self.topic)

    def values(self) -> list[int]:
        return [int(value or b"-1") for value in values(self.bootstrap, self.topic)]


@pytest.fixture
def sink(broker: Broker) -> Sink:
    return Sink(broker.bootstrap, broker.topic())


class TestInTransactions(DeliverContract):
    """Transactional writing keeps the contract of writing. Readers see committed records only."""

    @pytest.fixture
    def write(self, broker: Broker) -> Write:
        marker_topic = broker.topic()

        def in_transaction(batches: Any, topic: str | None, kafka: dict[str, str]) -> int:
            return write_share(batches, topic, kafka, new_share(), marker_topic=marker_topic)

        return in_transaction

    @pytest.fixture
    def written(self, broker: Broker) -> Written:
        def records(topic: str, partition: int, count: int) -> list[dict[str, Any]]:
            found = read_to_end(broker.bootstrap, topic, partition)
            assert len(found) == count
            return [
                {"key": m.key(), "value": m.value(), "headers": _headers(m.headers())}
                for m in found
            ]

        return records

    def test_fewer_acknowledgements_may_be_asked_for(self, delivery: Delivery) -> None:
        """Not here: the client itself excludes them."""
        with pytest.raises(OptionError, match="idempotence"):
            delivery.write(rows(1), delivery.broker.topic(), {"acks": "1"})

    def test_no_broker_fails_the_task_in_time(self, delivery: Delivery) -> None:
        nowhere = {"bootstrap.servers": f"127.0.0.1:{reserve_port()}"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exactly_once, "TRANSACTION_TIMEOUT_MS", 1000)
            with pytest.raises(UnreachableError, match="not answer in time to start a producer"):
                delivery.write(rows(1), "t", nowhere)

    def test_an_unknown_setting_is_refused(self, delivery: Delivery) -> None:
        with pytest.raises(OptionError, match=r"no\.such\.thing"):
            delivery.write(rows(1), "t", {"no.such.thing": "1"})


def _headers(pairs: Any) -> list[dict[str, Any]] | None:
    return None if pairs is None else [{"key": key, "value": value} for key, value in pairs]


def test_a_share_is_written_once_however_often_it_is_tried(sink: Sink) -> None:
    first = new_share()
    assert sink.write(first, rows(1, 2)) == 2
    assert sink.write(first, rows(1, 2)) == 0  # by the producer that wrote it
    exactly_once.close_idle_writers()
    assert sink.write(first, rows(1, 2)) == 0  # by one that has to ask
    second = replace(first, batch_id=1)
    assert sink.write(second, rows(3)) == 1
    assert sink.write(replace(second, run="restarted"), rows(3)) == 0
    assert sink.values() == [1, 2, 3]


def test_a_topic_that_the_broker_creates_by_itself_is_written(broker: Broker) -> None:
    sink = Sink(broker.bootstrap, f"auto-{uuid.uuid4().hex[:8]}")
    assert sink.write(new_share(), rows(1, 2)) == 2
    assert sink.values() == [1, 2]


def test_shares_of_other_tasks_and_sinks_are_their_own(sink: Sink) -> None:
    share = new_share(7)
    assert sink.write(share, rows(1)) == 1
    assert sink.write(replace(share, task=1), rows(2)) == 1
    assert sink.write(new_share(7), rows(3)) == 1
    assert sink.values() == [1, 2, 3]


def test_a_share_without_rows_leaves_no_marker_and_the_next_is_written(sink: Sink) -> None:
    share = new_share(3)
    assert sink.write(share, [batch(value=pa.array([], pa.binary()))]) == 0
    assert sink.write(replace(share, batch_id=9), rows(1)) == 1
    assert sink.values() == [1]


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each transactional producer that was created."""
    made: list[int] = []

    connect = exactly_once._connect

    def counted(*args: Any) -> Any:
        made.append(1)
        return connect(*args)

    monkeypatch.setattr(exactly_once, "_connect", counted)
    return made


class AnotherProcess:
    """A worker that shares no producers with this one."""

    def __init__(self, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sink, self._patch = sink, monkeypatch
        self._pools = {each: ClientPool(exactly_once._close) for each in (True, False)}

    def write(self, share: Share, batches: Any) -> int:
        with self._patch.context() as patch:
            patch.setattr(exactly_once, "_pools", self._pools)
            return self._sink.write(share, batches)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.clear()


@pytest.fixture
def another_process(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> Iterator[AnotherProcess]:
    another = AnotherProcess(sink, monkeypatch)
    yield another
    another.close()


def test_a_producer_is_kept_for_the_next_batches_of_the_same_run(
    sink: Sink, connections: list[int]
) -> None:
    share = new_share(run="one#0")
    for number in range(4):
        sink.write(replace(share, batch_id=number), rows(number))
    assert len(connections) == 1
    # The marker of another run must be checked.
    sink.write(replace(share, batch_id=4, run="two#0"), rows(4))
    assert len(connections) == 2
    assert sink.values() == [0, 1, 2, 3, 4]


def test_a_producer_is_kept_while_its_task_has_no_rows(sink: Sink, connections: list[int]) -> None:
    share = new_share(run="one#0")
    for number in (0, 1, 2, 5, 6, 100):
        assert sink.write(replace(share, batch_id=number), rows(number)) == 1
        assert sink.write(replace(share, batch_id=number), rows(number)) == 0
    assert len(connections) == 1
    assert sink.values() == [0, 1, 2, 5, 6, 100]


def test_a_batch_before_the_last_one_is_never_taken_for_written(sink: Sink) -> None:
    """Only a query of another checkpoint asks for it."""
    share = new_share(run="#0")
    sink.write(replace(share, batch_id=5), rows(5))
    with pytest.raises(DeliveryError, match="the query of another checkpoint wrote batch 5"):
        sink.write(replace(share, batch_id=2), rows(2))


@pytest.mark.parametrize("missed", [1, 3])
def test_a_producer_that_was_fenced_meanwhile_is_replaced_before_rows_are_sent(
    sink: Sink, another_process: AnotherProcess, connections: list[int], missed: int
) -> None:
    """Spark gives a task to any of its workers, so each of them may have written the last batch."""
    share = new_share(run="one#0", owner="q")
    assert sink.write(share, rows(0)) == 1
    for number in range(1, 1 + missed):
        assert another_process.write(replace(share, batch_id=number), rows(number)) == 1
    last = replace(share, batch_id=missed + 1)
    assert sink.write(last, rows(missed + 1)) == 1
    assert sink.write(last, rows(missed + 1)) == 0
    assert len(connections) == 3
    assert sink.values() == list(range(missed + 2))


def test_a_producer_that_was_fenced_meanwhile_finds_what_was_written(
    sink: Sink, another_process: AnotherProcess
) -> None:
    share = new_share(run="one#0", owner="q")
    assert sink.write(share, rows(0)) == 1
    later = replace(share, batch_id=3)
    assert another_process.write(later, rows(3)) == 1
    assert sink.write(later, rows(3)) == 0
    assert sink.values() == [0, 3]


def test_a_run_that_was_started_elsewhere_is_not_written_again(
    sink: Sink, another_process: AnotherProcess
) -> None:
    """The driver that lost its place still runs, and has producers of its own."""
    old = new_share(run="old#0", owner="q")
    assert sink.write(old, rows(0)) == 1
    new = replace(old, run="new#0")
    for number in (0, 1, 2):
        assert another_process.write(replace(new, batch_id=number), rows(number)) == bool(number)
    with pytest.raises(DeliveryError):
        sink.write(replace(old, batch_id=1), rows(1))
    assert sink.write(replace(old, batch_id=2), rows(2)) == 0
    assert sink.values() == [0, 1, 2]


def test_a_worker_with_many_tasks_keeps_a_producer_for_each(
    sink: Sink, connections: list[int]
) -> None:
    share = new_share(run="one#0")
    tasks = 12
    for number in range(3):
        for task in range(tasks):
            sink.write(replace(share, task=task, batch_id=number), rows(task))
    assert len(connections) == tasks


def test_a_worker_with_too_many_tasks_keeps_as_many_producers_as_it_may(
    sink: Sink, connections: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ClientPool(exactly_once._close, limit=3)
    monkeypatch.setattr(exactly_once, "_pools", {True: pool, False: pool})
    share = new_share(run="one#0")
    for number in range(3):
        for task in range(5):
            sink.write(replace(share, task=task, batch_id=number), rows(task))
    assert len(connections) == 5 + 2 + 2
    pool.clear()


def test_an_earlier_attempt_is_fenced_and_its_rows_are_not_seen(sink: Sink) -> None:
    share = new_share()

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield rows(-1, -2)[0]
        assert sink.write(share, rows(1, 2)) == 2
        yield rows(-3)[0]

    with pytest.raises(DeliveryError):
        sink.write(share, overtaken())
    assert sink.values() == [1, 2]
    assert sink.write(share, rows(1, 2)) == 0


def test_an_attempt_that_lost_its_place_to_a_later_batch_writes_nothing(sink: Sink) -> None:
    """The writer of batch 0 hangs, and continues after batch 1 was committed."""
    share = new_share()

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield rows(-1)[0]
        sink.write(share, rows(1))
        sink.write(replace(share, batch_id=1), rows(2))

    with pytest.raises(DeliveryError):
        sink.write(share, overtaken())
    assert sink.values() == [1, 2]


def test_rows_that_fail_half_way_leave_nothing_behind(sink: Sink) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield rows(-1, -2)[0]
        raise ValueError("upstream")

    share = new_share()
    with pytest.raises(ValueError, match="upstream"):
        sink.write(share, broken())
    assert sink.values() == []
    assert sink.write(share, rows(1, 2)) == 2
    assert sink.values() == [1, 2]


def test_a_share_that_takes_longer_than_its_transaction_may_says_what_to_do(
    broker: Broker, sink: Sink
) -> None:
    share = new_share(3)
    timeout_ms = 1_000

    def is_aborted() -> bool:
        """The abort leaves a marker after the rows, and readers may read to it."""
        at = {TopicPartition(sink.topic, 0): OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        ends = [
            next(iter(broker.admin.list_offsets(at, isolation_level=level).values())).result(60)
            for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        ]
        return bool(ends[0].offset == ends[1].offset > 2)

    def slow() -> Iterator[pa.RecordBatch]:
        yield rows(1, 2)[0]
        poll_until(is_aborted, 60, "the end of the transaction")
        yield rows(3)[0]

    # Without a linger time, rows are sent although no more rows come.
    settings = {"transaction.timeout.ms": f"{timeout_ms}", "linger.ms": "0"}
    with pytest.raises(DeliveryError, match="took longer than the transaction timeout of 1 s") as e:
        sink.write(share, slow(), **settings)
    assert "task 0 of batch 3" in str(e.value)
    assert "kafka.transaction.timeout.ms" in e.value.hint
    assert "maxOffsetsPerTrigger" in e.value.hint
    assert sink.values() == []
    assert sink.write(share, rows(1, 2, 3)) == 3
    assert sink.values() == [1, 2, 3]


def test_a_null_topic_ends_the_transaction(broker: Broker) -> None:
    topic = broker.topic()
    bad = batch(value=pa.array([b"1", b"2"]), topic=pa.array([topic, None]))
    with pytest.raises(DeliveryError, match="the topic of a row is null"):
        write_share([bad], None, broker.kafka, new_share(), marker_topic=topic)
    assert values(broker.bootstrap, topic) == []


def test_rows_to_several_topics_are_one_transaction(broker: Broker) -> None:
    topics = [broker.topic(), broker.topic()]
    both = batch(value=pa.array([b"1", b"2"]), topic=pa.array(topics))
    share = new_share()
    assert write_share([both], None, broker.kafka, share, marker_topic=topics[0]) == 2
    assert write_share([both], None, broker.kafka, share, marker_topic=topics[0]) == 0
    assert [values(broker.bootstrap, topic) for topic in topics] == [[b"1"], [b"2"]]


def test_a_share_may_be_much_larger_than_what_the_client_queues(sink: Sink) -> None:
    share = new_share()
    many = [rows(*range(i, i + 5_000))[0] for i in range(0, 40_000, 5_000)]
    small = {"queue.buffering.max.messages": "1000", "linger.ms": "5"}
    assert sink.write(share, many, **small) == 40_000
    assert sink.write(share, many, **small) == 0
    assert sink.values() == list(range(40_000))


def test_a_marker_of_another_program_says_nothing_about_the_query() -> None:
    for metadata in ("", "[]", "[" * 4000):
        check_marker(Marker(1, metadata), new_share(0), "t")


def test_the_marker_describes_itself(sink: Sink) -> None:
    """It ends with a zero, without which confluent-kafka reads what is behind it in memory."""
    share = new_share(4, owner="the-query")
    sink.write(share, rows(1))
    place = kafka_python.TopicPartition(sink.topic, 0)
    with closing(
        kafka_python.KafkaConsumer(bootstrap_servers=sink.bootstrap, group_id=share.name)
    ) as reader:
        marker = reader.committed(place, metadata=True)
    assert marker.offset == 5
    assert marker.metadata[-1] == "\0"
    assert json.loads(marker.metadata[:-1]) == {
        "sink": share.sink_id,
        "task": 0,
        "batch": 4,
        "query": "the-query",
    }


def test_the_marker_of_the_other_edition_is_understood(
    sink: Sink, edition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = new_share(6, owner="q")
    sink.write(share, rows(6))
    exactly_once.close_idle_writers()
    monkeypatch.setenv(SWITCH, "librdkafka" if edition == "own" else "own")
    assert sink.write(share, rows(6)) == 0
    with pytest.raises(DeliveryError, match="the query of another checkpoint wrote batch 6"):
        sink.write(replace(share, owner="other"), rows(6))
    assert sink.values() == [6]


def test_a_batch_that_was_planned_again_is_not_mistaken_for_the_written_one(
    sink: Sink,
) -> None:
    """The checkpoint was restored from a backup that lacks its last batch."""
    share = new_share(6, owner="q", run="one", fingerprint="before")
    sink.write(share, rows(6))

    for run in ("two", "three"):  # a restart does not help
        with pytest.raises(
            CheckpointRestoredError, match=r"batch 6 was already written .* planned it again"
        ) as told:
            sink.write(replace(share, run=run, fingerprint="now"), rows(6, 7, 8))
    assert "pipeline reset" in told.value.hint
    assert sink.values() == [6]
    # The same batch, or a batch whose fingerprint is not known.
    assert sink.write(replace(share, run="four"), rows(6)) == 0
    assert sink.write(replace(share, run="five", fingerprint=""), rows(6)) == 0
    assert sink.write(replace(share, run="six", batch_id=7, fingerprint="next"), rows(7)) == 1


@pytest.mark.parametrize(
    ("before", "now"),
    [
        pytest.param((5, ""), (0, ""), id="an earlier batch than the last"),
        pytest.param((0, "old"), (0, "new"), id="the same batch of another query"),
        pytest.param((0, "old"), (1, "new"), id="the next batch of another query"),
    ],
)
def test_a_marker_of_another_checkpoint_is_an_error_so_that_no_row_is_lost(
    sink: Sink, before: tuple[int, str], now: tuple[int, str]
) -> None:
    share = new_share(before[0], owner=before[1], run="one")
    sink.write(share, rows(1))
    other = replace(share, batch_id=now[0], owner=now[1], run="two")
    with pytest.raises(DeliveryError, match="the query of another checkpoint wrote") as refusal:
        sink.write(other, rows(2))
    assert "new sinkId" in refusal.value.hint
    assert sink.values() == [1]


@pytest.mark.parametrize("retriable", [True, False])
def test_a_commit_whose_answer_is_lost_is_found_out_about(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, edition: str, *, retriable: bool
) -> None:
    if edition == "own":
        pytest.skip("our own producer sends the request again: test_faults.py")
    lost: list[int] = []

    class Deaf(Producer):
        def commit_transaction(self, *args: Any) -> None:
            super().commit_transaction(*args)
            if not lost:
                lost.append(1)
                code = KafkaError._TIMED_OUT
                raise KafkaException(KafkaError(code, "deaf", retriable=retriable))

    monkeypatch.setattr(librdkafka, "Producer", Deaf)
    share = new_share()
    if retriable:
        # The client asks again, and is told that there is nothing left to commit.
        with pytest.raises(DeliveryError):
            sink.write(share, rows(1, 2))
    else:
        with pytest.raises(DeliveryError, match="could not commit batch 0: deaf") as failure:
            sink.write(share, rows(1, 2))
        assert "all" in failure.value.hint or "all rows of the task or none" in failure.value.hint
    assert sink.write(share, rows(1, 2)) == 0
    assert sink.values() == [1, 2]


@pytest.mark.crash
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_writer_that_is_killed_leaves_all_or_nothing_and_the_next_one_writes_once(
    sink: Sink, moment: str
) -> None:
    share = new_share()
    command = [sys.executable, "-m", "tests.spark.sinks.topic.delivery.dying_writer"]
    arguments = [moment, sink.bootstrap, sink.topic, share.sink_id, "200"]
    ended = subprocess.run([*command, *arguments], timeout=300, check=False)
    assert ended.returncode == -signal.SIGKILL
    was_written = moment == "after the commit"
    if moment in ("between rows", "before the commit"):  # its rows are in the log, and invisible
        assert read_to_end(sink.bootstrap, sink.topic, isolation="read_uncommitted")
    assert sink.write(share, rows(*range(200))) == (0 if was_written else 200)
    assert sink.values() == list(range(200))


@pytest.mark.crash
def test_the_broker_may_be_restarted_between_batches(start_broker: BrokerFactory) -> None:
    process = start_broker()
    broker_at(process.bootstrap).topic(name="out")
    sink, share = Sink(process.bootstrap, "out"), new_share()
    stops: list[Callable[[], Any]] = [process.terminate, process.kill]
    for number, stop in enumerate(stops):
        assert sink.write(replace(share, batch_id=number), rows(number)) == 1
        stop()
        process.start()
        # By a producer that lived through it, and by one that has to ask.
        assert sink.write(replace(share, batch_id=number), rows(number)) == 0
        assert sink.write(replace(share, batch_id=number, run=f"{number}"), rows(number)) == 0
    assert sink.write(replace(share, batch_id=2), rows(2)) == 1
    assert sink.values() == [0, 1, 2]


def test_settings_fit_each_other_and_the_users_win() -> None:
    settings = exactly_once.transactional_settings({"bootstrap.servers": "b"}, "me")
    assert settings["transactional.id"] == "me"
    assert settings["enable.idempotence"] == "true"
    assert int(settings["message.timeout.ms"]) <= int(settings["transaction.timeout.ms"])
    short = exactly_once.transactional_settings({"transaction.timeout.ms": "9000"}, "me")
    assert short["message.timeout.ms"] == "9000"
