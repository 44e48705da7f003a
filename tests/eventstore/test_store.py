"""A store in a topic of a broker."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from confluent_kafka import KafkaError

from tests.support.broker_process import BrokerProcess
from tests.support.processes import poll_until
from tidemill.confluent.clients import Kafka
from tidemill.eventstore.errors import (
    CommitTooLargeError,
    EventStoreError,
    IndexMismatchError,
    OutcomeUnknownError,
    UnsuitableTopicError,
    VersionConflictError,
)
from tidemill.eventstore.events import NONE, Appended, NewEvent, StoredEvent
from tidemill.eventstore.log import Record
from tidemill.eventstore.store import Store


@pytest.fixture
def store(kafka: Kafka, topic: str) -> Iterator[Store]:
    with Store(kafka, topic) as opened:
        yield opened


def test_what_is_appended_is_read_by_another_store(kafka: Kafka, store: Store) -> None:
    event = NewEvent("opened", b"{}", metadata=b"why", tags=frozenset({"owner:1"}), schema=2)
    appended = store.append("account-1", [event, NewEvent("paid")], expected=NONE)
    assert (appended.positions, appended.versions) == (range(1, 3), {"account-1": 2})
    with Store(kafka, store.topic) as other:
        first, second = other.read("account-1")
        assert list(store.read_all()) == [first, second]
    assert first == StoredEvent(
        *("opened", b"{}", event.id, b"why", event.tags, 2, "account-1", 1, 1), first.time_ms
    )


def test_a_stale_version_is_refused_and_a_version_heard_from_another_process_is_not(
    kafka: Kafka, store: Store
) -> None:
    with Store(kafka, store.topic) as other:
        for number in range(20):
            assert store.append("s", [NewEvent("e")], expected=2 * number).versions == {
                "s": 2 * number + 1
            }
            assert other.append("s", [NewEvent("e")], expected=2 * number + 1).versions == {
                "s": 2 * number + 2
            }
    with pytest.raises(VersionConflictError):
        store.append("s", [NewEvent("e")], expected=39)
    assert [each.version for each in store.read("s", fresh=True)] == list(range(1, 41))


def test_a_follower_gets_the_past_and_what_comes_and_ends_when_it_is_closed(
    kafka: Kafka, store: Store
) -> None:
    store.append("s", [NewEvent("e") for _ in range(5)])
    followed: list[int] = []
    with Store(kafka, store.topic) as other:
        following = other.follow(after=2)
        reader = threading.Thread(target=lambda: followed.extend(e.position for e in following))
        reader.start()
        store.append("s", [NewEvent("e")])
        poll_until(lambda: followed == [3, 4, 5, 6], 30, "the follower has all")
        following.close()
        reader.join(30)
        assert not reader.is_alive()
        endless = other.follow(after=6)
        threading.Timer(0.05, other.close).start()
        assert list(endless) == []


@pytest.mark.parametrize(
    ("partitions", "configs", "why"),
    [
        (2, {"retention.ms": "-1"}, "2 partitions"),
        (1, {"retention.ms": "-1", "cleanup.policy": "compact"}, "cleanup.policy is compact"),
        (1, {}, "retention.ms is"),
        (1, {"retention.ms": "-1", "retention.bytes": "1000000"}, "retention.bytes is 1000000"),
    ],
)
def test_a_topic_that_can_lose_commits_is_refused(
    kafka: Kafka, topic: str, partitions: int, configs: dict[str, str], why: str
) -> None:
    kafka.create_topics("tests", {topic: (partitions, configs)})
    with pytest.raises(UnsuitableTopicError, match=why):
        Store(kafka, topic)


def test_a_missing_topic_is_not_created_if_that_is_not_wanted(kafka: Kafka, topic: str) -> None:
    with pytest.raises(UnsuitableTopicError):
        Store(kafka, topic, create=False)
    assert topic not in kafka.list_topics("tests")


def test_a_commit_larger_than_the_topic_takes_is_an_error_and_the_store_works_on(
    kafka: Kafka, topic: str
) -> None:
    with Store(kafka, topic, configs={"max.message.bytes": "10000"}) as store:
        with pytest.raises(CommitTooLargeError):
            store.append("s", [NewEvent("e", os.urandom(20_000))])
        assert store.append("s", [NewEvent("e", os.urandom(5_000))], expected=0).versions == {
            "s": 1
        }


def test_foreign_records_in_the_topic_are_void(kafka: Kafka, store: Store) -> None:
    producer = kafka.producer("tests")
    store.append("s", [NewEvent("e")])
    for value in (b"", b"anything", None, b"TMC\1" + bytes(40)):
        producer.produce(store.topic, value)
    assert producer.flush(30) == 0
    assert store.append("s", [NewEvent("e")], expected=1).positions == range(2, 3)


def test_transactions_of_others_in_the_topic_do_not_hold_up_the_store(
    kafka: Kafka, store: Store
) -> None:
    producer = kafka.producer("tests", transactional_id=store.topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(store.topic, b"foreign")
    producer.flush(30)
    store.append("s", [NewEvent("e")])
    producer.abort_transaction()
    store.catch_up()
    assert [each.position for each in store.read_all(fresh=True)] == [1]


def test_an_append_whose_outcome_is_unknown_can_be_repeated(
    kafka: Kafka, broker: BrokerProcess, topic: str
) -> None:
    event = NewEvent("e")
    with Store(kafka, topic, timeout_s=0.3) as hurried, Store(kafka, topic) as store:
        broker.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(OutcomeUnknownError):
                hurried.append("s", [event], expected=0)
        finally:
            broker.process.send_signal(signal.SIGCONT)
        poll_until(lambda: store.version("s") == 1, 30, "the commit is there")
        again = store.append("s", [event], expected=0)
    assert again == Appended(range(1, 2), {"s": 1}, repeated=True)


def test_a_closed_store_and_a_forked_one_say_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(EventStoreError, match="fork"):
        store.append("s", [NewEvent("e")])
    monkeypatch.undo()
    store.close()
    with pytest.raises(EventStoreError, match="closed"):
        store.append("s", [NewEvent("e")])


def test_threads_of_one_store_race_without_void_commits(kafka: Kafka, store: Store) -> None:
    """Those that lose are refused by the fold of their own process."""
    refused = itertools.count()

    def write() -> None:
        for _ in range(25):
            while True:
                try:
                    store.append("s", [NewEvent("e")], expected=store.version("s"))
                except VersionConflictError:
                    next(refused)
                else:
                    break

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.version("s") == 150
    assert next(refused) > 0
    assert kafka.end_offsets("tests", [(store.topic, 0)]) == {(store.topic, 0): 150}


def test_a_commit_that_no_topic_takes_is_refused_by_the_client(store: Store) -> None:
    with pytest.raises(CommitTooLargeError):
        store.append("s", [NewEvent("e", bytes(65 * 1024 * 1024))])
    assert store.append("s", [NewEvent("e")], expected=0).positions == range(1, 2)


def test_a_writer_whose_clock_is_wrong_is_told_and_does_not_try_again(
    kafka: Kafka, topic: str
) -> None:
    configs = {"message.timestamp.before.max.ms": "0"}  # any record is too old then
    with Store(kafka, topic, configs=configs) as store:
        with pytest.raises(EventStoreError, match="rejects the time") as refused:
            store.append("s", [NewEvent("e")])
        assert not isinstance(refused.value, OutcomeUnknownError)
        assert store.version("s") == 0


def test_a_fatal_error_of_the_client_reaches_those_that_use_the_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bare KafkaError, which is not an Exception."""

    def poll(timeout_s: float) -> NoReturn:
        raise KafkaError(KafkaError._FATAL)  # type: ignore[misc]

    monkeypatch.setattr(store._log, "poll", poll)
    poll_until(lambda: store.failure is not None, 10, "the store has failed")
    with pytest.raises(EventStoreError, match="client of the store failed"):
        store.append("s", [NewEvent("e")])


