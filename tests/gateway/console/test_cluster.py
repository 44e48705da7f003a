"""Snapshots: what brokers say, history, and what others write into it."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.gateway.console.views import view_of
from tidemill.confluent.clients import Kafka
from tidemill.errors import SettingsError, TidemillError, UnreachableError
from tidemill.gateway.cluster.history import SAMPLES, History
from tidemill.gateway.cluster.requests import Cluster, _Round, parse_assignment
from tidemill.gateway.cluster.state import GroupState, Snapshot, TopicState
from tidemill.gateway.cluster.watch import FRESH_S, Watch, fresh_for_s
from tidemill.gateway.console.render import points
from tidemill.gateway.console.topics import DETAIL, MOST_READERS, _readers
from tidemill.gateway.errors import from_error
from tidemill.kafka_client.admin.requests import check_error_code
from tidemill.kafka_client.errors import RefusedError, RequestNotSupportedError
from tidemill.kafka_client.settings import Address


def topic_of(name: str, *ends: int) -> TopicState:
    count = len(ends)
    zeros, ones = (0,) * count, (1,) * count
    return TopicState(name, False, zeros, ends, zeros, ones, ones, ones)


def snapshot_of(at_s: float, *topics: TopicState, groups: tuple[GroupState, ...] = ()) -> Snapshot:
    by_name = {each.name: each for each in topics}
    return Snapshot(int(at_s * 1000), 0, "", 1, {}, by_name, {each.name: each for each in groups})


def group_of(name: str, **committed: dict[int, int]) -> GroupState:
    return GroupState(name, "classic", "stable", "", (), committed)


async def test_a_snapshot_has_topics_groups_members_and_lag(kafka: Kafka, topic: str) -> None:
    producer = kafka.producer("tests")
    for number in range(10):
        producer.produce(topic, b"x", partition=number % 2)
    producer.flush(30)
    config = kafka.config("tests", group_id=f"group-{topic}", enable_auto_commit=False)
    consumer: Consumer = kafka.make(Consumer, config)
    places = [TopicPartition(topic, 0, 2), TopicPartition(topic, 1, 5)]
    consumer.commit(offsets=places, asynchronous=False)
    watch = Watch(kafka)
    found = await watch.snapshot()
    assert found.topics[topic].ends == (5, 5)
    assert found.topics[topic].records == 10
    assert (found.topics[topic].bytes or 0) > 100
    group = found.groups[f"group-{topic}"]
    assert group.committed == {topic: {0: 2, 1: 5}}
    assert (group.kind, group.state, group.members) == ("classic", "empty", ())
    assert group.lag == 3
    assert found.readers[topic] == (group.name,)
    assert found.problems == ()
    assert await watch.snapshot() is found  # it is fresh
    kafka.create_topics("tests", {f"{topic}-later": (1, {})})
    producer.produce(f"{topic}-later", b"x")
    producer.flush(30)
    watch.expire()
    later = (await watch.snapshot()).topics[f"{topic}-later"]
    assert (later.records, later.starts) == (1, (0,))  # also of a topic that is new
    await watch.close()
    consumer.close()


async def test_what_was_changed_while_a_snapshot_is_made_is_in_the_next_one() -> None:
    began, may_end = threading.Event(), threading.Event()
    topics: list[str] = []

    class Slow:
        """Brokers that answer with what there was when they were asked."""

        def snapshot(self, *, whole: bool) -> Snapshot:
            found = snapshot_of(0, *(topic_of(name, 1) for name in topics))
            began.set()
            assert may_end.wait(30)
            return found

        def close(self) -> None:
            pass

    watch = Watch(Kafka("127.0.0.1:1"))
    watch._cluster = cast("Cluster", Slow())
    first = asyncio.create_task(watch.snapshot())
    assert await asyncio.to_thread(began.wait, 30)
    topics.append("new")
    watch.expire()
    second = asyncio.create_task(watch.snapshot())
    await asyncio.sleep(0)
    may_end.set()
    assert [list((await each).topics) for each in (first, second)] == [[], ["new"]]
    await watch.close()


@pytest.mark.parametrize(
    ("took_s", "rare"), [(0.001, 1), (0.019, 1), (0.03, 2), (0.1, 2), (2.0, 8), (30.0, 100)]
)
def test_a_snapshot_that_takes_longer_is_asked_for_less_often(took_s: float, rare: int) -> None:
    assert fresh_for_s(took_s) >= rare * FRESH_S
    assert took_s / fresh_for_s(took_s) <= 1 / 20


async def test_after_a_failure_no_old_snapshot_is_shown_until_the_brokers_answer_again() -> None:
    made = snapshot_of(0)
    answers: list[Snapshot | UnreachableError] = [made, UnreachableError("gone"), made]

    class Leaving:
        """Brokers that are away for a moment."""

        def snapshot(self, *, whole: bool) -> Snapshot:
            answer = answers.pop(0)
            if isinstance(answer, UnreachableError):
                raise answer
            return answer

        def close(self) -> None:
            pass

    watch = Watch(Kafka("127.0.0.1:1"))
    watch._cluster = cast("Cluster", Leaving())
    await watch.snapshot()
    watch._latest_s -= 1.5 * FRESH_S  # old, and it is still shown
    assert await watch.snapshot()
    assert watch._asking is not None
    with pytest.raises(UnreachableError):  # what that look began has failed
        await watch._asking
    answers.insert(0, UnreachableError("gone"))
    with pytest.raises(UnreachableError):
        await watch.snapshot()
    assert await watch.snapshot()
    assert answers == []
    await watch.close()


async def test_a_lost_connection_is_made_again(kafka: Kafka, topic: str) -> None:
    cluster = Cluster(kafka)
    assert topic in cluster.snapshot().topics
    for connection in cluster._requests._brokers._connections.values():
        connection._socket.shutdown(socket.SHUT_RDWR)  # as a broker closes one that is idle
    assert topic in cluster.snapshot(whole=False).topics
    cluster.close()


async def test_a_topic_that_was_created_again_has_its_own_first_offsets(
    kafka: Kafka, topic: str
) -> None:
    cluster, admin, producer = Cluster(kafka), kafka.admin("tests"), kafka.producer("tests")

    def write(count: int) -> None:
        for _ in range(count):
            producer.produce(topic, b"x", partition=0)
        assert producer.flush(30) == 0

    write(10)
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 10)]).values()
    assert deleted.result(30).low_watermark == 10
    assert cluster.snapshot().topics[topic].starts[0] == 10
    kafka.delete_topics("tests", [topic])
    kafka.create_topics("tests", {topic: (1, {})})
    write(3)
    found = cluster.snapshot(whole=False).topics[topic]
    assert (found.starts, found.records) == ((0,), 3)
    cluster.close()


def test_history_is_a_ring_and_gives_rates() -> None:
    history = History()
    for minute in range(100):
        history.take(snapshot_of(60 * minute, topic_of("t", minute * 600, 0)))
        history.take(snapshot_of(60 * minute + 5, topic_of("t", 10**9, 0)))  # too early
    assert len(history.samples) == SAMPLES
    assert history.rates(["t", "missing"]) == [(60 * m, 10.0) for m in range(40, 100)]


def test_a_topic_that_was_created_again_has_no_negative_rate() -> None:
    history = History()
    for minute, end in enumerate((500, 10, 20)):
        history.take(snapshot_of(60 * minute, topic_of("t", end)))
    assert [rate for _, rate in history.rates(["t"])] == [0, 10 / 60]


def test_the_lag_in_seconds_is_interpolated() -> None:
    history = History()
    topics = {"t": topic_of("t", 0)}
    for minute in range(11):  # 60 records a minute
        topics = {"t": topic_of("t", 60 * minute)}
        history.take(snapshot_of(60 * minute, *topics.values()))
    now_s = 600.0
    assert history.lag_s(group_of("g", t={0: 600}), topics, now_s) == (0.0, False)
    assert history.lag_s(group_of("g", t={0: 330}), topics, now_s) == (270.0, False)
    assert history.lag_s(group_of("g", t={0: 0}), topics, now_s) == (600.0, False)
    assert history.lag_s(group_of("g", gone={0: 0}), topics, now_s) == (0.0, False)
    older = History()
    older.take(snapshot_of(500, topics["t"]))
    assert older.lag_s(group_of("g", t={0: 5}), topics, now_s) == (100.0, True)
    assert History().lag_s(group_of("g", t={0: 5}), topics, now_s) == (None, False)


def test_the_lag_of_records_after_the_last_sample_ends_now() -> None:
    history = History()
    for minute in range(3):
        history.take(snapshot_of(60 * minute, topic_of("t", 60 * minute)))
    topics = {"t": topic_of("t", 160)}  # 40 records in the 40 seconds since then
    assert history.lag_s(group_of("g", t={0: 150}), topics, 160.0) == (10.0, False)


def test_a_graph_needs_two_points() -> None:
    assert points([(60.0, 5.0)])["line"] == ""
    assert points([(60.0, 5.0), (120.0, 5.0)])["line"]


def test_offsets_of_partitions_that_are_gone_are_no_lag() -> None:
    topics = {"t": replace(topic_of("t", 10), starts=(4,))}
    assert group_of("g", t={0: 0, 7: 3}, gone={0: 1}).lags(topics) == {"t": {0: 6}}
    assert group_of("g", t={0: 99}).lags(topics) == {"t": {0: 0}}


def test_an_assignment_that_a_member_has_made_up_is_none() -> None:
    name = b"orders"
    entry = struct.pack(">h", len(name)) + name + struct.pack(">i2i", 2, 3, 4)
    assert parse_assignment(struct.pack(">hi", 0, 1) + entry) == {"orders": (3, 4)}
    hostile = [
        b"",
        b"\0",
        struct.pack(">hi", 0, 2**31 - 1),
        struct.pack(">hi", 0, -5),
        struct.pack(">hi", 0, 1) + struct.pack(">h", -1),
        struct.pack(">hih", 0, 1, 3) + b"\xff\xff\xff" + struct.pack(">i", 0),
        struct.pack(">hih", 0, 1, 1) + b"t" + struct.pack(">i", 2**31 - 1),
        struct.pack(">hih", 0, 1, 1) + b"t" + struct.pack(">i", -1),
    ]
    assert [parse_assignment(each) for each in hostile] == [{}] * len(hostile)


def test_a_broker_that_does_not_answer_is_a_problem_of_the_snapshot() -> None:
    round_ = _Round({1: Address("a", 1)})

    def failing(error: TidemillError) -> Callable[[Address], int]:
        def call(_: Address) -> int:
            raise error

        return call

    assert round_.ask(1, "groups", lambda broker: broker.port) == 1
    assert round_.ask(2, "groups", lambda broker: broker.port) is None  # as if it has just left
    for error in (RequestNotSupportedError("old"), UnreachableError("no broker answers at a:1")):
        assert round_.ask(1, "groups", failing(error)) is None
    with pytest.raises(SettingsError):
        round_.ask(1, "groups", failing(SettingsError("not the broker's")))
    assert round_.problems == [
        "This broker does not report groups.",
        "Broker 1 does not report groups: no broker answers at a:1",
    ]


def test_the_same_refusal_of_many_groups_is_one_problem() -> None:
    round_ = _Round({})
    for name in ("a", "b"):
        report = round_.noting("Some groups are unknown")
        check_error_code(30, f"group {name}", report=report)
    assert set(round_.problems) == {"Some groups are unknown: group authorization failed."}


def test_what_a_broker_refuses_has_the_status_of_its_code() -> None:
    cases = {53: 403, 31: 403, 69: 404, 3: 404, 6: 503, 51: 502}
    for code, status in cases.items():
        answer = from_error(RefusedError(code, "group g", "why"))
        assert (answer.status, str(answer)) == (status, "group g: why"), code
        assert (answer.retry_after_s is not None) == (status == 503)


async def test_a_topic_with_very_many_readers_shows_those_that_are_most_behind() -> None:
    groups = tuple(group_of(f"g{n:04}", orders={0: n}) for n in range(3000))
    snapshot = snapshot_of(60.0, topic_of("orders", 5000), groups=groups)
    lags = {each.name: 5000 - each.committed["orders"][0] for each in groups}
    readers = {"orders": tuple(reversed(lags))}
    snapshot = replace(snapshot, readers=readers, lags={"orders": lags})
    found, left_out = _readers(view_of(DETAIL), snapshot, "orders")
    assert (len(found), left_out) == (MOST_READERS, 3000 - MOST_READERS)
    assert (found[0]["group"], found[0]["lag"]) == ("g0000", 5000)
