"""Access control: every public method of every part asks the authorizer first."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from tests.engine.support import entered, query, results_of, running, write
from tests.engine.transactions.support import Producer
from tests.support.faultyfs import FaultyFileSystem
from tidemill.engine import door as parts_of_the_door
from tidemill.engine.api import (
    AlterOp,
    CommitRequest,
    CommittedOffset,
    ConfigChange,
    Durability,
    InitProducer,
    JoinRequest,
    LeaveMember,
    NewTopic,
    OffsetToCommit,
    Position,
    ProducerIdentity,
    ReadResult,
    SyncRequest,
    TopicInfo,
    TransactionVersion,
    TxnOffsetCommit,
)
from tidemill.engine.authorize import (
    ANONYMOUS,
    CLUSTER,
    EXCHANGE,
    GROUP,
    TOPIC,
    TRANSACTIONAL_ID,
    UNRESTRICTED,
    Access,
    AllowAll,
    Authorizer,
    Operation,
    Principal,
    Resource,
    ResourceKind,
)
from tidemill.engine.door import Door
from tidemill.engine.engine import Engine
from tidemill.engine.errors import (
    AuthorizationError,
    ClusterAuthorizationError,
    GroupAuthorizationError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)
from tidemill.engine.queues.api import ConsumerSpec, ExchangeSpec, Message, Owner, QueueSpec
from tidemill.engine.shares.api import ShareQuery
from tidemill.log.format.markers import Marker
from tidemill.log.names import TopicPartition
from tidemill.state.catalog.catalog import Catalog
from tidemill.state.consumer_groups.types import ConsumerHeartbeat
from tidemill.state.security.types import QuotaEntity
from tidemill.state.share_groups.types import ShareHeartbeat

Op = Operation
ALICE = Principal("alice")
PARTS = (
    *("records", "topics", "configs", "groups", "transactions", "storage", "queues", "shares"),
    "security",
)


class Gate(Authorizer):
    """An authorizer that allows what ``denied`` does not match. It notes all questions."""

    def __init__(self) -> None:
        self.denied: Callable[[Operation, Resource], bool] = lambda *_: False
        self.questions: list[tuple[Principal, Operation, Resource]] = []
        self.allows_any = False

    def authorize(
        self, principal: Principal, operation: Operation, resource: Resource, host: str = ""
    ) -> bool:
        self.questions.append((principal, operation, resource))
        return not self.denied(operation, resource)

    def authorize_any(
        self, principal: Principal, operation: Operation, kind: ResourceKind, host: str = ""
    ) -> bool:
        return self.allows_any


def deny_all(*_: object) -> bool:
    return True


def commit(*topics: str) -> CommitRequest:
    return CommitRequest("g", -1, "", None, tuple(OffsetToCommit(t, 0, 1) for t in topics))


JOIN = JoinRequest("g", "", None, "c", "h", 10_000, 10_000, "consumer", (("range", b""),), False)
SYNC = SyncRequest("g", 1, "m", None, None, None, ())
ME = ProducerIdentity(0, 0)
MARKER = Marker(0, 0, commit=False)
V2 = TransactionVersion.V2
CHANGES = [ConfigChange("retention.ms", AlterOp.SET, "5")]
BROKER_CHANGES = [ConfigChange("log.retention.ms", AlterOp.SET, "5")]

A, B = ("a", 0, 0), ("b", 0, 0)
T = Resource(TOPIC, "a")
G = Resource(GROUP, "g")
X = Resource(TRANSACTIONAL_ID, "x")
C = Resource(CLUSTER)
E = Resource(EXCHANGE, "x")
OWNER = Owner("alice")
RECIPIENT: Any = None
NO_QUESTIONS = {
    *("queues.connection_closed", "queues.names", "queues.stored", "queues.version"),
    *("records.append_run", "records.hold_ms", "records.read_now"),
}
"""A connection can always end. Whether a producer must wait is asked after a write. ``read_now``
reads and ``append_run`` appends only where no access is checked. What lists
names of queues asks about each of them afterwards."""
GROUP_CHANGES = [ConfigChange("consumer.session.timeout.ms", AlterOp.SET, "40000")]


def topic_id(door: Door) -> UUID:
    catalog, _ = door.topics._cores
    assert isinstance(catalog, Catalog)
    return catalog.topic("a").topic_id


def publish(publisher: Any) -> Any:
    return publisher.publish(1, "", "a", Message(b"v"))


class Row(NamedTuple):
    """A call, and a question that it asks."""

    operation: Operation
    resource: Resource
    arguments: Sequence[Any]
    named: Mapping[str, Any]
    then: Callable[[Any], Any]


def asks(
    operation: Operation,
    resource: Resource,
    *arguments: Any,
    then: Callable[[Any], Any] = lambda result: result,
    **named: Any,
) -> Row:
    """Return the row of a call with these arguments; one that is a function gets the door.

    Args:
        then: is called with the result.
    """
    return Row(operation, resource, arguments, named, then)


CALLS: dict[str, Row] = {
    "records.append": asks(Op.WRITE, T, [write("a", b"v")]),
    "records.read": asks(Op.READ, T, query(A, wait_ms=60_000)),
    "records.find_offset": asks(Op.DESCRIBE, T, "a", 0, Position.LATEST),
    "records.find_now": asks(Op.DESCRIBE, T, "a", [(0, Position.LATEST, None)]),
    "records.is_awaited": asks(Op.DESCRIBE, T, "a", 0),
    "records.delete_before": asks(Op.DELETE, T, "a", 0, None),
    "records.end_of_epoch": asks(Op.DESCRIBE, T, "a", 0, 0),
    "records.producers": asks(Op.READ, T, "a", 0),
    "topics.get": asks(Op.DESCRIBE, T, "a"),
    "topics.by_id": asks(Op.DESCRIBE, T, topic_id),
    "topics.all": asks(Op.DESCRIBE, T),
    "topics.check_partition": asks(Op.DESCRIBE, T, "a", 0),
    "topics.check_alterable": asks(Op.ALTER, C, "a", 0),
    "topics.ensure": asks(Op.DESCRIBE, Resource(TOPIC, "new"), "new"),
    "topics.create": asks(Op.CREATE, Resource(TOPIC, "new"), [NewTopic("new", 1)]),
    "topics.delete": asks(Op.DELETE, T, ["a"]),
    "topics.add_partitions": asks(Op.ALTER, T, "a", 2),
    "configs.of_topic": asks(Op.DESCRIBE_CONFIGS, T, "a"),
    "configs.of_new_topic": asks(Op.DESCRIBE_CONFIGS, T, "a", {}),
    "configs.of_broker": asks(Op.DESCRIBE_CONFIGS, C),
    "configs.alter_topic": asks(Op.ALTER_CONFIGS, T, "a", CHANGES),
    "configs.replace_topic": asks(Op.ALTER_CONFIGS, T, "a", {}),
    "configs.alter_broker": asks(Op.ALTER_CONFIGS, C, BROKER_CHANGES),
    "configs.replace_broker": asks(Op.ALTER_CONFIGS, C, {}),
    "configs.of_group": asks(Op.DESCRIBE_CONFIGS, G, "g"),
    "configs.groups": asks(Op.DESCRIBE_CONFIGS, G),
    "configs.alter_group": asks(Op.ALTER_CONFIGS, G, "g", GROUP_CHANGES),
    "configs.replace_group": asks(Op.ALTER_CONFIGS, G, "g", {}),
    "groups.consumer_heartbeat": asks(Op.READ, G, ConsumerHeartbeat("g", "m", 0, "c", "h")),
    "groups.check_fetch": asks(Op.DESCRIBE, G, "g", "m", 1),
    "groups.describe_consumer_group": asks(Op.DESCRIBE, G, "g"),
    "groups.share_heartbeat": asks(Op.READ, G, ShareHeartbeat("g", "m", 0, "c", "h")),
    "groups.describe_share_group": asks(Op.DESCRIBE, G, "g"),
    "shares.lock_ms": asks(Op.READ, G, "g"),
    "shares.fetch": asks(Op.READ, G, ShareQuery("g", "m", [], 60_000, 1, 1)),
    "shares.acknowledge": asks(Op.READ, G, "g", "m", []),
    "shares.leave": asks(Op.READ, G, "g", "m"),
    "shares.offsets": asks(Op.DESCRIBE, G, "g", None),
    "shares.alter_offsets": asks(Op.READ, G, "g", {("a", 0): 1}),
    "shares.delete_offsets": asks(Op.DELETE, G, "g", ["a"]),
    "groups.join": asks(Op.READ, G, JOIN),
    "groups.sync": asks(Op.READ, G, SYNC),
    "groups.heartbeat": asks(Op.READ, G, "g", 1, "m", None),
    "groups.leave": asks(Op.READ, G, "g", [LeaveMember("m")]),
    "groups.commit": asks(Op.READ, G, commit("a")),
    "groups.committed": asks(Op.DESCRIBE, G, "g", [("a", 0)]),
    "groups.positions": asks(Op.DESCRIBE, G, "g"),
    "groups.delete_offsets": asks(Op.DELETE, G, "g", [("a", 0)]),
    "groups.listings": asks(Op.DESCRIBE, G),
    "groups.describe": asks(Op.DESCRIBE, G, "g"),
    "groups.delete": asks(Op.DELETE, G, "g"),
    "transactions.new_producer": asks(Op.IDEMPOTENT_WRITE, C),
    "transactions.init": asks(Op.WRITE, X, InitProducer("x", 60_000)),
    "transactions.add_partitions": asks(Op.WRITE, X, "x", ME, [("a", 0)]),
    "transactions.verify_partitions": asks(Op.WRITE, X, "x", ME, [("a", 0)]),
    "transactions.add_group": asks(Op.WRITE, X, "x", ME, "g"),
    "transactions.commit_offsets": asks(Op.WRITE, X, TxnOffsetCommit("x", ME, commit("a"), V2)),
    "transactions.end": asks(Op.WRITE, X, "x", ME, True, V2),
    "transactions.listings": asks(Op.DESCRIBE, X),
    "transactions.describe": asks(Op.DESCRIBE, X, "x"),
    "transactions.write_markers": asks(Op.CLUSTER_ACTION, C, [(MARKER, [TopicPartition("a", 0)])]),
    "queues.publisher": asks(Op.WRITE, Resource(EXCHANGE, "amq.default"), None, then=publish),
    "queues.consume": asks(Op.READ, T, "a", ConsumerSpec("t", OWNER), RECIPIENT),
    "queues.get": asks(Op.READ, T, "a", OWNER, no_ack=True),
    "queues.declare_exchange": asks(Op.CREATE, E, "x", ExchangeSpec("direct")),
    "queues.delete_exchange": asks(Op.DELETE, E, "x"),
    "queues.bind_exchange": asks(Op.READ, E, "x", "amq.topic", "k", {}),
    "queues.unbind_exchange": asks(Op.READ, E, "x", "amq.topic", "k", {}),
    "queues.declare_queue": asks(Op.CREATE, T, "a", QueueSpec(), OWNER),
    "queues.delete_queue": asks(Op.DELETE, T, "a", OWNER),
    "queues.purge": asks(Op.READ, T, "a", OWNER),
    "queues.bind": asks(Op.WRITE, T, "a", "x", "k", {}, OWNER),
    "queues.unbind": asks(Op.WRITE, T, "a", "x", "k", {}, OWNER),
    "queues.describe": asks(Op.DESCRIBE, T, "a"),
    "queues.queues": asks(Op.DESCRIBE, T),
    "queues.exchanges": asks(Op.DESCRIBE, Resource(EXCHANGE, "amq.direct")),
    "queues.bindings": asks(Op.DESCRIBE, Resource(EXCHANGE, "amq.direct")),
    "security.users": asks(Op.DESCRIBE, C),
    "security.alter_users": asks(Op.ALTER, C, [], {}),
    "security.rules": asks(Op.DESCRIBE, C),
    "security.rules_to_delete": asks(Op.ALTER, C),
    "security.create_rules": asks(Op.ALTER, C, []),
    "security.delete_rules": asks(Op.ALTER, C, []),
    "security.quotas": asks(Op.DESCRIBE_CONFIGS, C),
    "security.alter_quota": asks(Op.ALTER_CONFIGS, C, QuotaEntity("a"), {}),
    "security.permissions": asks(Op.DESCRIBE, C),
    "security.set_permission": asks(Op.ALTER, C, "a", None),
    "security.set_topic_permission": asks(Op.ALTER, C, "a", "x", None),
    "storage.usage": asks(Op.DESCRIBE, C),
    "storage.catalog_log": asks(Op.DESCRIBE, C),
}
"""part.method -> arguments, and a question that it asks."""


async def outcome(door: Door, method: str, *arguments: Any) -> Any:
    """Return the result of a call, or the AuthorizationError that it raises.

    Args:
        arguments: default: those of the table.
    """
    part, name = method.split(".")
    row = CALLS[method]
    given = [each(door) if callable(each) else each for each in arguments or row.arguments]
    try:
        result = row.then(getattr(getattr(door, part), name)(*given, **row.named))
        result = await result if inspect.isawaitable(result) else result
        return list(result) if isinstance(result, Iterator) else result
    except AuthorizationError as error:
        return error


def is_denied(result: Any) -> bool:
    """Whether the result shows nothing but errors."""
    if isinstance(result, list):
        return all(is_denied(each) for each in result)
    if isinstance(result, ReadResult):
        return isinstance(result.error, AuthorizationError)
    return isinstance(result, AuthorizationError)


@contextlib.asynccontextmanager
async def filled(gate: Gate) -> AsyncIterator[Engine]:
    """Run a broker with topics ``a`` and ``b``, group ``g`` and transactional id ``x``."""
    async with running(fs=FaultyFileSystem(), authorizer=gate) as engine:
        await engine.topics.create([NewTopic("a", 1), NewTopic("b", 1)])
        await engine.groups.commit(commit("a", "b"))
        await engine.configs.alter_group("g", GROUP_CHANGES)
        producer = await Producer(engine).init()
        await producer.send("a", b"first")
        await producer.send("b", b"first")
        await engine.queues.declare_queue("a", QueueSpec(), OWNER)
        await engine.queues.bind("a", "amq.direct", "k", {}, OWNER)
        gate.questions.clear()
        yield engine


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def engine(loop_runner: asyncio.Runner, gate: Gate) -> Iterator[Engine]:
    yield from entered(loop_runner, filled(gate))


@pytest.fixture
def door(engine: Engine) -> Door:
    return engine.door(ALICE)


# --- every method --------------------------------------------------------------------------------


def table() -> dict[str, set[tuple[Operation, ResourceKind]]]:
    """Return the questions of every public method of the door; a method without a row fails."""
    return {
        f"{part}.{name}": {(each.operation, each.kind) for each in member.questions}
        for part in PARTS
        for name, member in vars(getattr(parts_of_the_door, part.capitalize())).items()
        if not name.startswith("_") and not isinstance(member, property)
    }


async def test_every_public_method_of_every_part_is_in_the_table() -> None:
    assert set(table()) == set(CALLS) | NO_QUESTIONS
    assert set(PARTS) == set(Door.__slots__) - {"access", "clock", "quotas", "settings"}


KAFKA = """\
Produce: records.append: WRITE TOPIC, WRITE TRANSACTIONAL_ID
Fetch: records.read: READ TOPIC
ListOffsets: records.find_offset: DESCRIBE TOPIC
ListOffsets of first and latest ones: records.find_now: DESCRIBE TOPIC
OffsetForLeaderEpoch: records.end_of_epoch: DESCRIBE TOPIC
DeleteRecords: records.delete_before: DELETE TOPIC
DescribeProducers: records.producers: READ TOPIC
Metadata: topics.get: DESCRIBE TOPIC
Metadata of all topics: topics.all: DESCRIBE TOPIC
Metadata that creates a topic: topics.ensure: CREATE TOPIC, DESCRIBE TOPIC
CreateTopics: topics.create: CREATE TOPIC
DeleteTopics: topics.delete: DELETE TOPIC
CreatePartitions: topics.add_partitions: ALTER TOPIC
DescribeConfigs of a topic: configs.of_topic: DESCRIBE_CONFIGS TOPIC
DescribeConfigs of a broker: configs.of_broker: DESCRIBE_CONFIGS CLUSTER
DescribeConfigs of a group: configs.of_group: DESCRIBE_CONFIGS GROUP
AlterConfigs of a topic: configs.replace_topic: ALTER_CONFIGS TOPIC
AlterConfigs of a broker: configs.replace_broker: ALTER_CONFIGS CLUSTER
IncrementalAlterConfigs of a topic: configs.alter_topic: ALTER_CONFIGS TOPIC
IncrementalAlterConfigs of a group: configs.alter_group: ALTER_CONFIGS GROUP
IncrementalAlterConfigs of a broker: configs.alter_broker: ALTER_CONFIGS CLUSTER
JoinGroup: groups.join: READ GROUP
SyncGroup: groups.sync: READ GROUP
Heartbeat: groups.heartbeat: READ GROUP
LeaveGroup: groups.leave: READ GROUP
ConsumerGroupHeartbeat: groups.consumer_heartbeat: DESCRIBE TOPIC, READ GROUP
ShareGroupHeartbeat: groups.share_heartbeat: DESCRIBE TOPIC, READ GROUP
OffsetCommit: groups.commit: READ GROUP, READ TOPIC
OffsetFetch: groups.committed: DESCRIBE GROUP, DESCRIBE TOPIC
OffsetDelete: groups.delete_offsets: DELETE GROUP, READ TOPIC
ListGroups: groups.listings: DESCRIBE GROUP
DescribeGroups: groups.describe: DESCRIBE GROUP
ConsumerGroupDescribe: groups.describe_consumer_group: DESCRIBE GROUP, DESCRIBE TOPIC
ShareGroupDescribe: groups.describe_share_group: DESCRIBE GROUP, DESCRIBE TOPIC
DeleteGroups: groups.delete: DELETE GROUP
InitProducerId: transactions.init: WRITE TRANSACTIONAL_ID
AddPartitionsToTxn: transactions.add_partitions: WRITE TOPIC, WRITE TRANSACTIONAL_ID
AddOffsetsToTxn: transactions.add_group: READ GROUP, WRITE TRANSACTIONAL_ID
TxnOffsetCommit: transactions.commit_offsets: READ GROUP, READ TOPIC, WRITE TRANSACTIONAL_ID
EndTxn: transactions.end: WRITE TRANSACTIONAL_ID
WriteTxnMarkers: transactions.write_markers: CLUSTER_ACTION CLUSTER
ListTransactions: transactions.listings: DESCRIBE TRANSACTIONAL_ID
DescribeTransactions: transactions.describe: DESCRIBE TOPIC, DESCRIBE TRANSACTIONAL_ID
DescribeQuorum: storage.catalog_log: DESCRIBE CLUSTER
ShareFetch: shares.fetch: READ GROUP, READ TOPIC
ShareAcknowledge: shares.acknowledge: READ GROUP, READ TOPIC
DescribeShareGroupOffsets: shares.offsets: DESCRIBE GROUP, DESCRIBE TOPIC
AlterShareGroupOffsets: shares.alter_offsets: READ GROUP, READ TOPIC
DeleteShareGroupOffsets: shares.delete_offsets: DELETE GROUP, READ TOPIC
"""
"""The rules of Apache Kafka's documentation: its API, the method of the door, operations."""


