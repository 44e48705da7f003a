"""A fake engine with canned answers, for the handlers of groups, offsets and administration.

``call`` takes the whole way of a request: bytes of a version (written by kio from a plain tree),
guarded decoding, the handler, our encoder, and kio's reader for the answer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import inspect
import io
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from kio.serial import entity_reader, entity_writer

from tests.protocols.kafka.fake_transactions import Answers, FakeTransactions
from tidemill.clock import ManualClock
from tidemill.engine.api import (
    BrokerLayers,
    CatalogLog,
    CommitRequest,
    CommittedOffset,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    ConfigType,
    ConsumerGroupInfo,
    ConsumerHeartbeat,
    DataFolder,
    GroupDescription,
    GroupListing,
    HeartbeatResult,
    JoinRequest,
    JoinResult,
    LeaveMember,
    NewTopic,
    PartitionSize,
    SyncRequest,
    SyncResult,
    TopicInfo,
)
from tidemill.engine.authorize import UNRESTRICTED
from tidemill.errors import TidemillError, UnknownTopicOrPartitionError
from tidemill.kafka_codec.messages import decode_request, encode_response
from tidemill.kafka_codec.schema import request_type, response_type
from tidemill.protocols.kafka.apis import REGISTRY, ConnectionState, RequestContext, load_handlers
from tidemill.protocols.kafka.node import Node
from tidemill.settings import Settings
from tidemill.state.errors import GroupIdNotFoundError, UnknownTopicIdError

load_handlers()

TOPIC_ID = UUID("11111111-2222-3333-4444-555555555555")
OTHER_ID = UUID("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee")
MISSING_ID = UUID("99999999-9999-9999-9999-999999999999")

RETENTION = ConfigEntry(
    "retention.ms",
    "1000",
    ConfigSource.DYNAMIC_TOPIC,
    ConfigType.LONG,
    doc="How long.",
    synonyms=(
        ("retention.ms", "1000", ConfigSource.DYNAMIC_TOPIC),
        ("log.retention.ms", "604800000", ConfigSource.DEFAULT),
    ),
)
CLEANUP = ConfigEntry("cleanup.policy", "delete", ConfigSource.DEFAULT, ConfigType.LIST)
SECRET = ConfigEntry(
    "ssl.key", "hidden", ConfigSource.STATIC_BROKER, ConfigType.PASSWORD, sensitive=True
)
DYNAMIC = ConfigEntry(
    "log.retention.ms", "5", ConfigSource.DYNAMIC_BROKER, ConfigType.LONG, read_only=False
)
LISTENERS = ConfigEntry(
    "listeners", "x", ConfigSource.STATIC_BROKER, ConfigType.STRING, read_only=True
)


class FakeEngine(Answers):
    """Parts that answer from ``answers``; calls are recorded. It is its own door."""

    clock = ManualClock(5_000)
    settings = Settings()
    access = UNRESTRICTED

    def __init__(self) -> None:
        super().__init__()
        self.infos = {
            "orders": TopicInfo("orders", TOPIC_ID, 3, internal=False),
            "users": TopicInfo("users", OTHER_ID, 1, internal=False),
        }
        self.topics = FakeTopics(self)
        self.configs = FakeConfigs(self)
        self.groups = FakeGroups(self)
        self.transactions = FakeTransactions(self)
        self.storage = FakeStorage(self)


class FakeGroups:
    """Answers like ``engine.groups``."""

    def __init__(self, broker: FakeEngine) -> None:
        self._answer = broker.answer

    async def join(self, request: JoinRequest) -> JoinResult:
        return typing.cast(JoinResult, self._answer("join_group", request, None))

    async def sync(self, request: SyncRequest) -> SyncResult:
        return typing.cast(
            SyncResult, self._answer("sync_group", request, SyncResult("consumer", "range", b"\1"))
        )

    async def heartbeat(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> None:
        self._answer("heartbeat", (group_id, generation, member_id, instance_id), None)

    async def consumer_heartbeat(self, request: ConsumerHeartbeat) -> HeartbeatResult:
        answer = HeartbeatResult(request.member_id, 1, 5000, {})
        return typing.cast(HeartbeatResult, self._answer("consumer_heartbeat", request, answer))

    def describe_consumer_group(self, group_id: str) -> ConsumerGroupInfo:
        answer = self._answer("describe_consumer_group", group_id, {}).get(group_id)
        if answer is None:
            raise GroupIdNotFoundError(f"Group {group_id} not found.")
        return typing.cast(ConsumerGroupInfo, answer)

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        self._answer("check_fetch", (group_id, member_id, epoch), None)

    async def leave(
        self, group_id: str, members: Sequence[LeaveMember]
    ) -> list[TidemillError | None]:
        return list(self._answer("leave_group", (group_id, members), [None] * len(members)))

    def listings(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
        return list(
            self._answer(
                "list_groups", (states, types), [GroupListing("g", "consumer", "Stable", "classic")]
            )
        )

    def describe(self, group_id: str) -> GroupDescription:
        dead = GroupDescription(group_id, "Dead", "", "", ())
        answer = self._answer("describe_group", group_id, {}).get(group_id, dead)
        if isinstance(answer, TidemillError):
            raise answer
        return typing.cast(GroupDescription, answer)

    async def delete(self, group_id: str) -> None:
        answer = self._answer("delete_group", group_id, {}).get(group_id)
        if answer is not None:
            raise answer

    async def commit(self, request: CommitRequest) -> list[TidemillError | None]:
        return list(self._answer("commit_offsets", request, [None] * len(request.offsets)))

    def committed(
        self,
        group_id: str,
        partitions: Sequence[tuple[str, int]] | None,
        require_stable: bool = False,
    ) -> dict[tuple[str, int], CommittedOffset]:
        arguments = (group_id, partitions, require_stable)
        stored: dict[tuple[str, int], CommittedOffset] = self._answer(
            "fetch_offsets", arguments, {}
        )
        if partitions is None:
            return stored
        return {key: stored[key] for key in partitions if key in stored}

    def positions(self, group_id: str) -> list[tuple[str, int]]:
        return list(self.committed(group_id, None))

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> list[TidemillError | None]:
        default = [None] * len(partitions)
        return list(self._answer("delete_offsets", (group_id, list(partitions)), default))


class FakeTopics:
    """Answers like ``engine.topics``."""

    def __init__(self, broker: FakeEngine) -> None:
        self._infos = broker.infos
        self._answer = broker.answer

    def get(self, name: str) -> TopicInfo:
        if name not in self._infos:
            raise UnknownTopicOrPartitionError(f"there is no topic {name}")
        return self._infos[name]

    def by_id(self, topic_id: UUID) -> TopicInfo:
        for topic in self._infos.values():
            if topic.topic_id == topic_id:
                return topic
        raise UnknownTopicIdError(f"no topic has the id {topic_id}")

    def all(self) -> list[TopicInfo]:
        return list(self._infos.values())

    def check_partition(self, topic: str, partition: int) -> None:
        if not 0 <= partition < self.get(topic).partitions:
            raise UnknownTopicOrPartitionError(f"no partition {topic}-{partition}")

    async def create(
        self, topics: Sequence[NewTopic], validate_only: bool = False
    ) -> list[TopicInfo | TidemillError]:
        outcomes = self._answer("create_topics", (list(topics), validate_only), {})
        return [
            outcomes.get(t.name, TopicInfo(t.name, TOPIC_ID, max(t.partitions, 1), internal=False))
            for t in topics
        ]

    async def delete(self, names: Sequence[str]) -> list[TidemillError | None]:
        outcomes = self._answer("delete_topics", list(names), {})
        return [outcomes.get(name) for name in names]

    async def add_partitions(
        self,
        topic: str,
        total: int,
        assignments: list[list[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        outcomes = self._answer("create_partitions", (topic, total, assignments, validate_only), {})
        if topic in outcomes:
            raise outcomes[topic]


class FakeConfigs:
    """Answers like ``engine.configs``."""

    def __init__(self, broker: FakeEngine) -> None:
        self._broker = broker
        self._answer = broker.answer

    def of_topic(self, topic: str) -> list[ConfigEntry]:
        self._broker.topics.get(topic)
        return [RETENTION, CLEANUP]

    def of_new_topic(self, topic: str, configs: Mapping[str, str | None]) -> list[ConfigEntry]:
        return list(self._answer("new_topic_configs", configs, [RETENTION, CLEANUP]))

    def of_broker(self) -> BrokerLayers:
        return BrokerLayers({}, {"log.retention.ms": "5"}, {"log.segment.bytes": "2000000"})

    async def alter_topic(
        self, topic: str, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> None:
        self._answer("alter_topic_configs", (topic, list(changes), validate_only), None)

    async def replace_topic(
        self, topic: str, configs: Mapping[str, str | None], validate_only: bool = False
    ) -> None:
        self._answer("replace_topic_configs", (topic, configs, validate_only), None)

    def of_group(self, group_id: str) -> list[ConfigEntry]:
        return list(self._answer("group_configs", group_id, []))

    def groups(self) -> list[str]:
        return list(self._answer("groups_with_configs", None, []))

    async def alter_group(
        self, group_id: str, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> None:
        self._answer("alter_group_configs", (group_id, list(changes), validate_only), None)

    async def replace_group(
        self, group_id: str, configs: Mapping[str, str | None], validate_only: bool = False
    ) -> None:
        self._answer("replace_group_configs", (group_id, configs, validate_only), None)

    async def alter_broker(
        self,
        changes: Sequence[ConfigChange],
        validate_only: bool = False,
        *,
        all_brokers: bool = False,
    ) -> None:
        self._answer("alter_broker_configs", (list(changes), validate_only, all_brokers), None)

    async def replace_broker(
        self,
        configs: Mapping[str, str | None],
        validate_only: bool = False,
        *,
        all_brokers: bool = False,
    ) -> None:
        self._answer("replace_broker_configs", (configs, validate_only, all_brokers), None)


class FakeStorage:
    """Answers like ``engine.storage``."""

    path = "/data"
    cluster_id = UUID(int=0xC1)

    def __init__(self, broker: FakeEngine) -> None:
        self._answer = broker.answer

    def catalog_log(self) -> CatalogLog:
        return CatalogLog(3, 40, 42)

    def usage(self, partitions: set[tuple[str, int]] | None = None) -> DataFolder:
        sizes = (
            PartitionSize("orders", 0, 100),
            PartitionSize("orders", 1, 200),
            PartitionSize("users", 0, 7),
        )
        wanted = [
            size
            for size in sizes
            if partitions is None or (size.topic, size.partition) in partitions
        ]
        default = DataFolder("/data", 1000, 400, tuple(wanted))
        return typing.cast(DataFolder, self._answer("log_dirs", partitions, default))


def versions(api_key: int) -> range:
    """The versions that are offered of an API."""
    api = REGISTRY[api_key]
    return range(api.min_version, api.max_version + 1)


def call(
    broker: FakeEngine, api_key: int, version: int, request: Mapping[str, Any]
) -> dict[str, Any]:
    """Send a request tree (kio's names, the version's fields are taken); the answer as a tree."""
    entity = _entity(request_type(api_key, version), request)
    with io.BytesIO() as buffer:
        entity_writer(type(entity))(buffer, entity)
        frame = buffer.getvalue()
    decoded = decode_request(api_key, version, frame, 0)
    ctx = RequestContext(
        door=broker,  # type: ignore[arg-type]
        node=Node(1, "broker.example", 9092),
        api_key=api_key,
        api_version=version,
        correlation_id=7,
        client_id="client",
        connection=ConnectionState("10.0.0.7:999", "10.0.0.7"),
    )
    reply = REGISTRY[api_key].handler(ctx, decoded)
    if inspect.isawaitable(reply):
        reply = asyncio.run(_result(reply))
    assert isinstance(reply, dict)
    body = encode_response(api_key, version, reply)
    response, end = entity_reader(response_type(api_key, version))(bytes(body), 0)
    assert end == len(body), "the answer is longer than its version's structure"
    return _plain(response)  # type: ignore[no-any-return]


async def _result(awaitable: Any) -> Any:
    return await awaitable


def _entity(kind: type[Any], tree: Mapping[str, Any]) -> Any:
    """A kio dataclass from a plain tree: milliseconds become timedeltas, lists tuples."""
    hints = typing.get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(kind):
        if field.name in tree:
            values[field.name] = _value(hints[field.name], field, tree[field.name])
    return kind(**values)


def _value(hint: Any, field: Any, value: Any) -> Any:
    inner = _innermost(hint)
    if value is None:
        return None
    if isinstance(value, list | tuple):
        if dataclasses.is_dataclass(inner):
            return tuple(_entity(typing.cast(type, inner), item) for item in value)
        return tuple(value)
    if field.metadata.get("kafka_type", "").startswith("timedelta"):
        return datetime.timedelta(milliseconds=value)
    return value


def _innermost(hint: Any) -> Any:
    while True:
        if typing.get_origin(hint) in (types.UnionType, typing.Union):
            hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
        elif typing.get_origin(hint) is tuple:
            hint = typing.get_args(hint)[0]
        else:
            return hint


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value
