"""The table of access, and the engine as one principal sees it: the door.

A protocol gets a door for each connection and calls ``door.records.append(...)``,
``door.topics.get(...)`` and so on. There is no other way into the engine. Each row names the method
that is called, and the operations and resources that it asks about; ``access`` has the kinds of
questions. They follow Apache Kafka's access control (KIP-11), and RabbitMQ's for queues: a queue is
a topic, READ consumes, WRITE publishes. Knows no protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from tidemill.clock import Clock
from tidemill.engine.access import Call, Check, Each, Found, Part, Question, Row, Visible
from tidemill.engine.api import (
    ConsumerGroupInfo,
    DataFolder,
    ShareGroupInfo,
    TransactionDescription,
)
from tidemill.engine.authorize import (
    CLUSTER,
    EXCHANGE,
    GROUP,
    TOPIC,
    TRANSACTIONAL_ID,
    Access,
    Operation,
)
from tidemill.engine.errors import AuthorizationError, TopicAuthorizationError
from tidemill.engine.groups.coordinator import GroupCoordinator
from tidemill.engine.groups.groups import GroupRequests
from tidemill.engine.queues.core import QueueCore
from tidemill.engine.queues.queues import QueueRequests, new_queue_name
from tidemill.engine.records.records import Records, RecordServices
from tidemill.engine.security.permissions import PermissionAdmin
from tidemill.engine.security.quotas import ClientQuotas, QuotaAdmin, Quotas
from tidemill.engine.security.rules import RuleAdmin
from tidemill.engine.security.users import UserAdmin
from tidemill.engine.shares.api import SharedRecords, ShareOffset
from tidemill.engine.shares.core import ShareCore
from tidemill.engine.shares.shares import ShareRequests
from tidemill.engine.storage import StorageReport
from tidemill.engine.topics.admin import TopicAdmin
from tidemill.engine.transactions.coordinator import TransactionCoordinator
from tidemill.engine.transactions.transactions import TransactionRequests
from tidemill.settings import Settings
from tidemill.state.all_groups import AllGroups
from tidemill.state.catalog.catalog import Catalog
from tidemill.state.catalog.group_configs import GroupConfigs
from tidemill.state.offsets.machine import Offsets

READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE = Operation.ALTER, Operation.DESCRIBE
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS


@dataclass(frozen=True, slots=True)
class Services:
    """The objects behind all parts of a door, shared by all principals."""

    settings: Settings
    clock: Clock
    records: RecordServices
    catalog: Catalog
    topics: TopicAdmin
    groups: tuple[GroupCoordinator, GroupRequests, AllGroups, Offsets]
    transactions: tuple[TransactionCoordinator, TransactionRequests]
    storage: StorageReport
    cluster_id: UUID
    queues: tuple[QueueCore, QueueRequests]
    shares: tuple[ShareCore, ShareRequests]
    security: tuple[UserAdmin, RuleAdmin, QuotaAdmin, PermissionAdmin]
    quotas: Quotas


# --- topics --------------------------------------------------------------------------------------


class Ensured(Question):
    """Ask for CREATE on a topic that does not exist, or on the cluster."""

    def before(self, call: Call) -> None:
        """Ask about the topic."""
        name = call.get("name")
        if name not in call.core.catalog and not call.access.allows(self.operation, CLUSTER):
            call.access.check(self.operation, self.kind, name)


class EachCreated(Each):
    """As ``Each``. CREATE on the cluster is enough for all topics."""

    def errors(self, call: Call, given: Iterable[Any]) -> list[AuthorizationError | None]:
        """Return the error or None for each element."""
        given = list(given)
        if call.access.allows(self.operation, CLUSTER):
            return [None] * len(given)
        return super().errors(call, given)


class FoundById(Question):
    """Refuse a topic that was asked for by its id, without its name."""

    def after(self, call: Call, known: Any, result: Any) -> Any:
        """Ask about the topic in the result."""
        if not self.allows(call, result.name):
            raise TopicAuthorizationError(
                f"{call.access.principal} is not allowed to describe the topic with this id"
            )
        return result


class Topics(Part):
    """Looks up, creates and deletes topics."""

    get = Row(Catalog.topic, Check(DESCRIBE, TOPIC, "name"))
    by_id = Row(Catalog.topic_by_id, FoundById(DESCRIBE, TOPIC))
    all = Row(TopicAdmin.listed, Visible(DESCRIBE, TOPIC, lambda topic: topic.name))
    check_partition = Row(Catalog.check_partition, Check(DESCRIBE, TOPIC, "name"))
    check_alterable = Row(Catalog.check_partition, Check(ALTER, CLUSTER))
    ensure = Row(TopicAdmin.ensure, Check(DESCRIBE, TOPIC, "name"), Ensured(CREATE, TOPIC))
    create = Row(TopicAdmin.create, EachCreated(CREATE, TOPIC, "topics", lambda topic: topic.name))
    delete = Row(TopicAdmin.delete, Each(DELETE, TOPIC, "names", lambda name: name))
    add_partitions = Row(TopicAdmin.add_partitions, Check(ALTER, TOPIC, "name"))


class Configs(Part):
    """Reads and changes configs of topics, groups and the broker."""

    of_topic = Row(Catalog.topic_entries, Check(DESCRIBE_CONFIGS, TOPIC, "name"))
    of_new_topic = Row(Catalog.new_topic_entries, Check(DESCRIBE_CONFIGS, TOPIC, "name"))
    of_broker = Row(Catalog.broker_layers, Check(DESCRIBE_CONFIGS, CLUSTER))
    of_group = Row(GroupConfigs.entries, Check(DESCRIBE_CONFIGS, GROUP, "group_id"))
    groups = Row(GroupConfigs.groups, Visible(DESCRIBE_CONFIGS, GROUP, lambda name: name))
    alter_topic = Row(TopicAdmin.alter_topic_configs, Check(ALTER_CONFIGS, TOPIC, "name"))
    replace_topic = Row(TopicAdmin.replace_topic_configs, Check(ALTER_CONFIGS, TOPIC, "name"))
    alter_group = Row(TopicAdmin.alter_group_configs, Check(ALTER_CONFIGS, GROUP, "group_id"))
    replace_group = Row(TopicAdmin.replace_group_configs, Check(ALTER_CONFIGS, GROUP, "group_id"))
    alter_broker = Row(TopicAdmin.alter_broker_configs, Check(ALTER_CONFIGS, CLUSTER))
    replace_broker = Row(TopicAdmin.replace_broker_configs, Check(ALTER_CONFIGS, CLUSTER))


# --- groups --------------------------------------------------------------------------------------


class CanSee(Question):
    """Let the group match a pattern only with topics that the member's user can describe."""

    def before(self, call: Call) -> None:
        """Pass the check on."""
        call.change("request.can_see", lambda name: self.allows(call, name))


