"""kafka-python 3: produce, positions, groups, admin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError
from kafka.structs import OffsetAndMetadata

from tests.interop.common import (
    BASE_TIMESTAMP,
    CODECS,
    CONSUMER_DEFAULTS,
    DEADLINE,
    assert_same,
    sample_records,
    wait_for,
)
from tests.interop.conftest import MakeTopic


def consumer(bootstrap: str, *topics: str, **config: Any) -> KafkaConsumer:
    return KafkaConsumer(*topics, bootstrap_servers=bootstrap, **{**CONSUMER_DEFAULTS, **config})


def take(client: KafkaConsumer, count: int) -> list[Any]:
    """Poll until ``count`` records are there."""
    found: list[Any] = []

    def enough() -> bool:
        for batch in client.poll(timeout_ms=200).values():
            found.extend(batch)
        return len(found) >= count

    wait_for(enough, f"{count} records, got {len(found)}")
    return found


def values(records: list[Any]) -> list[int]:
    return [int(record.value) for record in records]


def send_numbers(bootstrap: str, topic: str, numbers: range, partition: int = 0) -> None:
    with closing(KafkaProducer(bootstrap_servers=bootstrap)) as producer:
        futures = [
            producer.send(
                topic, b"%d" % n, partition=partition, timestamp_ms=BASE_TIMESTAMP + n * 10
            )
            for n in numbers
        ]
        producer.flush(DEADLINE)
        for future in futures:
            future.get(DEADLINE)


@pytest.fixture
def hundred(bootstrap: str, make_topic: MakeTopic) -> str:
    topic = make_topic()
    send_numbers(bootstrap, topic, range(100))
    return topic


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_and_acks_comes_back_as_it_was(
    bootstrap: str, topic: str, codec: str, acks: Any
) -> None:
    records = sample_records(30)
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        acks=acks,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=False,
        linger_ms=20,
    )
    with closing(producer):
        for rec in records:
            producer.send(
                topic,
                rec.value,
                rec.key,
                list(rec.headers),
                partition=0,
                timestamp_ms=rec.timestamp,
            )
        producer.flush(DEADLINE)
    with closing(consumer(bootstrap)) as client:
        client.assign([TopicPartition(topic, 0)])
        found = take(client, len(records))
    assert_same(found, records)


def test_idempotent_produce(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, acks="all", batch_size=200
    )
    with closing(producer):
        for number in range(500):
            producer.send(topic, b"%d" % number, partition=number % 2)
        producer.flush(DEADLINE)
    with closing(consumer(bootstrap)) as client:
        client.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        found = take(client, 500)
    for partition in (0, 1):
        mine = [record for record in found if record.partition == partition]
        assert values(mine) == list(range(partition, 500, 2))


def test_a_batch_over_the_topics_limit_is_refused(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(**{"max.message.bytes": "2000"})
    with closing(KafkaProducer(bootstrap_servers=bootstrap)) as producer:
        assert producer.send(topic, b"x" * 1000).get(DEADLINE).offset == 0
        with pytest.raises(MessageSizeTooLargeError):
            producer.send(topic, b"x" * 3000).get(DEADLINE)


@pytest.mark.parametrize("offset", [0, 17, 99])
def test_consume_from_an_offset(bootstrap: str, hundred: str, offset: int) -> None:
    partition = TopicPartition(hundred, 0)
    with closing(consumer(bootstrap)) as client:
        client.assign([partition])
        client.seek(partition, offset)
        assert values(take(client, 100 - offset)) == list(range(offset, 100))


def test_consume_from_beginning_end_and_timestamp(bootstrap: str, hundred: str) -> None:
    partition = TopicPartition(hundred, 0)
    with closing(consumer(bootstrap)) as client:
        client.assign([partition])
        assert client.beginning_offsets([partition]) == {partition: 0}
        assert client.end_offsets([partition]) == {partition: 100}
        found = client.offsets_for_times({partition: BASE_TIMESTAMP + 165})[partition]
        assert (found.offset, found.timestamp) == (17, BASE_TIMESTAMP + 170)
        assert client.offsets_for_times({partition: BASE_TIMESTAMP + 10**7})[partition] is None
        client.seek(partition, found.offset)
        assert values(take(client, 83))[0] == 17
        client.seek_to_beginning(partition)
        assert values(take(client, 100))[0] == 0
        client.seek_to_end(partition)
        assert client.position(partition) == 100
        send_numbers(bootstrap, hundred, range(100, 101))
        assert values(take(client, 1)) == [100]


def test_consume_from_the_committed_offset(bootstrap: str, hundred: str, group: str) -> None:
    partition = TopicPartition(hundred, 0)
    with closing(consumer(bootstrap, group_id=group)) as client:
        client.assign([partition])
        client.commit({partition: OffsetAndMetadata(60, "note ü", -1)})
        committed = client.committed(partition, metadata=True)
        assert (committed.offset, committed.metadata) == (60, "note ü")
    with closing(consumer(bootstrap, hundred, group_id=group)) as client:
        assert values(take(client, 40)) == list(range(60, 100))


def assignments(clients: list[KafkaConsumer]) -> Iterator[set[int]]:
    for client in clients:
        client.poll(timeout_ms=50)
    for client in clients:
        yield {partition.partition for partition in client.assignment()}


def settle(clients: list[KafkaConsumer], shares: list[int]) -> None:
    def settled() -> bool:
        sets = list(assignments(clients))
        every = [p for one in sets for p in one]
        return sorted(map(len, sets)) == sorted(shares) and len(every) == len(set(every))

    wait_for(settled, f"shares {shares}")


def test_members_share_partitions_and_take_over_from_who_leaves(
    bootstrap: str, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic(partitions=4)
    with closing(consumer(bootstrap, topic, group_id=group)) as first:
        settle([first], [4])
        with closing(consumer(bootstrap, topic, group_id=group)) as second:
            settle([first, second], [2, 2])
        settle([first], [4])


def test_a_static_member_keeps_its_partitions(
    bootstrap: str, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic(partitions=4)
    with closing(consumer(bootstrap, topic, group_id=group, group_instance_id="a")) as first:
        second = consumer(bootstrap, topic, group_id=group, group_instance_id="b")
        settle([first, second], [2, 2])
        before = set(second.assignment())
        second.close()
        with closing(consumer(bootstrap, topic, group_id=group, group_instance_id="b")) as again:
            settle([first, again], [2, 2])
            assert set(again.assignment()) == before


@pytest.fixture
def kafka_admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as client:
        yield client


def test_admin_of_topics(kafka_admin: KafkaAdminClient, unique: Callable[[str], str]) -> None:
    name = unique("topic")
    kafka_admin.create_topics([NewTopic(name, 2, 1)])
    with pytest.raises(TopicAlreadyExistsError):
        kafka_admin.create_topics([NewTopic(name, 2, 1)])
    kafka_admin.create_partitions({name: NewPartitions(3)})
    wait_for(lambda: len(kafka_admin.describe_topics([name])[0]["partitions"]) == 3, "3 partitions")
    assert name in kafka_admin.list_topics()
    kafka_admin.delete_topics([name])
    wait_for(lambda: name not in kafka_admin.list_topics(), "the topic is gone")


def test_admin_of_configs_and_cluster(kafka_admin: KafkaAdminClient, make_topic: MakeTopic) -> None:
    topic = make_topic(**{"retention.ms": "1234567"})
    described = kafka_admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    assert "1234567" in str(described)
    cluster = kafka_admin.describe_cluster()
    assert [broker["broker_id"] for broker in cluster["brokers"]] == [1]
    assert topic in str(kafka_admin.describe_log_dirs())


def test_admin_of_groups(
    bootstrap: str, kafka_admin: KafkaAdminClient, hundred: str, group: str
) -> None:
    with closing(consumer(bootstrap, hundred, group_id=group)) as client:
        take(client, 100)
        client.commit()
        assert group in str(kafka_admin.list_groups())
        assert "Stable" in str(kafka_admin.describe_groups([group]))
    offsets = kafka_admin.list_group_offsets(group)
    assert "100" in str(offsets)
    kafka_admin.delete_groups([group])
    assert group not in str(kafka_admin.list_groups())