@pytest.mark.parametrize("rule", KAFKA.splitlines())
def test_a_row_has_the_rules_of_apache_kafka(rule: str) -> None:
    _, method, operations = rule.split(": ")
    asked = {f"{operation.name} {kind.name}" for operation, kind in table()[method]}
    assert asked == set(operations.split(", "))


def ends(engine: Engine) -> dict[TopicPartition, int]:
    return {tp: log.log_end_offset for tp, log in engine._store.partitions.items()}


async def test_a_denying_authorizer_stops_each_call(engine: Engine, door: Door, gate: Gate) -> None:
    before = ends(engine)
    gate.denied = deny_all
    for method, row in CALLS.items():
        gate.questions.clear()
        async with asyncio.timeout(300):
            assert is_denied(await outcome(door, method)), method
        assert (ALICE, row.operation, row.resource) in gate.questions, method
        assert (row.operation, row.resource.kind) in table()[method]
        assert ends(engine) == before, method


ALL_BUT_TOPICS = set(ResourceKind) - {TOPIC}


@pytest.mark.parametrize(
    ("denied", "method", "error"),
    [
        (ALL_BUT_TOPICS, "records.append", TransactionalIdAuthorizationError),
        (ALL_BUT_TOPICS, "groups.commit", GroupAuthorizationError),
        (ALL_BUT_TOPICS, "storage.usage", ClusterAuthorizationError),
        ({GROUP}, "transactions.add_group", GroupAuthorizationError),
        ({GROUP}, "transactions.commit_offsets", GroupAuthorizationError),
    ],
)
async def test_one_denied_resource_of_several_stops_the_call(
    door: Door, gate: Gate, denied: set[ResourceKind], method: str, error: type[AuthorizationError]
) -> None:
    gate.denied = lambda _, resource: resource.kind in denied
    arguments = [[], Durability.SYNCED, "x"] if method == "records.append" else []
    assert type(await outcome(door, method, *arguments)) is error


# --- one of several ------------------------------------------------------------------------------


def deny_topic_b(_: Operation, resource: Resource) -> bool:
    return resource == Resource(TOPIC, "b")


def kinds(results: Any) -> list[type]:
    return [type(each.error if isinstance(each, ReadResult) else each) for each in results]


async def test_errors_are_in_the_places_of_the_denied_topics(door: Door, gate: Gate) -> None:
    gate.denied = deny_topic_b
    mixed = [TopicAuthorizationError, type(None), TopicAuthorizationError]
    for durability in Durability:
        writes = [write(topic, b"v") for topic in ("b", "a", "b")]
        written = await results_of(door.records.append(writes, durability))
        assert kinds(written) == [TopicAuthorizationError, tuple, TopicAuthorizationError]
    read = await door.records.read(query(B, A, B))
    assert kinds(read) == mixed
    assert len(read[1].records) > 0
    assert kinds(await door.groups.commit(commit("b", "a", "b"))) == mixed
    assert kinds(await door.topics.delete(["b", "a", "b"])) == mixed


async def test_a_read_without_a_wait_is_left_to_read_where_a_topic_is_denied(
    door: Door, gate: Gate
) -> None:
    assert kinds(door.records.read_now(query(A, B))) == [type(None)] * 2
    gate.denied = deny_topic_b
    assert door.records.read_now(query(A, B)) is None
    assert kinds(door.records.read_now(query(A))) == [type(None)]