class Committed(Question):
    """Put an error in the place of offsets of topics that are refused, or leave them out of all."""

    def after(self, call: Call, known: Any, result: Any) -> Any:
        """Return the offsets and the errors."""
        asked = call.get("partitions")
        keys = list(result if asked is None else asked)
        errors = self.refusals(call, (topic for topic, _ in keys))
        refused = {key: error for key, error in zip(keys, errors, strict=True) if error is not None}
        if asked is None:
            return {key: offset for key, offset in result.items() if key not in refused}
        return {**result, **refused}


def _subscribed(group: ConsumerGroupInfo | ShareGroupInfo) -> Iterable[str]:
    """Return the topics of a group, sorted."""
    names: set[str] = set()
    for each in group.members:
        names.update(each.member.topic_names)
        names.update(name for _, name, _ in (*each.assigned, *each.target))
    return sorted(names)


class VisibleGroups(Visible):
    """As ``Visible``. DESCRIBE on the cluster is enough for all groups."""

    def after(self, call: Call, known: Any, result: Any) -> Any:
        """Return the groups that are allowed."""
        if call.access.allows(self.operation, CLUSTER):
            return result
        return super().after(call, known, result)


class Groups(Part):
    """Consumer groups, members of share groups, and committed offsets."""

    join = Row(GroupCoordinator.join, Check(READ, GROUP, "request.group_id"))
    sync = Row(GroupCoordinator.sync, Check(READ, GROUP, "request.group_id"))
    heartbeat = Row(GroupCoordinator.heartbeat, Check(READ, GROUP, "group_id"))
    leave = Row(GroupCoordinator.leave, Check(READ, GROUP, "group_id"))
    consumer_heartbeat = Row(
        GroupCoordinator.consumer_heartbeat,
        Check(READ, GROUP, "request.group_id"),
        Check(DESCRIBE, TOPIC, "request.topic_names"),
        CanSee(DESCRIBE, TOPIC),
    )
    share_heartbeat = Row(
        GroupCoordinator.share_heartbeat,
        Check(READ, GROUP, "request.group_id"),
        Check(DESCRIBE, TOPIC, "request.topic_names"),
    )
    commit = Row(
        GroupRequests.commit,
        Check(READ, GROUP, "request.group_id"),
        Each(READ, TOPIC, "request.offsets", lambda offset: offset.topic),
    )
    committed = Row(
        GroupCoordinator.fetch, Check(DESCRIBE, GROUP, "group_id"), Committed(DESCRIBE, TOPIC)
    )
    check_fetch = Row(AllGroups.check_fetch, Check(DESCRIBE, GROUP, "group_id"))
    positions = Row(
        Offsets.positions,
        Check(DESCRIBE, GROUP, "group_id"),
        Visible(DESCRIBE, TOPIC, lambda partition: partition[0]),
    )
    delete_offsets = Row(
        GroupRequests.delete_offsets,
        Check(DELETE, GROUP, "group_id"),
        Each(READ, TOPIC, "partitions", lambda partition: partition[0]),
    )
    listings = Row(
        AllGroups.list_groups, VisibleGroups(DESCRIBE, GROUP, lambda group: group.group_id)
    )
    describe = Row(AllGroups.describe, Check(DESCRIBE, GROUP, "group_id"))
    describe_consumer_group = Row(
        AllGroups.describe_consumer_group,
        Check(DESCRIBE, GROUP, "group_id"),
        Found(DESCRIBE, TOPIC, _subscribed),
    )
    describe_share_group = Row(
        GroupCoordinator.describe_share_group,
        Check(DESCRIBE, GROUP, "group_id"),
        Found(DESCRIBE, TOPIC, _subscribed),
    )
    delete = Row(GroupRequests.delete, Check(DELETE, GROUP, "group_id"))


