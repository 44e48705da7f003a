"""Events of a store are copied to a topic exactly once."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import Follower, end_offsets
from tidemill.connect.base.errors import ProducerFencedError
from tidemill.errors import UnreachableError
from tidemill.eventstore import publishing
from tidemill.eventstore.events import NewEvent
from tidemill.eventstore.metrics import add_publisher
from tidemill.eventstore.publishing import Publisher, PublishPositionError
from tidemill.eventstore.store import Store
from tidemill.kafka_client.producing.transactional import Marker
from tidemill.metrics.registry import Registry


@pytest.fixture
def store(kafka: Kafka, topic: str) -> Iterator[Store]:
    with Store(kafka, topic) as store:
        yield store


def append(store: Store, *streams: str) -> None:
    for stream in streams:
        event = NewEvent("moved", b'{"n": 1}', metadata=b"m", tags=frozenset({"a", "b"}), schema=2)
        store.append(stream, [event])


def publish(store: Store, kafka: Kafka, to: str, **options: int) -> list[int]:
    publisher = Publisher(store, kafka, to, **options)
    return list(publisher.run(threading.Event(), until_end=True))


def records(kafka: Kafka, topic: str) -> list[tuple[str, dict[str, Any], bytes, int]]:
    """Return key, headers, value and time of what a consumer sees, in the order of positions."""
    ends = end_offsets(kafka, "test", topic)
    follower = Follower.of(kafka, "test", ends)
    found = []
    while follower.behind(ends):
        for each in follower.poll(1):
            headers: Any = each.headers()
            key, value = each.key() or b"", each.value() or b""
            found.append((key.decode(), dict(headers), value, each.timestamp()[1]))
    follower.close()
    return sorted(found, key=lambda each: int(each[1]["event-position"]))


def positions(kafka: Kafka, topic: str) -> list[int]:
    return [int(headers["event-position"]) for _, headers, _, _ in records(kafka, topic)]


def test_each_event_is_a_record_with_its_place(store: Store, kafka: Kafka) -> None:
    to = f"{store.topic}-out"
    append(store, "a-1", "b-1", "a-1")
    assert publish(store, kafka, to, partitions=3) == [3]
    found = records(kafka, to)
    events = list(store.read_all())
    assert [key for key, *_ in found] == ["a-1", "b-1", "a-1"]
    for (_, headers, value, time_ms), event in zip(found, events, strict=True):
        assert (value, time_ms) == (event.data, event.time_ms)
        assert headers == {
            "event-position": str(event.position).encode(),
            "event-id": str(event.id).encode(),
            "event-type": b"moved",
            "event-version": str(event.version).encode(),
            "event-schema": b"2",
            "event-tags": json.dumps(["a", "b"]).encode(),
            "event-metadata": b"m",
        }


@pytest.mark.parametrize("metadata", ["", "[]", "{}", "[" * 4000])
def test_a_marker_that_another_program_has_committed_is_not_ours(
    store: Store, kafka: Kafka, metadata: str
) -> None:
    assert not Publisher(store, kafka, "out")._is_ours(Marker(7, metadata))


def test_a_publisher_measures_how_far_it_is(store: Store, kafka: Kafka) -> None:
    to, registry = f"{store.topic}-out", Registry()
    append(store, "a-1", "b-1")
    publisher = Publisher(store, kafka, to)
    add_publisher(registry, publisher)

    def measured() -> dict[str, float]:
        return {each.name: each.value for each in registry.samples()}

    assert measured() == {"tidemill_events_position": 2}  # not known before it looks
    assert list(publisher.run(threading.Event(), until_end=True)) == [2]
    append(store, "b-1")
    assert measured() == {
        "tidemill_events_position": 3,
        "tidemill_events_published_position": 2,
    }
    (labels,) = {each.labels for each in registry.samples() if "published" in each.name}
    assert labels == (("store", store.topic), ("topic", to))


def test_it_continues_where_it_stopped(
    store: Store, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "BATCH", 2)
    to = f"{store.topic}-out"
    append(store, *["a-1"] * 5)
    assert publish(store, kafka, to) == [2, 4, 5]
    assert publish(store, kafka, to) == []
    append(store, "a-1")
    assert publish(store, kafka, to) == [6]
    assert positions(kafka, to) == [1, 2, 3, 4, 5, 6]


def forget_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let brokers have forgotten the marker, as they do after a week."""
    monkeypatch.setattr(Publisher, "_is_ours", lambda *_: False)


