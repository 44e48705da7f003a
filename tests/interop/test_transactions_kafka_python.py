"""kafka-python 3: transactions. It announces partitions itself, and knows the admin APIs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import AbortTransactionSpec, TransactionState
from kafka.errors import (
    CommitFailedError,
    KafkaError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumberError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
)
from kafka.structs import OffsetAndMetadata

from tests.interop.common import DEADLINE, wait_for
from tests.interop.conftest import MakeTopic
from tests.interop.test_kafka_python import consumer, send_numbers, take, values

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


@contextmanager
def transactional(bootstrap: str, name: str, **config: Any) -> Iterator[KafkaProducer]:
    """A producer that has fenced whoever had its name."""
    client = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name, **config)
    try:
        client.init_transactions()
        yield client
    finally:
        client.close(timeout=2)


def write(client: KafkaProducer, topic: str, numbers: range, partition: int = 0) -> None:
    futures = [client.send(topic, b"%d" % n, partition=partition) for n in numbers]
    client.flush(DEADLINE)
    for future in futures:
        future.get(DEADLINE)


def end(client: KafkaProducer, commit: bool) -> None:
    """Commit the open transaction, or abort it."""
    if commit:
        client.commit_transaction()
    else:
        client.abort_transaction()


def transact(client: KafkaProducer, topic: str, numbers: range, commit: bool = True) -> None:
    """Write numbers in a transaction of their own."""
    client.begin_transaction()
    write(client, topic, numbers)
    end(client, commit)


def read(bootstrap: str, topic: str, isolation: str, count: int, partition: int = 0) -> list[int]:
    with closing(consumer(bootstrap, isolation_level=isolation)) as client:
        tp = TopicPartition(topic, partition)
        client.assign([tp])
        client.seek_to_beginning(tp)
        return values(take(client, count))


@pytest.fixture
def operator(bootstrap: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as client:
        yield client


def stable_end(bootstrap: str, topic: str, isolation: str = COMMITTED) -> int:
    with closing(consumer(bootstrap, isolation_level=isolation)) as client:
        tp = TopicPartition(topic, 0)
        return int(client.end_offsets([tp])[tp])


def test_committed_is_read_and_aborted_is_not(bootstrap: str, txn_id: str, topic: str) -> None:
    with transactional(bootstrap, txn_id) as client:
        for start, commit in ((0, True), (100, False), (200, True)):
            transact(client, topic, range(start, start + 10), commit)
    assert read(bootstrap, topic, COMMITTED, 20) == [*range(10), *range(200, 210)]
    everything = [*range(10), *range(100, 110), *range(200, 210)]
    assert read(bootstrap, topic, UNCOMMITTED, 30) == everything


def test_open_transaction_holds_readers_of_committed_records_back(
    bootstrap: str, txn_id: str, topic: str
) -> None:
    with transactional(bootstrap, txn_id) as client:
        client.begin_transaction()
        write(client, topic, range(5))
        send_numbers(bootstrap, topic, range(100, 105))
        assert stable_end(bootstrap, topic) == 0
        assert stable_end(bootstrap, topic, UNCOMMITTED) == 10
        with closing(consumer(bootstrap, isolation_level=COMMITTED)) as reader:
            reader.assign([TopicPartition(topic, 0)])
            assert not reader.poll(500)
            client.commit_transaction()
            assert values(take(reader, 10)) == [*range(5), *range(100, 105)]


def test_large_transaction_over_several_partitions_is_whole(
    bootstrap: str, make_topic: MakeTopic, txn_id: str
) -> None:
    topic = make_topic(partitions=4)
    with transactional(bootstrap, txn_id, batch_size=2000) as client:
        for start, commit in ((10_000, False), (0, True)):
            client.begin_transaction()
            for number in range(1000):
                for partition in range(4):
                    client.send(topic, b"%d" % (start + number), partition=partition)
            client.flush(DEADLINE)
            end(client, commit)
    for partition in range(4):
        assert read(bootstrap, topic, COMMITTED, 1000, partition) == list(range(1000))


# --- consume, transform, produce -----------------------------------------------------------------


def members(client: KafkaConsumer) -> bool:
    client.poll(100)
    return bool(client.assignment())


def committed(bootstrap: str, group: str, topic: str) -> int | None:
    with closing(consumer(bootstrap, group_id=group)) as client:
        offset: int | None = client.committed(TopicPartition(topic, 0))
        return offset


def test_offsets_and_records_go_together(
    bootstrap: str, make_topic: MakeTopic, group: str, txn_id: str
) -> None:
    source, sink = make_topic(), make_topic()
    send_numbers(bootstrap, source, range(10))
    tp = TopicPartition(source, 0)
    with (
        transactional(bootstrap, txn_id) as client,
        closing(consumer(bootstrap, source, group_id=group, isolation_level=COMMITTED)) as reader,
    ):
        for commit in (False, True):
            records = take(reader, 10)
            client.begin_transaction()
            for number in values(records):
                client.send(sink, b"%d" % (number * 2))
            offsets = {tp: OffsetAndMetadata(records[-1].offset + 1, "here", -1)}
            client.send_offsets_to_transaction(offsets, reader.group_metadata())
            end(client, commit)
            if not commit:
                assert committed(bootstrap, group, source) is None
                reader.seek(tp, 0)
    assert committed(bootstrap, group, source) == 10
    assert read(bootstrap, sink, COMMITTED, 10) == [n * 2 for n in range(10)]


def test_member_of_an_older_generation_may_not_commit(
    bootstrap: str, make_topic: MakeTopic, group: str, txn_id: str
) -> None:
    source, sink = make_topic(), make_topic()
    offsets = {TopicPartition(source, 0): OffsetAndMetadata(1, "", -1)}
    with transactional(bootstrap, txn_id) as client:
        with closing(consumer(bootstrap, source, group_id=group)) as zombie:
            wait_for(lambda: members(zombie), "the group's first member")
            metadata = zombie.group_metadata()
        with closing(consumer(bootstrap, source, group_id=group)) as living:
            wait_for(lambda: members(living), "the group's second member")
            client.begin_transaction()
            write(client, sink, range(3))
            with pytest.raises(CommitFailedError):
                client.send_offsets_to_transaction(offsets, metadata)
            client.abort_transaction()
            client.begin_transaction()
            write(client, sink, range(7, 9))
            client.send_offsets_to_transaction(offsets, living.group_metadata())
            client.commit_transaction()
    assert committed(bootstrap, group, source) == 1
    assert read(bootstrap, sink, COMMITTED, 2) == [7, 8]


# --- errors and recovery -------------------------------------------------------------------------


def test_producer_with_the_same_id_takes_over(bootstrap: str, topic: str, txn_id: str) -> None:
    with transactional(bootstrap, txn_id) as zombie:
        zombie.begin_transaction()
        write(zombie, topic, range(5))
        with transactional(bootstrap, txn_id) as successor:
            with pytest.raises(ProducerFencedError):
                zombie.commit_transaction()
            transact(successor, topic, range(50, 53))
    assert read(bootstrap, topic, COMMITTED, 3) == [50, 51, 52]


def test_transaction_that_takes_too_long_is_aborted(
    bootstrap: str, topic: str, txn_id: str
) -> None:
    with transactional(bootstrap, txn_id, transaction_timeout_ms=1000) as client:
        client.begin_transaction()
        write(client, topic, range(5))
        wait_for(lambda: stable_end(bootstrap, topic) == 6, "the abort marker")
        with pytest.raises(ProducerFencedError):
            client.commit_transaction()
    with transactional(bootstrap, txn_id) as client:
        transact(client, topic, range(20, 23))
    assert read(bootstrap, topic, COMMITTED, 3) == [20, 21, 22]


def test_producer_goes_on_after_an_abort(
    bootstrap: str, make_topic: MakeTopic, txn_id: str
) -> None:
    """KIP-360: a record was refused, so the sequence has a gap; the next epoch heals it."""
    topic = make_topic(**{"max.message.bytes": "2000"})
    with transactional(bootstrap, txn_id) as client:
        client.begin_transaction()
        write(client, topic, range(3))
        lost = client.send(topic, b"x" * 5000, partition=0)
        with pytest.raises(MessageSizeTooLargeError):
            lost.get(DEADLINE)
        with pytest.raises(KafkaError):
            client.commit_transaction()
        client.abort_transaction()
        # The client meets the gap here, and asks for a new epoch, which aborts. From the answer on
        # until the new epoch is there, send() fails: so there is one record before the wait.
        wait_for(lambda: begins(client), "the transaction with the gap")
        with pytest.raises(OutOfOrderSequenceNumberError):
            write(client, topic, range(20, 21))
        wait_for(lambda: begins(client), "the new epoch")
        write(client, topic, range(20, 23))
        client.commit_transaction()
    assert read(bootstrap, topic, COMMITTED, 3) == [20, 21, 22]


def begins(client: KafkaProducer) -> bool:
    try:
        client.begin_transaction()
    except KafkaError:  # the new epoch is on its way
        time.sleep(0.02)
        return False
    return True


def test_timeout_above_the_brokers_limit_is_refused(bootstrap: str, txn_id: str) -> None:
    with (
        pytest.raises(KafkaError, match="InvalidTransactionTimeout"),
        transactional(bootstrap, txn_id, transaction_timeout_ms=900_001),
    ):
        raise AssertionError("it was accepted")


# --- operators -----------------------------------------------------------------------------------


def test_transaction_is_listed_and_described(
    bootstrap: str,
    operator: KafkaAdminClient,
    make_topic: MakeTopic,
    unique: Callable[[str], str],
    txn_id: str,
) -> None:
    topic = make_topic(partitions=3)
    with transactional(bootstrap, txn_id, transaction_timeout_ms=50_000) as client:
        client.begin_transaction()
        write(client, topic, range(3), partition=0)
        write(client, topic, range(3), partition=2)
        found = operator.describe_transactions([txn_id])[txn_id]
        assert found.state is TransactionState.ONGOING
        assert found.transaction_timeout_ms == 50_000
        assert found.transaction_start_time_ms > 0
        assert found.topic_partitions == {TopicPartition(topic, 0), TopicPartition(topic, 2)}
        assert states(operator)[txn_id] is TransactionState.ONGOING
        assert txn_id in states(operator, state_filters=["Ongoing"])
        assert txn_id not in states(operator, state_filters=["CompleteCommit"])
        assert set(states(operator, producer_id_filters=[found.producer_id])) == {txn_id}
        assert set(states(operator, transactional_id_pattern=f"{txn_id}.*")) == {txn_id}
        assert txn_id not in states(operator, duration_filter_ms=600_000)
        (active,) = producers(operator, topic, 2)
        assert (active.producer_id, active.producer_epoch) == (
            found.producer_id,
            found.producer_epoch,
        )
        assert (active.last_sequence, active.current_transaction_start_offset) == (2, 0)
        client.commit_transaction()
        # Apache Kafka answers a commit before the markers are written.
        complete = TransactionState.COMPLETE_COMMIT
        wait_for(lambda: states(operator)[txn_id] is complete, "the end")
        ended = operator.describe_transactions([txn_id])[txn_id]
        assert ended.state is complete
        assert ended.topic_partitions == set()
        assert producers(operator, topic, 2)[0].current_transaction_start_offset == -1
    with pytest.raises(TransactionalIdNotFoundError):
        operator.describe_transactions([unique("nobody")])


def states(operator: KafkaAdminClient, **filters: Any) -> dict[str, TransactionState]:
    listings = operator.list_transactions(**filters)
    return {each.transactional_id: each.state for found in listings.values() for each in found}


def producers(operator: KafkaAdminClient, topic: str, partition: int) -> list[Any]:
    tp = TopicPartition(topic, partition)
    return list(operator.describe_producers([tp])[tp].active_producers)


def test_operator_aborts_what_is_open_on_a_partition(
    bootstrap: str, operator: KafkaAdminClient, topic: str, txn_id: str
) -> None:
    with transactional(bootstrap, txn_id) as client:
        client.begin_transaction()
        write(client, topic, range(5))
        (active,) = producers(operator, topic, 0)
        spec = AbortTransactionSpec(
            TopicPartition(topic, 0), active.producer_id, active.producer_epoch
        )
        operator.abort_transaction(spec)
        assert stable_end(bootstrap, topic) == 6
        send_numbers(bootstrap, topic, range(70, 72))
        assert read(bootstrap, topic, COMMITTED, 2) == [70, 71]
        assert producers(operator, topic, 0)[0].current_transaction_start_offset == -1
        client.abort_transaction()
