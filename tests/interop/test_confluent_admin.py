"""confluent-kafka's admin client: topics, configs, groups, the cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from tests.interop.common import DEADLINE, wait_for
from tests.interop.conftest import MakeTopic
from tests.support.topics import write

BROKER_ID = "1"


def result(futures: dict[Any, Any]) -> Any:
    """The only future's result."""
    (future,) = futures.values()
    return future.result(DEADLINE)


def error_of(futures: dict[Any, Any]) -> int:
    """The code of the only future's error."""
    with pytest.raises(KafkaException) as caught:
        result(futures)
    code: int = caught.value.args[0].code()
    return code


def fill(bootstrap: str, topic: str, count: int) -> None:
    write(bootstrap, topic, *(b"%d" % number for number in range(count)), partition=0)


# --- topics --------------------------------------------------------------------------------------


def test_a_topic_lives_and_dies(admin: AdminClient, unique: Callable[[str], str]) -> None:
    name = unique("topic")
    result(admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "60000"})]))
    described = result(admin.describe_topics(TopicCollection([name])))
    assert described.name == name
    assert [p.id for p in described.partitions] == [0, 1]
    assert [p.leader.id for p in described.partitions] == [1, 1]
    assert error_of(admin.create_topics([NewTopic(name, 2, 1)])) == KafkaError.TOPIC_ALREADY_EXISTS
    result(admin.create_partitions([NewPartitions(name, 5)]))
    wait_for(lambda: len(admin.list_topics(name).topics[name].partitions) == 5, "5 partitions")
    assert error_of(admin.create_partitions([NewPartitions(name, 3)])) == (
        KafkaError.INVALID_PARTITIONS
    )
    result(admin.delete_topics([name]))
    wait_for(lambda: name not in admin.list_topics(timeout=60).topics, "the topic is gone")
    assert error_of(admin.delete_topics([name])) == KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("bad/name", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("no-partitions", 0, 1), KafkaError.INVALID_PARTITIONS),
        (NewTopic("replicas", 1, 3), KafkaError.INVALID_REPLICATION_FACTOR),
        (
            NewTopic("config", 1, 1, config={"retention.ms": "soon"}),
            KafkaError.INVALID_CONFIG,
        ),
        (NewTopic("config", 1, 1, config={"no.such.config": "1"}), KafkaError.INVALID_CONFIG),
    ],
)
def test_topics_that_can_not_be_made(admin: AdminClient, topic: NewTopic, code: int) -> None:
    assert error_of(admin.create_topics([topic])) == code


def test_validate_only_makes_nothing(admin: AdminClient, unique: Callable[[str], str]) -> None:
    name = unique("topic")
    result(admin.create_topics([NewTopic(name, 1, 1)], validate_only=True))
    assert name not in admin.list_topics(timeout=60).topics


def test_delete_records_moves_the_start(bootstrap: str, admin: AdminClient, topic: str) -> None:
    fill(bootstrap, topic, 10)
    partition = TopicPartition(topic, 0, 4)
    assert result(admin.delete_records([partition])).low_watermark == 4
    earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    assert result(admin.list_offsets({partition: earliest})).offset == 4
    beyond = TopicPartition(topic, 0, 99)
    assert error_of(admin.delete_records([beyond])) == KafkaError.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("compact", KafkaError.POLICY_VIOLATION), ("compact,delete", None), ("delete", None)],
)
def test_records_of_a_topic_that_is_only_compacted_are_not_deleted(
    bootstrap: str, admin: AdminClient, make_topic: MakeTopic, policy: str, expected: int | None
) -> None:
    topic = make_topic(**{"cleanup.policy": policy})
    write(bootstrap, topic, *((b"%d" % number, b"v") for number in range(10)))
    deletion = admin.delete_records([TopicPartition(topic, 0, 4)])
    if expected is None:
        assert result(deletion).low_watermark == 4
    else:
        assert error_of(deletion) == expected


def test_list_offsets_of_every_kind(bootstrap: str, admin: AdminClient, topic: str) -> None:
    for timestamp in (1000, 3000, 2000):
        write(bootstrap, topic, b"x", partition=0, timestamp=timestamp)
    partition = TopicPartition(topic, 0)

    def offset(spec: OffsetSpec) -> int:
        return int(result(admin.list_offsets({partition: spec})).offset)

    assert offset(OffsetSpec.earliest()) == 0  # type: ignore[no-untyped-call]
    assert offset(OffsetSpec.latest()) == 3  # type: ignore[no-untyped-call]
    assert offset(OffsetSpec.max_timestamp()) == 1  # type: ignore[no-untyped-call]
    assert offset(OffsetSpec.for_timestamp(1500)) == 1


# --- configs -------------------------------------------------------------------------------------