# --- transactions --------------------------------------------------------------------------------


class AllOrNone(Question):
    """Pass on which partitions are refused: then none is added."""

    def before(self, call: Call) -> None:
        """Ask about all partitions."""
        call.change("refused", self.refusals(call, (name for name, _ in call.get("partitions"))))


class VisiblePartitions(Visible):
    """Leave partitions of refused topics out of a transaction."""

    def after(self, call: Call, known: Any, result: TransactionDescription) -> Any:
        """Return the description."""
        visible = super().after(call, known, list(result.partitions))
        return replace(result, partitions=tuple(visible))


class CanProduce(Question):
    """Ask for the operation, or for WRITE on any topic (KIP-679)."""

    def before(self, call: Call) -> None:
        """Ask."""
        if not call.access.allows_any(WRITE, TOPIC):
            call.access.check(self.operation, self.kind)


class Transactions(Part):
    """Producers and transactions."""

    new_producer = Row(
        TransactionRequests.new_producer, CanProduce(Operation.IDEMPOTENT_WRITE, CLUSTER)
    )
    init = Row(
        TransactionCoordinator.init, Check(WRITE, TRANSACTIONAL_ID, "request.transactional_id")
    )
    add_partitions = Row(
        TransactionRequests.add_partitions,
        Check(WRITE, TRANSACTIONAL_ID, "transactional_id"),
        AllOrNone(WRITE, TOPIC),
    )
    verify_partitions = Row(
        TransactionRequests.verify_partitions,
        Check(WRITE, TRANSACTIONAL_ID, "transactional_id"),
        Each(WRITE, TOPIC, "partitions", lambda partition: partition[0]),
    )
    add_group = Row(
        TransactionRequests.add_group,
        Check(WRITE, TRANSACTIONAL_ID, "transactional_id"),
        Check(READ, GROUP, "group_id"),
    )
    commit_offsets = Row(
        TransactionRequests.commit_offsets,
        Check(WRITE, TRANSACTIONAL_ID, "request.transactional_id"),
        Check(READ, GROUP, "request.commit.group_id"),
        Each(READ, TOPIC, "request.commit.offsets", lambda offset: offset.topic),
    )
    end = Row(TransactionCoordinator.end, Check(WRITE, TRANSACTIONAL_ID, "transactional_id"))
    listings = Row(
        TransactionCoordinator.listings,
        Visible(DESCRIBE, TRANSACTIONAL_ID, lambda each: each.transactional_id),
    )
    describe = Row(
        TransactionCoordinator.describe,
        Check(DESCRIBE, TRANSACTIONAL_ID, "transactional_id"),
        VisiblePartitions(DESCRIBE, TOPIC, lambda partition: partition.topic),
    )
    write_markers = Row(
        TransactionCoordinator.write_markers, Check(Operation.CLUSTER_ACTION, CLUSTER)
    )


