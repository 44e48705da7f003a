"""confluent-kafka (librdkafka): transactions. It announces partitions itself (Produce v10)."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.interop.common import DEADLINE, wait_for
from tests.interop.conftest import MakeTopic
from tests.interop.test_confluent import consumer, take, values
from tests.support.librdkafka import ready_for_id

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


def transactional(bootstrap: str, name: str, **config: Any) -> Producer:
    """A producer that has fenced whoever had its name."""
    client = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "linger.ms": 2,
            "log_level": 0,
            **{key.replace("_", "."): value for key, value in config.items()},
        }
    )
    ready_for_id(client).init_transactions(DEADLINE)
    return client


def write(client: Producer, topic: str, numbers: range, partition: int = 0) -> None:
    for number in numbers:
        client.produce(topic, b"%d" % number, partition=partition)
    assert client.flush(DEADLINE) == 0


def end(client: Producer, commit: bool) -> None:
    """Commit the open transaction, or abort it."""
    if commit:
        client.commit_transaction(DEADLINE)
    else:
        client.abort_transaction(DEADLINE)


def transact(client: Producer, topic: str, numbers: range, commit: bool = True) -> None:
    """Write numbers in a transaction of their own."""
    client.begin_transaction()
    write(client, topic, numbers)
    end(client, commit)


def read(bootstrap: str, topic: str, isolation: str, count: int, partition: int = 0) -> list[int]:
    with consumer(bootstrap, isolation_level=isolation) as client:
        client.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        return values(take(client, count))


def end_of(admin: AdminClient, topic: str, isolation: IsolationLevel) -> int:
    """The offset at which a reader of this isolation level stands at the end."""
    tp = TopicPartition(topic, 0)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = admin.list_offsets({tp: latest}, isolation_level=isolation)
    return int(asked[tp].result(DEADLINE).offset)


def stable_end(admin: AdminClient, topic: str) -> int:
    return end_of(admin, topic, IsolationLevel.READ_COMMITTED)


def test_committed_is_read_and_aborted_is_not(bootstrap: str, txn_id: str, topic: str) -> None:
    client = transactional(bootstrap, txn_id)
    for start, commit in ((0, True), (100, False), (200, True), (300, False), (400, True)):
        transact(client, topic, range(start, start + 10), commit)
    wanted = [*range(10), *range(200, 210), *range(400, 410)]
    assert read(bootstrap, topic, COMMITTED, 30) == wanted
    everything = [n for start in range(0, 500, 100) for n in range(start, start + 10)]
    assert read(bootstrap, topic, UNCOMMITTED, 50) == everything


def test_open_transaction_holds_readers_of_committed_records_back(
    bootstrap: str, admin: AdminClient, txn_id: str, topic: str
) -> None:
    client = transactional(bootstrap, txn_id)
    client.begin_transaction()
    write(client, topic, range(5))
    other = Producer({"bootstrap.servers": bootstrap})
    write(other, topic, range(100, 105))
    assert read(bootstrap, topic, UNCOMMITTED, 10) == [*range(5), *range(100, 105)]
    assert stable_end(admin, topic) == 0
    assert end_of(admin, topic, IsolationLevel.READ_UNCOMMITTED) == 10
    with consumer(bootstrap, isolation_level=COMMITTED) as reader:
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        assert reader.poll(0.5) is None
        client.commit_transaction(DEADLINE)
        assert values(take(reader, 10)) == [*range(5), *range(100, 105)]
    assert stable_end(admin, topic) == 11


def test_large_transaction_over_several_partitions_is_whole(
    bootstrap: str, make_topic: MakeTopic, txn_id: str
) -> None:
    topic = make_topic(partitions=5)
    client = transactional(bootstrap, txn_id, batch_size=2000)
    for start, commit in ((10_000, False), (0, True)):
        client.begin_transaction()
        for partition in range(5):
            write(client, topic, range(start, start + 2000), partition)
        end(client, commit)
    for partition in range(5):
        found = read(bootstrap, topic, COMMITTED, 2000, partition)
        assert found == list(range(2000))


# --- consume, transform, produce -----------------------------------------------------------------


def members(client: Consumer) -> bool:
    client.poll(0.1)
    return len(client.assignment()) > 0


def committed(bootstrap: str, group: str, topic: str) -> int:
    with consumer(bootstrap, group) as client:
        (position,) = client.committed([TopicPartition(topic, 0)], timeout=DEADLINE)
        return int(position.offset)


def test_offsets_and_records_go_together(
    bootstrap: str, make_topic: MakeTopic, group: str, txn_id: str
) -> None:
    source, sink = make_topic(), make_topic()
    write(Producer({"bootstrap.servers": bootstrap}), source, range(20))
    client = transactional(bootstrap, txn_id)
    with consumer(bootstrap, group, isolation_level=COMMITTED) as reader:
        reader.subscribe([source])
        for commit in (False, True):
            messages = take(reader, 10)
            client.begin_transaction()
            for number in values(messages):
                client.produce(sink, b"%d" % (number * 2))
            client.send_offsets_to_transaction(
                reader.position(reader.assignment()), reader.consumer_group_metadata(), DEADLINE
            )
            end(client, commit)
            if not commit:
                assert committed(bootstrap, group, source) < 0
                reader.seek(TopicPartition(source, 0, 0))
    assert committed(bootstrap, group, source) == 10
    assert read(bootstrap, sink, COMMITTED, 10) == [n * 2 for n in range(10)]


def test_member_of_an_older_generation_may_not_commit(
    bootstrap: str, make_topic: MakeTopic, group: str, txn_id: str
) -> None:
    """KIP-447: a zombie consumer is fenced, its producer may go on after an abort."""
    source, sink = make_topic(), make_topic()
    client = transactional(bootstrap, txn_id)
    with consumer(bootstrap, group) as zombie:
        zombie.subscribe([source])
        wait_for(lambda: members(zombie), "the group's first member")
        metadata = zombie.consumer_group_metadata()
    with consumer(bootstrap, group) as living:
        living.subscribe([source])
        wait_for(lambda: members(living), "the group's second member")
        client.begin_transaction()
        write(client, sink, range(3))
        offsets = [TopicPartition(source, 0, 1)]
        with pytest.raises(KafkaException) as refused:
            client.send_offsets_to_transaction(offsets, metadata, DEADLINE)
        error = refused.value.args[0]
        assert error.txn_requires_abort()
        assert error.code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION)
        client.abort_transaction(DEADLINE)
        client.begin_transaction()
        write(client, sink, range(7, 9))
        offsets = [TopicPartition(source, 0, 2)]
        client.send_offsets_to_transaction(offsets, living.consumer_group_metadata(), DEADLINE)
        client.commit_transaction(DEADLINE)
    assert committed(bootstrap, group, source) == 2
    assert read(bootstrap, sink, COMMITTED, 2) == [7, 8]


# --- errors and recovery -------------------------------------------------------------------------


def test_producer_with_the_same_id_takes_over(bootstrap: str, topic: str, txn_id: str) -> None:
    zombie = transactional(bootstrap, txn_id)
    zombie.begin_transaction()
    write(zombie, topic, range(5))
    successor = transactional(bootstrap, txn_id)
    with pytest.raises(KafkaException) as refused:
        zombie.commit_transaction(DEADLINE)
    error = refused.value.args[0]
    assert (error.fatal(), error.code()) == (True, KafkaError._FENCED)
    transact(successor, topic, range(50, 53))
    assert read(bootstrap, topic, COMMITTED, 3) == [50, 51, 52]


def test_late_write_of_a_fenced_producer_is_refused(
    bootstrap: str, admin: AdminClient, topic: str, txn_id: str
) -> None:
    zombie = transactional(bootstrap, txn_id)
    zombie.begin_transaction()
    write(zombie, topic, range(5))
    successor = transactional(bootstrap, txn_id)
    ended = stable_end(admin, topic)
    assert ended == 6
    with pytest.raises(KafkaException) as refused:
        write(zombie, topic, range(99, 100))
    assert refused.value.args[0].code() == KafkaError._FENCED
    assert end_of(admin, topic, IsolationLevel.READ_UNCOMMITTED) == ended
    successor.begin_transaction()
    successor.abort_transaction(DEADLINE)


def test_transaction_that_takes_too_long_is_aborted(
    bootstrap: str, admin: AdminClient, topic: str, txn_id: str
) -> None:
    client = transactional(bootstrap, txn_id, transaction_timeout_ms=1000)
    client.begin_transaction()
    write(client, topic, range(5))
    wait_for(lambda: stable_end(admin, topic) == 6, "the abort marker")
    with pytest.raises(KafkaException) as refused:
        client.commit_transaction(DEADLINE)
    error = refused.value.args[0]
    assert (error.fatal(), error.code()) == (True, KafkaError._FENCED)
    # Recovery: a new producer of the same name.
    client = transactional(bootstrap, txn_id)
    transact(client, topic, range(20, 23))
    assert read(bootstrap, topic, COMMITTED, 3) == [20, 21, 22]


def test_producer_goes_on_after_an_abort(
    bootstrap: str, make_topic: MakeTopic, txn_id: str
) -> None:
    """KIP-360: a record was refused, so the sequence has a gap; the next epoch heals it."""
    topic = make_topic(**{"max.message.bytes": "2000"})
    client = transactional(bootstrap, txn_id)
    failed: list[KafkaError | None] = []
    client.begin_transaction()
    write(client, topic, range(3))
    client.produce(
        topic, b"x" * 5000, partition=0, on_delivery=lambda error, _: failed.append(error)
    )
    client.flush(DEADLINE)
    assert [error and error.code() for error in failed] == [KafkaError.MSG_SIZE_TOO_LARGE]
    with pytest.raises(KafkaException) as refused:
        client.commit_transaction(DEADLINE)
    assert refused.value.args[0].txn_requires_abort()
    client.abort_transaction(DEADLINE)
    # librdkafka meets the gap here, and asks for a new epoch when this is aborted too.
    assert [attempt(client, topic, range(20, 23)) for _ in range(2)] == [False, True]
    assert read(bootstrap, topic, COMMITTED, 3) == [20, 21, 22]


def attempt(client: Producer, topic: str, numbers: range) -> bool:
    """One transaction; aborted where the client asks for that."""
    try:
        transact(client, topic, numbers)
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        client.abort_transaction(DEADLINE)
        return False
    return True


def test_timeout_above_the_brokers_limit_is_refused(bootstrap: str, txn_id: str) -> None:
    with pytest.raises(KafkaException) as refused:
        transactional(bootstrap, txn_id, transaction_timeout_ms=900_001)
    assert refused.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT
