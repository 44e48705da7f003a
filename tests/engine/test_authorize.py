"""Access control: every public method of every part asks the authorizer first."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.engine.transactions.support import Producer
from tests.support.faultyfs import FaultyFileSystem
from tidemill.engine import door
from tidemill.engine.api import (
    AlterOp,
    CommitRequest,
    CommittedOffset,
    ConfigChange,
    Durability,
    InitProducer,
    JoinRequest,
    LeaveMember,
    NewRecord,
    NewTopic,
    OffsetToCommit,
    PartitionRead,
    PartitionWrite,
    Position,
    ProducerIdentity,
    ReadQuery,
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
from tidemill.log.format.records import encode_batch
from tidemill.log.names import TopicPartition
from tidemill.settings import Settings
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


def batch(topic: str, value: bytes = b"v") -> PartitionWrite:
    return PartitionWrite(
        topic, 0, memoryview(encode_batch([NewRecord(b"k", value)], timestamp_ms=1))
    )


def query(*topics: str, wait_ms: int = 0) -> ReadQuery:
    reads = [PartitionRead(topic, 0, 0, 1 << 20) for topic in topics]
    return ReadQuery(reads, wait_ms, 1, 1 << 20)


def commit(*topics: str) -> CommitRequest:
    return CommitRequest("g", -1, "", None, tuple(OffsetToCommit(t, 0, 1) for t in topics))


JOIN = JoinRequest("g", "", None, "c", "h", 10_000, 10_000, "consumer", (("range", b""),), False)
SYNC = SyncRequest("g", 1, "m", None, None, None, ())
ME = ProducerIdentity(0, 0)
MARKER = Marker(0, 0, commit=False)
V2 = TransactionVersion.V2
CHANGES = [ConfigChange("retention.ms", AlterOp.SET, "5")]
BROKER_CHANGES = [ConfigChange("log.retention.ms", AlterOp.SET, "5")]

Call = Callable[[Door], Any]
Question = tuple[Operation, Resource]

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

CALLS: dict[str, tuple[Call, Question]] = {
    "records.append": (lambda d: d.records.append([batch("a")]), (Op.WRITE, T)),
    "records.read": (lambda d: d.records.read(query("a", wait_ms=60_000)), (Op.READ, T)),
    "records.find_offset": (
        lambda d: d.records.find_offset("a", 0, Position.LATEST),
        (Op.DESCRIBE, T),
    ),
    "records.find_now": (
        lambda d: d.records.find_now("a", [(0, Position.LATEST, None)]),
        (Op.DESCRIBE, T),
    ),
    "records.is_awaited": (lambda d: d.records.is_awaited("a", 0), (Op.DESCRIBE, T)),
    "records.delete_before": (lambda d: d.records.delete_before("a", 0, None), (Op.DELETE, T)),
    "records.end_of_epoch": (lambda d: d.records.end_of_epoch("a", 0, 0), (Op.DESCRIBE, T)),
    "records.producers": (lambda d: d.records.producers("a", 0), (Op.READ, T)),
    "topics.get": (lambda d: d.topics.get("a"), (Op.DESCRIBE, T)),
    "topics.by_id": (lambda d: d.topics.by_id(topic_id(d)), (Op.DESCRIBE, T)),
    "topics.all": (lambda d: d.topics.all(), (Op.DESCRIBE, T)),
    "topics.check_partition": (lambda d: d.topics.check_partition("a", 0), (Op.DESCRIBE, T)),
    "topics.check_alterable": (lambda d: d.topics.check_alterable("a", 0), (Op.ALTER, C)),
    "topics.ensure": (lambda d: d.topics.ensure("new"), (Op.DESCRIBE, Resource(TOPIC, "new"))),
    "topics.create": (
        lambda d: d.topics.create([NewTopic("new", 1)]),
        (Op.CREATE, Resource(TOPIC, "new")),
    ),
    "topics.delete": (lambda d: d.topics.delete(["a"]), (Op.DELETE, T)),
    "topics.add_partitions": (lambda d: d.topics.add_partitions("a", 2), (Op.ALTER, T)),
    "configs.of_topic": (lambda d: d.configs.of_topic("a"), (Op.DESCRIBE_CONFIGS, T)),
    "configs.of_new_topic": (lambda d: d.configs.of_new_topic("a", {}), (Op.DESCRIBE_CONFIGS, T)),
    "configs.of_broker": (lambda d: d.configs.of_broker(), (Op.DESCRIBE_CONFIGS, C)),
    "configs.alter_topic": (lambda d: d.configs.alter_topic("a", CHANGES), (Op.ALTER_CONFIGS, T)),
    "configs.replace_topic": (lambda d: d.configs.replace_topic("a", {}), (Op.ALTER_CONFIGS, T)),
    "configs.alter_broker": (
        lambda d: d.configs.alter_broker(BROKER_CHANGES),
        (Op.ALTER_CONFIGS, C),
    ),
    "configs.replace_broker": (lambda d: d.configs.replace_broker({}), (Op.ALTER_CONFIGS, C)),
    "configs.of_group": (lambda d: d.configs.of_group("g"), (Op.DESCRIBE_CONFIGS, G)),
    "configs.groups": (lambda d: d.configs.groups(), (Op.DESCRIBE_CONFIGS, G)),
    "configs.alter_group": (
        lambda d: d.configs.alter_group("g", GROUP_CHANGES),
        (Op.ALTER_CONFIGS, G),
    ),
    "configs.replace_group": (lambda d: d.configs.replace_group("g", {}), (Op.ALTER_CONFIGS, G)),
    "groups.consumer_heartbeat": (
        lambda d: d.groups.consumer_heartbeat(ConsumerHeartbeat("g", "m", 0, "c", "h")),
        (Op.READ, G),
    ),
    "groups.check_fetch": (lambda d: d.groups.check_fetch("g", "m", 1), (Op.DESCRIBE, G)),
    "groups.describe_consumer_group": (
        lambda d: d.groups.describe_consumer_group("g"),
        (Op.DESCRIBE, G),
    ),
    "groups.share_heartbeat": (
        lambda d: d.groups.share_heartbeat(ShareHeartbeat("g", "m", 0, "c", "h")),
        (Op.READ, G),
    ),
    "groups.describe_share_group": (
        lambda d: d.groups.describe_share_group("g"),
        (Op.DESCRIBE, G),
    ),
    "shares.lock_ms": (lambda d: d.shares.lock_ms("g"), (Op.READ, G)),
    "shares.fetch": (
        lambda d: d.shares.fetch(ShareQuery("g", "m", [], 60_000, 1, 1)),
        (Op.READ, G),
    ),
    "shares.acknowledge": (lambda d: d.shares.acknowledge("g", "m", []), (Op.READ, G)),
    "shares.leave": (lambda d: d.shares.leave("g", "m"), (Op.READ, G)),
    "shares.offsets": (lambda d: d.shares.offsets("g", None), (Op.DESCRIBE, G)),
    "shares.alter_offsets": (
        lambda d: d.shares.alter_offsets("g", {("a", 0): 1}),
        (Op.READ, G),
    ),
    "shares.delete_offsets": (lambda d: d.shares.delete_offsets("g", ["a"]), (Op.DELETE, G)),
    "groups.join": (lambda d: d.groups.join(JOIN), (Op.READ, G)),
    "groups.sync": (lambda d: d.groups.sync(SYNC), (Op.READ, G)),
    "groups.heartbeat": (lambda d: d.groups.heartbeat("g", 1, "m", None), (Op.READ, G)),
    "groups.leave": (lambda d: d.groups.leave("g", [LeaveMember("m")]), (Op.READ, G)),
    "groups.commit": (lambda d: d.groups.commit(commit("a")), (Op.READ, G)),
    "groups.committed": (lambda d: d.groups.committed("g", [("a", 0)]), (Op.DESCRIBE, G)),
    "groups.positions": (lambda d: d.groups.positions("g"), (Op.DESCRIBE, G)),
    "groups.delete_offsets": (lambda d: d.groups.delete_offsets("g", [("a", 0)]), (Op.DELETE, G)),
    "groups.listings": (lambda d: list(d.groups.listings()), (Op.DESCRIBE, G)),
    "groups.describe": (lambda d: d.groups.describe("g"), (Op.DESCRIBE, G)),
    "groups.delete": (lambda d: d.groups.delete("g"), (Op.DELETE, G)),
    "transactions.new_producer": (
        lambda d: d.transactions.new_producer(),
        (Op.IDEMPOTENT_WRITE, C),
    ),
    "transactions.init": (
        lambda d: d.transactions.init(InitProducer("x", 60_000)),
        (Op.WRITE, X),
    ),
    "transactions.add_partitions": (
        lambda d: d.transactions.add_partitions("x", ME, [("a", 0)]),
        (Op.WRITE, X),
    ),
    "transactions.verify_partitions": (
        lambda d: d.transactions.verify_partitions("x", ME, [("a", 0)]),
        (Op.WRITE, X),
    ),
    "transactions.add_group": (lambda d: d.transactions.add_group("x", ME, "g"), (Op.WRITE, X)),
    "transactions.commit_offsets": (
        lambda d: d.transactions.commit_offsets(TxnOffsetCommit("x", ME, commit("a"), V2)),
        (Op.WRITE, X),
    ),
    "transactions.end": (lambda d: d.transactions.end("x", ME, True, V2), (Op.WRITE, X)),
    "transactions.listings": (lambda d: d.transactions.listings(), (Op.DESCRIBE, X)),
    "transactions.describe": (lambda d: d.transactions.describe("x"), (Op.DESCRIBE, X)),
    "transactions.write_markers": (
        lambda d: d.transactions.write_markers([(MARKER, [TopicPartition("a", 0)])]),
        (Op.CLUSTER_ACTION, C),
    ),
    "queues.publisher": (
        lambda d: d.queues.publisher(None).publish(1, "", "a", Message(b"v")),
        (Op.WRITE, Resource(EXCHANGE, "amq.default")),
    ),
    "queues.consume": (
        lambda d: d.queues.consume("a", ConsumerSpec("t", OWNER), RECIPIENT),
        (Op.READ, T),
    ),
    "queues.get": (lambda d: d.queues.get("a", OWNER, no_ack=True), (Op.READ, T)),
    "queues.declare_exchange": (
        lambda d: d.queues.declare_exchange("x", ExchangeSpec("direct")),
        (Op.CREATE, E),
    ),
    "queues.delete_exchange": (lambda d: d.queues.delete_exchange("x"), (Op.DELETE, E)),
    "queues.bind_exchange": (
        lambda d: d.queues.bind_exchange("x", "amq.topic", "k", {}),
        (Op.READ, E),
    ),
    "queues.unbind_exchange": (
        lambda d: d.queues.unbind_exchange("x", "amq.topic", "k", {}),
        (Op.READ, E),
    ),
    "queues.declare_queue": (
        lambda d: d.queues.declare_queue("a", QueueSpec(), OWNER),
        (Op.CREATE, T),
    ),
    "queues.delete_queue": (lambda d: d.queues.delete_queue("a", OWNER), (Op.DELETE, T)),
    "queues.purge": (lambda d: d.queues.purge("a", OWNER), (Op.READ, T)),
    "queues.bind": (lambda d: d.queues.bind("a", "x", "k", {}, OWNER), (Op.WRITE, T)),
    "queues.unbind": (lambda d: d.queues.unbind("a", "x", "k", {}, OWNER), (Op.WRITE, T)),
    "queues.describe": (lambda d: d.queues.describe("a"), (Op.DESCRIBE, T)),
    "queues.queues": (lambda d: d.queues.queues(), (Op.DESCRIBE, T)),
    "queues.exchanges": (
        lambda d: d.queues.exchanges(),
        (Op.DESCRIBE, Resource(EXCHANGE, "amq.direct")),
    ),
    "queues.bindings": (
        lambda d: d.queues.bindings(),
        (Op.DESCRIBE, Resource(EXCHANGE, "amq.direct")),
    ),
    "security.users": (lambda d: d.security.users(), (Op.DESCRIBE, C)),
    "security.alter_users": (lambda d: d.security.alter_users([], {}), (Op.ALTER, C)),
    "security.rules": (lambda d: d.security.rules(), (Op.DESCRIBE, C)),
    "security.rules_to_delete": (lambda d: d.security.rules_to_delete(), (Op.ALTER, C)),
    "security.create_rules": (lambda d: d.security.create_rules([]), (Op.ALTER, C)),
    "security.delete_rules": (lambda d: d.security.delete_rules([]), (Op.ALTER, C)),
    "security.quotas": (lambda d: d.security.quotas(), (Op.DESCRIBE_CONFIGS, C)),
    "security.alter_quota": (
        lambda d: d.security.alter_quota(QuotaEntity("a"), {}),
        (Op.ALTER_CONFIGS, C),
    ),
    "security.permissions": (lambda d: d.security.permissions(), (Op.DESCRIBE, C)),
    "security.set_permission": (lambda d: d.security.set_permission("a", None), (Op.ALTER, C)),
    "security.set_topic_permission": (
        lambda d: d.security.set_topic_permission("a", "x", None),
        (Op.ALTER, C),
    ),
    "storage.usage": (lambda d: d.storage.usage(), (Op.DESCRIBE, C)),
    "storage.catalog_log": (lambda d: d.storage.catalog_log(), (Op.DESCRIBE, C)),
}
"""part.method -> a call, and a question that it asks."""


def topic_id(door: Door) -> UUID:
    catalog, _ = door.topics._cores
    assert isinstance(catalog, Catalog)
    return catalog.topic("a").topic_id


async def outcome(call: Call, door: Door) -> Any:
    """Return the result of a call, or the AuthorizationError that it raises."""
    try:
        result = call(door)
        return await result if inspect.isawaitable(result) else result
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
async def running() -> AsyncIterator[tuple[Engine, Gate]]:
    """Run a broker with topics ``a`` and ``b``, group ``g`` and transactional id ``x``."""
    gate = Gate()
    settings = Settings.model_validate({"data_dir": "/data"})
    engine = Engine(settings, fs=FaultyFileSystem(), authorizer=gate)
    await engine.start()
    try:
        await engine.topics.create([NewTopic("a", 1), NewTopic("b", 1)])
        await engine.groups.commit(commit("a", "b"))
        await engine.configs.alter_group("g", GROUP_CHANGES)
        producer = await Producer(engine).init()
        await producer.send("a", b"first")
        await producer.send("b", b"first")
        await engine.queues.declare_queue("a", QueueSpec(), OWNER)
        await engine.queues.bind("a", "amq.direct", "k", {}, OWNER)
        gate.questions.clear()
        yield engine, gate
    finally:
        await engine.stop()


# --- every method --------------------------------------------------------------------------------


def table() -> dict[str, set[tuple[Operation, ResourceKind]]]:
    """Return the questions of every public method of the door; a method without a row fails."""
    return {
        f"{part}.{name}": {(each.operation, each.kind) for each in member.questions}
        for part in PARTS
        for name, member in vars(getattr(door, part.capitalize())).items()
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


@pytest.mark.parametrize("name", list(CALLS))
def test_a_row_names_the_question_that_is_asked(name: str) -> None:
    operation, resource = CALLS[name][1]
    assert (operation, resource.kind) in table()[name]


@pytest.mark.parametrize("name", list(CALLS))
async def test_a_denying_authorizer_stops_the_call(name: str) -> None:
    call, (operation, resource) = CALLS[name]

    async with running() as (engine, gate):
        before = {tp: log.log_end_offset for tp, log in engine._store.partitions.items()}
        gate.denied = deny_all
        async with asyncio.timeout(300):
            assert is_denied(await outcome(call, engine.door(ALICE)))
        assert (ALICE, operation, resource) in gate.questions
        after = {tp: log.log_end_offset for tp, log in engine._store.partitions.items()}
        assert after == before


async def test_one_denied_resource_of_several_stops_the_call() -> None:
    async with running() as (engine, gate):
        door = engine.door(ALICE)
        gate.denied = lambda _, resource: resource.kind is not TOPIC
        calls: list[tuple[Call, type[AuthorizationError]]] = [
            (
                lambda d: d.records.append([], transactional_id="x"),
                TransactionalIdAuthorizationError,
            ),
            (CALLS["groups.commit"][0], GroupAuthorizationError),
            (CALLS["storage.usage"][0], ClusterAuthorizationError),
        ]
        for call, kind in calls:
            assert type(await outcome(call, door)) is kind
        gate.denied = lambda _, resource: resource.kind is GROUP
        for name in ("transactions.add_group", "transactions.commit_offsets"):
            assert type(await outcome(CALLS[name][0], door)) is GroupAuthorizationError


# --- one of several ------------------------------------------------------------------------------


def deny_topic_b(_: Operation, resource: Resource) -> bool:
    return resource == Resource(TOPIC, "b")


def kinds(results: Any) -> list[type]:
    return [type(each.error if isinstance(each, ReadResult) else each) for each in results]


async def test_errors_are_in_the_places_of_the_denied_topics() -> None:
    async with running() as (engine, gate):
        gate.denied = deny_topic_b
        door = engine.door(ALICE)
        mixed = [TopicAuthorizationError, type(None), TopicAuthorizationError]
        for durability in Durability:
            answer = door.records.append([batch("b"), batch("a"), batch("b")], durability)
            written = answer if isinstance(answer, list) else await answer
            assert kinds(written) == [TopicAuthorizationError, tuple, TopicAuthorizationError]
        read = await door.records.read(query("b", "a", "b"))
        assert kinds(read) == mixed
        assert len(read[1].records) > 0
        assert kinds(await door.groups.commit(commit("b", "a", "b"))) == mixed
        assert kinds(await door.topics.delete(["b", "a", "b"])) == mixed


async def test_a_read_without_a_wait_is_left_to_read_where_a_topic_is_denied() -> None:
    async with running() as (engine, gate):
        door = engine.door(ALICE)
        assert kinds(door.records.read_now(query("a", "b"))) == [type(None)] * 2
        gate.denied = deny_topic_b
        assert door.records.read_now(query("a", "b")) is None
        assert kinds(door.records.read_now(query("a"))) == [type(None)]


async def test_create_on_the_cluster_is_enough_for_each_topic() -> None:
    async with running() as (engine, gate):
        gate.denied = lambda op, resource: op is Op.CREATE and resource.kind is TOPIC
        door = engine.door(ALICE)
        created = await door.topics.create([NewTopic("new", 1)])
        assert kinds(created) == [TopicInfo]
        assert (await door.topics.ensure("other")).name == "other"
        gate.denied = lambda op, resource: op is Op.CREATE
        assert kinds(await door.topics.create([NewTopic("c", 1)])) == [TopicAuthorizationError]
        assert type(await outcome(lambda d: d.topics.ensure("c"), door)) is TopicAuthorizationError
        gate.denied = lambda op, resource: op in (Op.CREATE, Op.DESCRIBE)
        assert type(await outcome(lambda d: d.topics.ensure("a"), door)) is TopicAuthorizationError


async def test_write_on_any_topic_is_enough_for_a_producer_id() -> None:
    async with running() as (engine, gate):
        gate.denied = deny_all
        door = engine.door(ALICE)
        assert type(await outcome(CALLS["transactions.new_producer"][0], door)) is (
            ClusterAuthorizationError
        )
        gate.allows_any = True
        assert await door.transactions.new_producer() is not None


async def test_describe_on_the_cluster_is_enough_to_list_all_groups() -> None:
    async with running() as (engine, gate):
        door = engine.door(ALICE)
        gate.denied = lambda _, resource: resource.kind is GROUP
        assert [each.group_id for each in door.groups.listings()] == ["g"]
        gate.denied = deny_all
        assert list(door.groups.listings()) == []


async def test_a_topic_that_is_denied_is_not_named_where_its_id_was_asked_for() -> None:
    async with running() as (engine, gate):
        gate.denied = deny_all
        wanted = topic_id(engine.inner_door())
        error = await outcome(lambda d: d.topics.by_id(wanted), engine.door(ALICE))
        assert type(error) is TopicAuthorizationError
        assert "'a'" not in str(error)


async def test_a_denied_partition_ends_the_wait_of_a_read() -> None:
    async with running() as (engine, gate):
        gate.denied = deny_topic_b
        reads = [PartitionRead("a", 0, 1, 100), PartitionRead("b", 0, 0, 100)]
        async with asyncio.timeout(300):
            a, b = await engine.door(ALICE).records.read(ReadQuery(reads, 60_000, 1, 1000))
        assert a.error is None
        assert isinstance(b.error, TopicAuthorizationError)


async def test_lists_show_only_what_the_principal_can_describe() -> None:
    async with running() as (engine, gate):
        gate.denied = deny_topic_b
        door = engine.door(ALICE)
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
    tmp_path: Path,
) -> None:
    gate = Gate()
    engine = Engine(Settings(data_dir=tmp_path), authorizer=gate)
    await engine.start()
    try:
        await engine.topics.create([NewTopic("a", 1), NewTopic("b", 1)])
        gate.denied = deny_topic_b
        topics = {size.topic for size in engine.door(ALICE).storage.usage().partitions}
        assert "a" in topics
        assert "b" not in topics
    finally:
        await engine.stop()


async def test_of_a_transaction_s_partitions_the_denied_one_stops_the_others() -> None:
    async with running() as (engine, gate):
        gate.denied = deny_topic_b
        asked = [("a", 0), ("b", 0)]
        identity = engine.transactions.describe("x").producer
        other, denied = await engine.door(ALICE).transactions.add_partitions("x", identity, asked)
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


def test_each_name_is_asked_about_once() -> None:
    gate = Gate()
    gate.denied = deny_topic_b
    refused = Access(ALICE, gate).refusals(Op.WRITE, TOPIC, ["b", "a", "b", "a"])
    assert kinds(refused) == [TopicAuthorizationError, type(None)] * 2
    assert [resource.name for _, _, resource in gate.questions] == ["b", "a"]


def test_the_message_names_principal_operation_and_resource() -> None:
    gate = Gate()
    gate.denied = deny_all
    access = Access(ALICE, gate)
    assert str(access.refusal(Op.ALTER_CONFIGS, TOPIC, "a")) == (
        "User:alice is not allowed to alter the configs of topic 'a'"
    )