async def test_create_on_the_cluster_is_enough_for_each_topic(door: Door, gate: Gate) -> None:
    gate.denied = lambda op, resource: op is Op.CREATE and resource.kind is TOPIC
    created = await door.topics.create([NewTopic("new", 1)])
    assert kinds(created) == [TopicInfo]
    assert (await door.topics.ensure("other")).name == "other"
    gate.denied = lambda op, resource: op is Op.CREATE
    assert kinds(await door.topics.create([NewTopic("c", 1)])) == [TopicAuthorizationError]
    assert type(await outcome(door, "topics.ensure", "c")) is TopicAuthorizationError
    gate.denied = lambda op, resource: op in (Op.CREATE, Op.DESCRIBE)
    assert type(await outcome(door, "topics.ensure", "a")) is TopicAuthorizationError


async def test_write_on_any_topic_is_enough_for_a_producer_id(door: Door, gate: Gate) -> None:
    gate.denied = deny_all
    assert type(await outcome(door, "transactions.new_producer")) is ClusterAuthorizationError
    gate.allows_any = True
    assert await door.transactions.new_producer() is not None


async def test_describe_on_the_cluster_is_enough_to_list_all_groups(door: Door, gate: Gate) -> None:
    gate.denied = lambda _, resource: resource.kind is GROUP
    assert [each.group_id for each in door.groups.listings()] == ["g"]
    gate.denied = deny_all
    assert list(door.groups.listings()) == []