def test_without_a_marker_the_topic_says_where_to_continue(
    store: Store, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = f"{store.topic}-out"
    append(store, *[f"a-{number}" for number in range(20)])
    publish(store, kafka, to, partitions=4)
    forget_marker(monkeypatch)
    monkeypatch.setattr(publishing, "_LOOK_BACK", 1)  # it sees only the marker at first
    append(store, "a-1")
    assert publish(store, kafka, to) == [21]
    assert positions(kafka, to) == list(range(1, 22))


def test_a_topic_that_lost_its_records_does_not_get_them_again_in_silence(
    store: Store, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = f"{store.topic}-out"
    append(store, "a-1", "a-1")
    publish(store, kafka, to)
    forget_marker(monkeypatch)
    monkeypatch.setattr(Publisher, "_last_in_topic", lambda *_: None)
    with pytest.raises(PublishPositionError, match="not known"):
        publish(store, kafka, to)
    assert publish(store, kafka, to, after=1) == [2]


def test_a_store_that_is_shorter_than_what_was_published_is_an_error(
    store: Store, kafka: Kafka
) -> None:
    store.append("s", [NewEvent("e")])
    publisher = Publisher(store, kafka, f"{store.topic}-published", after=1000)
    with pytest.raises(PublishPositionError, match="ends at 1"):
        list(publisher.run(threading.Event(), until_end=True))


def test_a_topic_that_was_created_again_gets_all_events(store: Store, kafka: Kafka) -> None:
    to = f"{store.topic}-out"
    append(store, "a-1")
    publish(store, kafka, to)
    kafka.delete_topics("test", [to])
    assert publish(store, kafka, to) == [1]
    assert positions(kafka, to) == [1]


def test_another_store_of_the_same_name_is_not_mixed_in(
    store: Store, kafka: Kafka, tmp_path: Path
) -> None:
    to = f"{store.topic}-out"
    append(store, "a-1")
    publish(store, kafka, to)
    store.close()
    kafka.delete_topics("test", [store.topic])
    with Store(kafka, store.topic, folder=tmp_path) as other:
        append(other, "b-1")
        with pytest.raises(PublishPositionError, match="another store"):
            publish(other, kafka, to)


def test_a_second_publisher_takes_over_and_nothing_is_doubled(store: Store, kafka: Kafka) -> None:
    to = f"{store.topic}-out"
    append(store, "a-1")
    stop = threading.Event()
    first = Publisher(store, kafka, to).run(stop, wait_s=0.01)
    assert next(first) == 1
    append(store, "a-1")
    second = Publisher(store, kafka, to).run(stop, wait_s=0.01)
    assert next(second) == 2
    append(store, "a-1")
    with pytest.raises(ProducerFencedError):
        next(first)
    assert next(second) == 3
    stop.set()
    assert list(second) == []
    assert positions(kafka, to) == [1, 2, 3]


def test_brokers_that_went_down_are_unreachable_also_for_a_client_that_knew_them() -> None:
    """librdkafka then finds no leaders, and says so with this code after 15 seconds."""
    kafka = Kafka("127.0.0.1:1")
    assert isinstance(kafka.translate(KafkaError(KafkaError._NOENT), "x"), UnreachableError)


def test_large_events_are_not_all_in_memory_at_once(store: Store, kafka: Kafka) -> None:
    for _ in range(10):
        store.append("s", [NewEvent("e", os.urandom(900_000))])
    assert publish(store, kafka, f"{store.topic}-out") == [5, 10]