# --- the data folder -----------------------------------------------------------------------------


class VisibleSizes(Visible):
    """Leave refused topics out of the data folder."""

    def after(self, call: Call, known: Any, result: DataFolder) -> Any:
        """Return the data folder."""
        return replace(result, partitions=super().after(call, known, result.partitions))


class Storage(Part):
    """The data folder.

    Attributes:
        cluster_id: the identity of the data folder. It is not protected: clients need it to
            recognize a cluster before they authenticate.
        path: the folder. It is not protected either.
    """

    usage = Row(
        StorageReport.usage,
        Check(DESCRIBE, CLUSTER),
        VisibleSizes(DESCRIBE, TOPIC, lambda size: size.topic),
    )
    catalog_log = Row(StorageReport.catalog_log, Check(DESCRIBE, CLUSTER))

    def __init__(self, access: Access, report: StorageReport, cluster_id: UUID) -> None:
        super().__init__(access, report)
        self.cluster_id = cluster_id
        self.path = report.path


# --- queues --------------------------------------------------------------------------------------


class Publish(Question):
    """Ask about the exchange of each message."""

    def before(self, call: Call) -> None:
        """Pass the check on."""

        def check(exchange: str, routing_key: str) -> None:
            call.access.check(self.operation, self.kind, exchange or DEFAULT_EXCHANGE)
            if exchange:
                call.access.check_key(self.operation, exchange, routing_key)

        call.change("check", check)


class StillAllowed(Check):
    """Refuse the call as ``Check``, and let what it starts ask again as long as it lasts."""

    def before(self, call: Call) -> None:
        """Ask about the name, and pass the check on."""
        super().before(call)
        access, name = call.access, call.get(self.path)

        def check() -> bool:
            # Only a refusal is reported: it is asked before each delivery.
            allowed = access.allows(self.operation, self.kind, name)
            return allowed or access.refusal(self.operation, self.kind, name) is None

        call.change("may_read", check)


class Declare(Question):
    """Ask for CREATE, and for DESCRIBE in a passive declaration, also where the broker names it."""

    def before(self, call: Call) -> None:
        """Ask about the name."""
        operation = DESCRIBE if call.get("passive") else self.operation
        name = call.get("name")
        if not name and operation is CREATE and self.kind is TOPIC:
            name = new_queue_name()
            call.change("generated_name", name)
        call.access.check(operation, self.kind, name)
        other = call.get("spec").arguments.get(_PASSED_ON[self.kind])
        if operation is CREATE and isinstance(other, str):
            call.access.check(READ, self.kind, name)
            call.access.check(WRITE, EXCHANGE, other or DEFAULT_EXCHANGE)