async def test_a_topic_that_is_denied_is_not_named_where_its_id_was_asked_for(
    door: Door, gate: Gate
) -> None:
    gate.denied = deny_all
    error = await outcome(door, "topics.by_id")
    assert type(error) is TopicAuthorizationError
    assert "'a'" not in str(error)


async def test_a_denied_partition_ends_the_wait_of_a_read(door: Door, gate: Gate) -> None:
    gate.denied = deny_topic_b
    async with asyncio.timeout(300):
        a, b = await door.records.read(query(("a", 0, 1), B, wait_ms=60_000))
    assert a.error is None
    assert isinstance(b.error, TopicAuthorizationError)


async def test_lists_show_only_what_the_principal_can_describe(door: Door, gate: Gate) -> None:
    gate.denied = deny_topic_b
    names = [topic.name for topic in door.topics.all()]
    assert "a" in names
    assert "b" not in names
    assert door.transactions.describe("x").partitions == (TopicPartition("a", 0),)
    assert list(door.groups.committed("g", None)) == [("a", 0)]
    named = door.groups.committed("g", [("a", 0), ("b", 0)])
    assert isinstance(named["a", 0], CommittedOffset)
    assert isinstance(named["b", 0], TopicAuthorizationError)
    assert [each.group_id for each in door.groups.listings()] == ["g"]
    assert [each.transactional_id for each in door.transactions.listings()] == ["x"]