def test_a_topic_that_was_created_again_under_an_open_store_is_an_error(
    kafka: Kafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client follows the new log at the offset where the old one ended, without an error."""
    monkeypatch.setattr("tidemill.eventstore.log._IDENTITY_S", 0.0)
    with Store(kafka, topic, folder=tmp_path / "old") as store:
        store.append("s", [NewEvent("old")])
        poll = store._log.poll
        reads = threading.Event()

        def held(timeout_s: float) -> Iterator[Record]:
            reads.wait(30)
            return poll(timeout_s)

        monkeypatch.setattr(store._log, "poll", held)
        kafka.delete_topics("tests", [topic])
        poll_until(lambda: topic not in kafka.list_topics("tests"), 30, "the topic is deleted")
        with Store(kafka, topic, folder=tmp_path / "new") as other:
            for _ in range(3):
                other.append("s", [NewEvent("new")])
            reads.set()
            poll_until(lambda: store.failure is not None, 30, "the store notices it")
        assert isinstance(store.failure, IndexMismatchError)
        with pytest.raises(IndexMismatchError):
            store.append("s", [NewEvent("mixed")])


def test_a_store_does_not_create_its_topic_again_when_it_was_deleted(
    kafka: Kafka, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that a broker creates by itself has limits of retention, and loses commits."""
    monkeypatch.setattr("tidemill.eventstore.log._IDENTITY_S", 0.0)
    asked: list[bool] = []
    check = store._log._check_identity

    def counted() -> None:
        is_asked = store._log._asked is not None
        check()
        asked.append(is_asked)

    monkeypatch.setattr(store._log, "_check_identity", counted)
    kafka.delete_topics("tests", [store.topic])
    poll_until(lambda: store.topic not in kafka.list_topics("tests"), 30, "it is deleted")
    store._log._is_unsure = True
    asked.clear()
    poll_until(lambda: sum(asked) >= 6, 30, "the store has asked for its topic")
    assert store.topic not in kafka.list_topics("tests")