class BindKey(Question):
    """Ask about the routing key of a binding of an exchange, in the argument ``path``."""

    def __init__(self, operation: Operation, path: str) -> None:
        super().__init__(operation, EXCHANGE)
        self.path = path

    def before(self, call: Call) -> None:
        """Ask about the key."""
        call.access.check_key(self.operation, call.get(self.path), call.get("routing_key"))


_PASSED_ON = {TOPIC: "x-dead-letter-exchange", EXCHANGE: "alternate-exchange"}
"""The argument of a queue or an exchange that names where other messages go."""
DEFAULT_EXCHANGE = "amq.default"
"""The name of the default exchange in rules, as in RabbitMQ."""

_BETWEEN_EXCHANGES = (
    Check(READ, EXCHANGE, "source"),
    Check(WRITE, EXCHANGE, "destination"),
    BindKey(READ, "source"),
)
_TO_QUEUE = (
    Check(WRITE, TOPIC, "queue"),
    Check(READ, EXCHANGE, "exchange"),
    BindKey(READ, "exchange"),
)


class Queues(Part):
    """Queues, exchanges and bindings. A connection can always end, and wait for what it settled."""

    publisher = Row(QueueRequests.publisher, Publish(WRITE, EXCHANGE), Question(WRITE, TOPIC))
    consume = Row(QueueRequests.consume, StillAllowed(READ, TOPIC, "queue"))
    get = Row(QueueRequests.get, Check(READ, TOPIC, "queue"))
    declare_exchange = Row(QueueRequests.declare_exchange, Declare(CREATE, EXCHANGE))
    delete_exchange = Row(QueueRequests.delete_exchange, Check(DELETE, EXCHANGE, "name"))
    bind_exchange = Row(QueueRequests.bind_exchange, *_BETWEEN_EXCHANGES)
    unbind_exchange = Row(QueueRequests.unbind_exchange, *_BETWEEN_EXCHANGES)
    declare_queue = Row(QueueRequests.declare_queue, Declare(CREATE, TOPIC))
    delete_queue = Row(QueueRequests.delete_queue, Check(DELETE, TOPIC, "name"))
    purge = Row(QueueRequests.purge, Check(READ, TOPIC, "name"))
    bind = Row(QueueRequests.bind, *_TO_QUEUE)
    unbind = Row(QueueRequests.unbind, *_TO_QUEUE)
    describe = Row(QueueRequests.describe, Check(DESCRIBE, TOPIC, "queue"))
    names = Row(QueueRequests.names, Visible(DESCRIBE, TOPIC, lambda name: name))
    version = Row(QueueRequests.version)
    queues = Row(QueueRequests.queues, Visible(DESCRIBE, TOPIC, lambda queue: queue.name))
    exchanges = Row(QueueRequests.exchanges, Visible(DESCRIBE, EXCHANGE, lambda each: each[0]))
    bindings = Row(QueueRequests.bindings, Visible(DESCRIBE, EXCHANGE, lambda each: each.source))
    stored = Row(QueueRequests.stored)
    connection_closed = Row(QueueCore.connection_closed)


# --- share groups --------------------------------------------------------------------------------


class EachOfTopicId(Each):
    """As ``Each``, for elements with the id of a topic. The call answers for unknown ids."""

    def errors(self, call: Call, given: Iterable[Any]) -> list[AuthorizationError | None]:
        """Return the error or None for each element."""
        names = [call.core.name_of(each.topic_id) for each in given]
        refused = dict(zip(names, self.refusals(call, (name or "" for name in names)), strict=True))
        return [refused[name] if name is not None else None for name in names]


class ShownOffsets(Question):
    """Put an error in the place of offsets of topics that are refused, or leave them out of all."""

    def after(self, call: Call, known: Any, result: Sequence[ShareOffset]) -> Any:
        """Return the offsets and the errors."""
        errors = self.refusals(call, (each.topic for each in result))
        if call.get("topics") is None:
            return [each for each, error in zip(result, errors, strict=True) if error is None]
        return [
            each
            if error is None
            else ShareOffset(each.topic, UUID(int=0), each.partition, error=error)
            for each, error in zip(result, errors, strict=True)
        ]