async def test_sizes_are_shown_only_of_topics_that_the_principal_can_describe(
    tmp_path: Path, gate: Gate
) -> None:
    async with running(tmp_path, authorizer=gate) as engine:
        await engine.topics.create([NewTopic("a", 1), NewTopic("b", 1)])
        gate.denied = deny_topic_b
        topics = {size.topic for size in engine.door(ALICE).storage.usage().partitions}
        assert "a" in topics
        assert "b" not in topics


async def test_of_a_transaction_s_partitions_the_denied_one_stops_the_others(
    engine: Engine, door: Door, gate: Gate
) -> None:
    gate.denied = deny_topic_b
    identity = engine.transactions.describe("x").producer
    asked = [("a", 0), ("b", 0)]
    other, denied = await door.transactions.add_partitions("x", identity, asked)
    assert other is not None
    assert isinstance(denied, TopicAuthorizationError)


# --- the default ---------------------------------------------------------------------------------


def test_the_default_allows_everything_without_a_question() -> None:
    access = Access(ANONYMOUS, AllowAll())
    assert access.is_unrestricted
    assert UNRESTRICTED.is_unrestricted
    for operation in Operation:
        for kind in (TOPIC, GROUP, TRANSACTIONAL_ID, EXCHANGE, CLUSTER):
            assert access.allows(operation, kind, "name")
            access.check(operation, kind, "name")
    assert access.refusals(Op.READ, TOPIC, ["a", "b"]) == [None, None]
    assert AllowAll().authorize(ANONYMOUS, Op.READ, T)


def test_each_name_is_asked_about_once(gate: Gate) -> None:
    gate.denied = deny_topic_b
    refused = Access(ALICE, gate).refusals(Op.WRITE, TOPIC, ["b", "a", "b", "a"])
    assert kinds(refused) == [TopicAuthorizationError, type(None)] * 2
    assert [resource.name for _, _, resource in gate.questions] == ["b", "a"]


def test_the_message_names_principal_operation_and_resource(gate: Gate) -> None:
    gate.denied = deny_all
    assert str(Access(ALICE, gate).refusal(Op.ALTER_CONFIGS, TOPIC, "a")) == (
        "User:alice is not allowed to alter the configs of topic 'a'"
    )
