"""Subscription groups: what is given out, retried, parked and replayed, and the next member."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tests.support.processes import poll_until
from tidemill.confluent.clients import Kafka
from tidemill.errors import UnreachableError
from tidemill.eventstore import groups
from tidemill.eventstore.deliveries import Backoff, Deliveries
from tidemill.eventstore.errors import EventStoreError
from tidemill.eventstore.events import NewEvent, Query, StoredEvent
from tidemill.eventstore.groups import Delivery, Group
from tidemill.eventstore.store import Store

QUICK = Backoff(first_s=0.01, most_s=0.02, attempts=3)
WAIT_S = 60.0


def event(position: int, stream: str) -> StoredEvent:
    return StoredEvent(
        *("e", b"", uuid.UUID(int=position), b"", frozenset(), 1, stream, position, position, 0)
    )


@settings(max_examples=examples(100))
@given(
    st.lists(st.sampled_from("abc"), max_size=30),
    st.lists(st.tuples(st.sampled_from(["offer", "take", "ack", "retry"]), st.integers(0, 9))),
)
def test_streams_stay_in_order_and_the_checkpoint_below_what_is_open(
    streams: list[str], actions: list[tuple[str, int]]
) -> None:
    deliveries, now = Deliveries(0, 10), 0.0
    offered: list[StoredEvent] = []
    out: list[int] = []
    handled: dict[str, list[int]] = {}
    finished: set[int] = set()

    def act(action: str, number: int) -> None:
        nonlocal now
        now += 1
        if action == "offer" and len(offered) < len(streams) and deliveries.room:
            offered.append(event(len(offered) + 1, streams[len(offered)]))
            deliveries.offer(offered[-1])
        elif action == "take":
            taken = deliveries.take(now)
            if taken is not None:
                out.append(taken[0].position)
                waiting = [e for e in offered if e.position not in finished]
                assert taken[0] == next(e for e in waiting if e.stream == taken[0].stream)
        elif out:
            position = out.pop(number % len(out))
            if action == "retry":
                deliveries.retry(position, now + number)
            else:
                deliveries.finish(position)
                finished.add(position)
                handled.setdefault(streams[position - 1], []).append(position)
        below = set(range(1, deliveries.checkpoint + 1))
        assert below <= finished
        assert deliveries.checkpoint + 1 not in finished

    for action, number in actions:
        act(action, number)
    while len(finished) < len(streams):
        for action in ("offer", "take", "ack"):
            act(action, 0)
    assert deliveries.checkpoint == len(streams)
    assert sorted(finished) == list(range(1, len(streams) + 1))
    for positions in handled.values():
        assert positions == sorted(positions)


def test_large_events_leave_no_room_until_they_are_finished() -> None:
    deliveries = Deliveries(0, 10)
    for position in range(1, 5):
        assert deliveries.room
        deliveries.offer(event(position, "s")._replace(data=bytes(10_000_000)))
    assert deliveries.room == 0
    assert deliveries.take(0.0) is not None
    deliveries.finish(1)
    assert deliveries.room == 7


@pytest.fixture
def store(kafka: Kafka, topic: str) -> Iterator[Store]:
    with Store(kafka, topic) as opened:
        yield opened


def taken(group: Group) -> Delivery:
    found = group.take(WAIT_S)
    assert found is not None
    return found


def committed(kafka: Kafka, topic: str) -> int:
    consumer = kafka.consumer("tests")
    consumer.close()
    reader = kafka.make(type(consumer), kafka.config("tests", group_id=f"{topic}.g"))
    try:
        (found,) = reader.committed([TopicPartition(topic, 0)], timeout=30)
        return int(found.offset)
    finally:
        reader.close()


def test_a_group_retries_parks_and_continues_where_it_stopped(kafka: Kafka, store: Store) -> None:
    for number in range(6):
        store.append(f"s-{number % 2}", [NewEvent("e", str(number).encode())])
    with Group(store, kafka, "g", backoff=QUICK) as group:
        first, second = taken(group), taken(group)
        assert (first.event.position, second.event.position) == (1, 2)
        second.ack()
        assert taken(group).event.position == 4  # 3 waits for 1
        first.retry("not now")
        again = taken(group)
        assert (again.event.position, again.attempt) == (1, 2)
        again.park("never")
        again.ack()  # it is settled
        assert taken(group).event.position == 3
        assert group.parked() == {1: "never"}
    assert committed(kafka, store.topic) == 2
    with Group(store, kafka, "g", backoff=QUICK) as group:
        seen: list[int] = []

        def handle(event: StoredEvent) -> None:
            seen.append(event.position)
            if event.position == 5:
                raise ValueError("bad")

        group.run(handle, wait_s=1.0)
        assert sorted(seen) == [3, 4, 5, 5, 5, 6]
        assert group.parked() == {1: "never", 5: "ValueError: bad"}
        replayed: list[int] = []
        assert group.replay_parked(lambda each: replayed.append(each.position)) == (2, 0)
        assert replayed == [1, 5]
        assert group.parked() == {}
        reached = store.position()
        poll_until(lambda: committed(kafka, store.topic) == reached, 30, "the checkpoint moves")


def test_a_second_member_takes_over_and_a_late_acknowledgement_counts_for_nothing(
    kafka: Kafka, store: Store
) -> None:
    store.append("s", [NewEvent("e"), NewEvent("other"), NewEvent("e")])
    wanted = [Query(frozenset({"e"}))]
    with Group(store, kafka, "g", queries=wanted) as first:
        held = taken(first)
        with Group(store, kafka, "g", queries=wanted) as second:
            first.close()
            held.ack()
            again = taken(second)
            assert (again.event.position, again.attempt) == (1, 1)
            again.ack()
            last = taken(second)
            assert last.event.position == 3
            last.ack()
    assert committed(kafka, store.topic) == 3


def forget_offsets(kafka: Kafka, group: str) -> None:
    """Delete a group without members, as a broker does with its offsets after a week."""
    admin: Any = kafka.admin("tests")
    (future,) = admin.delete_consumer_groups([group]).values()
    future.result(30)


def test_a_group_that_was_offline_until_its_offset_expired_continues_where_it_stopped(
    kafka: Kafka, store: Store
) -> None:
    store.append("s", [NewEvent("e"), NewEvent("e"), NewEvent("e")])
    with Group(store, kafka, "g") as group:
        for _ in range(2):
            taken(group).ack()
    forget_offsets(kafka, f"{store.topic}.g")
    store.append("s", [NewEvent("e")])
    with Group(store, kafka, "g") as group:
        versions = []
        for _ in range(2):
            delivery = taken(group)
            versions.append(delivery.event.version)
            delivery.ack()
        assert versions == [3, 4]
    with Group(store, kafka, "g") as group:
        assert group.take(1.0) is None  # its own notes are not events for it
    assert store.version("group.checkpoints-g") == 2  # nothing was finished since


def test_a_member_that_is_killed_has_noted_its_checkpoint_before(
    kafka: Kafka, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_NOTE_POSITIONS", 2)
    store.append("s", [NewEvent("e"), NewEvent("e"), NewEvent("e")])
    with Group(store, kafka, "g") as group:
        for _ in range(3):
            taken(group).ack()
        poll_until(lambda: store.version("group.checkpoints-g") == 1, 30, "the note is stored")
        (note,) = store.read("group.checkpoints-g")
        assert json.loads(note.data)["position"] >= 2


def test_a_checkpoint_that_cannot_be_noted_is_a_warning(
    kafka: Kafka, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.append("s", [NewEvent("e")])
    with Group(store, kafka, "g") as group:
        taken(group).ack()

        def refuse(*_: object) -> None:
            raise EventStoreError("the broker rejects a commit")

        monkeypatch.setattr(store, "append", refuse)
    assert "the checkpoint of group g can't be noted" in caplog.text
    assert committed(kafka, store.topic) == 1


def test_a_group_that_could_not_join_in_time_closes_without_an_error(
    store: Store, kafka: Kafka
) -> None:
    """librdkafka raises the time-out of a broker that is busy only when the consumer is closed."""
    group = Group(store, kafka, "g", backoff=QUICK)
    consumer = group._consumer

    class Late:
        def close(self) -> None:
            consumer.close()
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

        def __getattr__(self, name: str) -> object:
            return getattr(consumer, name)

    group._consumer = Late()  # type: ignore[assignment]
    group.close()


def test_a_store_that_is_shorter_than_a_group_has_handled_is_an_error(
    kafka: Kafka, store: Store
) -> None:
    """As after a restore of a backup: the next events must not be left out in silence."""
    store.append("s", [NewEvent("e")])
    ahead = [TopicPartition(store.topic, 0, 1000)]
    wanted = ConsumerGroupTopicPartitions(f"{store.topic}.late", ahead)
    admin: Any = kafka.admin("tests")
    (future,) = admin.alter_consumer_group_offsets([wanted]).values()
    future.result(30)
    with Group(store, kafka, "late") as group, pytest.raises(EventStoreError, match="ends at 1"):
        group.take(WAIT_S)


def test_a_reason_that_is_no_text_does_not_stop_the_group(kafka: Kafka, store: Store) -> None:
    """As the name of a file that is not UTF-8: the event would stop the group each time."""
    store.append("s-1", [NewEvent("e")])

    def handle(event: StoredEvent) -> None:
        raise ValueError("no file \udcff")

    with Group(store, kafka, "g", backoff=QUICK) as group:
        group.run(handle, wait_s=1.0)
        assert group.parked() == {1: "ValueError: no file ?"}


def test_only_what_groups_write_is_left_out(kafka: Kafka, store: Store) -> None:
    store.append("parked-car-1", [NewEvent("car arrived")])
    store.append("group.checkpoints-mine", [NewEvent("moved")])
    with Group(store, kafka, "g", backoff=QUICK) as group:
        first = taken(group)
        first.park("never")
        second = taken(group)
        second.ack()
        assert [each.event.position for each in (first, second)] == [1, 2]
        assert group.take(0.5) is None


@pytest.mark.parametrize("request_", ["committed", "commit"])
def test_a_group_outlives_a_broker_that_is_not_there_for_a_moment(
    kafka: Kafka, store: Store, monkeypatch: pytest.MonkeyPatch, request_: str
) -> None:
    """A restart of the broker must not end the programs that handle events."""
    store.append("s", [NewEvent("e")])
    asked = threading.Semaphore(0)

    class Restarting:
        def __init__(self, consumer: Any) -> None:
            self._consumer = consumer
            self._left = 2

        def __getattr__(self, name: str) -> object:
            if name == request_ and self._left:
                self._left -= 1
                asked.release()
                raise KafkaException(KafkaError(KafkaError._WAIT_COORD))
            return getattr(self._consumer, name)

    make = Kafka.make
    monkeypatch.setattr(
        Kafka, "make", lambda kafka, kind, config: Restarting(make(kafka, kind, config))
    )
    with Group(store, kafka, "g", backoff=QUICK) as group:
        monkeypatch.setattr(Kafka, "make", make)
        taken(group).ack()
        for _ in range(2):
            assert asked.acquire(timeout=WAIT_S)
        store.append("s", [NewEvent("e")])
        taken(group).ack()
        poll_until(lambda: committed(kafka, store.topic) >= 2, 30, "the checkpoint is committed")


def test_a_group_that_is_closed_does_not_wait_for_a_broker_that_stays_away(
    kafka: Kafka, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "CLOSE_S", 0.05)
    store.append("s", [NewEvent("e")])
    is_asked, is_back, is_left = threading.Event(), threading.Event(), threading.Event()

    class Waiting:
        def __init__(self, consumer: Any) -> None:
            self._consumer = consumer

        def commit(self, **settings: Any) -> None:
            is_asked.set()
            assert is_back.wait(WAIT_S)
            self._consumer.commit(**settings)

        def close(self) -> None:
            self._consumer.close()
            is_left.set()

        def __getattr__(self, name: str) -> object:
            return getattr(self._consumer, name)

    make = Kafka.make
    with monkeypatch.context() as during:
        during.setattr(
            Kafka, "make", lambda kafka, kind, config: Waiting(make(kafka, kind, config))
        )
        group = Group(store, kafka, "g", backoff=QUICK)
    taken(group).ack()
    assert is_asked.wait(WAIT_S)
    group.close()
    assert not is_left.is_set()
    is_back.set()
    assert is_left.wait(WAIT_S)
    assert committed(kafka, store.topic) == 1


def test_a_group_whose_store_cannot_be_read_at_first_begins_later(
    kafka: Kafka, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.append("s", [NewEvent("e")])
    catch_up, left = store.catch_up, [2]

    def unreachable() -> None:
        if left[0]:
            left[0] -= 1
            raise UnreachableError("no answer from the brokers")
        catch_up()

    monkeypatch.setattr(store, "catch_up", unreachable)
    with Group(store, kafka, "g", backoff=QUICK) as group:
        taken(group).ack()
    assert caplog.text.count("can't begin yet: no answer from the brokers") == 1