class Shares(Part):
    """Records of share groups."""

    lock_ms = Row(ShareCore.lock_ms, Check(READ, GROUP, "group_id"))
    fetch = Row(
        ShareRequests.fetch,
        Check(READ, GROUP, "query.group_id"),
        EachOfTopicId(
            READ, TOPIC, "query.partitions", refused=SharedRecords, then={"query.max_wait_ms": 0}
        ),
    )
    acknowledge = Row(
        ShareRequests.acknowledge,
        Check(READ, GROUP, "group_id"),
        EachOfTopicId(READ, TOPIC, "partitions"),
    )
    leave = Row(ShareCore.leave, Check(READ, GROUP, "group_id"))
    offsets = Row(
        ShareRequests.offsets, Check(DESCRIBE, GROUP, "group_id"), ShownOffsets(DESCRIBE, TOPIC)
    )
    alter_offsets = Row(
        ShareRequests.alter_offsets,
        Check(READ, GROUP, "group_id"),
        Each(READ, TOPIC, "starts", lambda partition: partition[0]),
    )
    delete_offsets = Row(
        ShareRequests.delete_offsets,
        Check(DELETE, GROUP, "group_id"),
        Each(READ, TOPIC, "topics", lambda name: name),
    )


# --- users, rules and quotas ---------------------------------------------------------------------


class Security(Part):
    """Users, and what they may do."""

    users = Row(UserAdmin.described, Check(DESCRIBE, CLUSTER))
    alter_users = Row(UserAdmin.alter, Check(ALTER, CLUSTER))
    rules = Row(RuleAdmin.all, Check(DESCRIBE, CLUSTER))
    rules_to_delete = Row(RuleAdmin.all, Check(ALTER, CLUSTER))
    create_rules = Row(RuleAdmin.create, Check(ALTER, CLUSTER))
    delete_rules = Row(RuleAdmin.delete, Check(ALTER, CLUSTER))
    quotas = Row(QuotaAdmin.all, Check(DESCRIBE_CONFIGS, CLUSTER))
    alter_quota = Row(QuotaAdmin.alter, Check(ALTER_CONFIGS, CLUSTER))
    permissions = Row(PermissionAdmin.all, Check(DESCRIBE, CLUSTER))
    set_permission = Row(PermissionAdmin.set, Check(ALTER, CLUSTER))
    set_topic_permission = Row(PermissionAdmin.set_topic, Check(ALTER, CLUSTER))


# --- all of them ---------------------------------------------------------------------------------


class Door:
    """The parts of the engine for one principal.

    Attributes:
        access: answers whether the principal may do something. A protocol asks it for operations
            that only the protocol has.
        settings: the broker's settings.
        clock: the broker's time.
        quotas: what the principal's clients use.
        records: append and read.
        topics, configs, groups, transactions, storage, queues, shares, security: see the classes.
    """

    __slots__ = (
        "access",
        "clock",
        "configs",
        "groups",
        "queues",
        "quotas",
        "records",
        "security",
        "settings",
        "shares",
        "storage",
        "topics",
        "transactions",
    )

    def __init__(self, services: Services, access: Access) -> None:
        catalog, admin = services.catalog, services.topics
        self.access = access
        self.settings = services.settings
        self.clock = services.clock
        self.records = Records(services.records, access)
        self.topics = Topics(access, catalog, admin)
        self.configs = Configs(access, catalog, admin, admin.group_configs)
        self.groups = Groups(access, *services.groups)
        self.transactions = Transactions(access, *services.transactions)
        self.storage = Storage(access, services.storage, services.cluster_id)
        self.queues = Queues(access.for_queues(), *services.queues)
        self.shares = Shares(access, *services.shares)
        self.security = Security(access, *services.security)
        self.quotas = ClientQuotas(services.quotas, access.principal.name)