def configs_of(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    found: dict[str, ConfigEntry] = result(admin.describe_configs([ConfigResource(kind, name)]))
    return found


def test_topic_configs_are_told_with_their_source(
    admin: AdminClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(**{"retention.ms": "60000"})
    configs = configs_of(admin, ResourceType.TOPIC, topic)
    assert configs["retention.ms"].value == "60000"
    assert ConfigSource(configs["retention.ms"].source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert ConfigSource(configs["cleanup.policy"].source) is ConfigSource.DEFAULT_CONFIG
    assert configs["cleanup.policy"].value == "delete"
    assert configs["max.message.bytes"].value == "1048588"
    assert configs["segment.bytes"].value == "1073741824"


def test_topic_configs_are_altered_one_by_one(admin: AdminClient, make_topic: MakeTopic) -> None:
    topic = make_topic(**{"retention.ms": "60000"})

    def alter(name: str, value: str, operation: AlterConfigOpType) -> dict[Any, Any]:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        futures: dict[Any, Any] = admin.incremental_alter_configs([resource])
        return futures

    def value(name: str) -> str | None:
        found: str | None = configs_of(admin, ResourceType.TOPIC, topic)[name].value
        return found

    result(alter("segment.bytes", "1048576", AlterConfigOpType.SET))
    wait_for(lambda: value("segment.bytes") == "1048576", "the config is set")
    result(alter("cleanup.policy", "compact", AlterConfigOpType.APPEND))
    wait_for(lambda: value("cleanup.policy") == "delete,compact", "the policy is appended to")
    result(alter("retention.ms", "", AlterConfigOpType.DELETE))
    wait_for(lambda: value("retention.ms") == "604800000", "the default is back")
    bad = alter("retention.ms", "soon", AlterConfigOpType.SET)
    assert error_of(bad) == KafkaError.INVALID_CONFIG


def test_broker_configs(admin: AdminClient) -> None:
    configs = configs_of(admin, ResourceType.BROKER, BROKER_ID)
    assert configs["node.id"].value == BROKER_ID
    assert configs["node.id"].is_read_only
    assert "log.retention.hours" in configs or "log.retention.ms" in configs


# --- groups --------------------------------------------------------------------------------------


def test_a_group_is_listed_described_moved_and_deleted(
    bootstrap: str, admin: AdminClient, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic(partitions=2)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "client.id": "me"})
    consumer.subscribe([topic])
    wait_for(lambda: consumer.poll(0.1) is not None or consumer.assignment(), "an assignment")
    wait_for(lambda: (consumer.poll(0.1), len(consumer.assignment()))[1] == 2, "both partitions")
    (listed,) = [
        each
        for each in admin.list_consumer_groups(request_timeout=60).result(DEADLINE).valid
        if each.group_id == group
    ]
    assert listed.state is ConsumerGroupState.STABLE
    described = result(admin.describe_consumer_groups([group]))
    assert described.state is ConsumerGroupState.STABLE
    assert described.partition_assignor == "range"
    (member,) = described.members
    assert member.client_id == "me"
    assert sorted(p.partition for p in member.assignment.topic_partitions) == [0, 1]
    assert error_of(admin.delete_consumer_groups([group])) == KafkaError.NON_EMPTY_GROUP
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()

    move = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 1, 7)])
    wait_for(lambda: _moved(admin, move), "the offsets of the empty group are altered")
    stored = result(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
    assert {(p.partition, p.offset) for p in stored.topic_partitions} == {(0, 0), (1, 7)}
    result(admin.delete_consumer_groups([group]))
    assert error_of(admin.delete_consumer_groups([group])) == KafkaError.GROUP_ID_NOT_FOUND


def _moved(admin: AdminClient, move: ConsumerGroupTopicPartitions) -> bool:
    try:
        result(admin.alter_consumer_group_offsets([move]))
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_MEMBER_ID:
            raise
        return False  # the member is still leaving
    return True


def test_several_unknown_groups_are_answered_each(admin: AdminClient) -> None:
    futures = admin.delete_consumer_groups(["no-group-1", "no-group-2"])
    for future in futures.values():
        with pytest.raises(KafkaException) as caught:
            future.result(DEADLINE)
        assert caught.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND


# --- the cluster ---------------------------------------------------------------------------------


def test_the_cluster_is_described(admin: AdminClient) -> None:
    cluster = admin.describe_cluster(request_timeout=60).result(DEADLINE)
    assert cluster.cluster_id
    assert [node.id for node in cluster.nodes] == [1]
    assert cluster.controller is not None
    assert cluster.controller.id == 1
    metadata = admin.list_topics(timeout=60)
    assert list(metadata.brokers) == [1]


def test_access_control_is_off(admin: AdminClient) -> None:
    binding = AclBinding(
        ResourceType.TOPIC,
        "any",
        ResourcePatternType.LITERAL,
        "User:ann",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    assert error_of(admin.create_acls([binding])) == KafkaError.SECURITY_DISABLED


def test_there_are_no_scram_users(admin: AdminClient) -> None:
    users: Any = admin.describe_user_scram_credentials()
    assert users.result(DEADLINE) == {}


def test_an_election_is_not_needed(admin: AdminClient, make_topic: MakeTopic) -> None:
    partition = TopicPartition(make_topic(), 0)
    outcome = admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(DEADLINE)
    (error,) = outcome.values()
    assert error.code() == KafkaError.ELECTION_NOT_NEEDED
