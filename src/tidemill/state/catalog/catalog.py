"""The catalog of topics and configs, as a state machine.

A command checks its request and returns records. Only ``replay`` changes what the views show.
Commands that follow each other before their records are replayed are checked against each other
too (``upcoming``). This module must not know the disk. The engine decides when a topic is created
automatically.

Source: Apache Kafka's rules for CreateTopics, CreatePartitions, DeleteTopics and
IncrementalAlterConfigs (KIP-339).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from tidemill.errors import TidemillError, UnknownTopicOrPartitionError
from tidemill.log.config.parse import parse_config
from tidemill.log.config.topic import LogConfig
from tidemill.log.errors import InvalidTopicError
from tidemill.log.names import check_topic_name
from tidemill.state.catalog import configs as rules
from tidemill.state.catalog.broker_rules import BrokerLayers, check_cluster_only, layers_of
from tidemill.state.catalog.format import (
    TOPIC,
    Topic,
    encode_broker_config,
    encode_deletion,
    encode_deletion_done,
    encode_key,
    encode_topic,
)
from tidemill.state.catalog.stored import StoredCatalog
from tidemill.state.catalog.topic_rules import (
    check_assignments,
    collision,
    fold,
    partitions_of,
)
from tidemill.state.catalog.types import ConfigChange, ConfigEntry, NewTopic, TopicInfo
from tidemill.state.catalog.upcoming import Upcoming
from tidemill.state.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    PolicyViolationError,
    UnknownTopicIdError,
)
from tidemill.state.internal_topics import is_internal
from tidemill.state.outcome import Outcome, StateRecord

NO_TOPIC_ID = UUID(int=0)
_RESERVED_IDS = frozenset({NO_TOPIC_ID, UUID(int=1)})


class Catalog:
    """All topics, and the dynamic configs of the broker.

    Args:
        default_partitions: partitions of a topic that is created with -1 (``num.partitions``).
        max_partitions: the largest number of partitions of all topics together.
        topic_defaults: static defaults of topic configs, under topic or broker names.
        new_topic_id: makes topic ids; called again until an id is free.
    """

    def __init__(
        self,
        *,
        node_id: int = 1,
        default_partitions: int = 1,
        max_partitions: int = 20_000,
        topic_defaults: Mapping[str, str] | None = None,
        new_topic_id: Callable[[], UUID] = uuid.uuid4,
    ) -> None:
        self._node_id = node_id
        self._default_partitions = default_partitions
        self._max_partitions = max_partitions
        self._static = dict(topic_defaults or {})
        self._new_topic_id = new_topic_id
        self._stored = StoredCatalog()
        self._upcoming = Upcoming(self._stored)
        self._listed: tuple[int, list[TopicInfo]] = (0, [])
        """The list of topics, and the version that it is of."""

    # --- state that survives a restart -----------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Apply one record of the catalog's topic.

        Returns:
            False if the record is of another kind. Then nothing changes.
        """
        if not self._stored.replay(key, value):
            return False
        self._upcoming.remove(key, value)
        return True

    def write_failed(self, outcome: Outcome[Any]) -> None:
        """Forget the records of an outcome that could not be written."""
        for record in outcome.records:
            self._upcoming.remove(record.key, record.value)

    def _return(self, records: Iterable[StateRecord], *, validate_only: bool) -> list[StateRecord]:
        return [] if validate_only else self._upcoming.expect(records)

    # --- views -----------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicInfo:
        """Return a topic by its name.

        Raises:
            UnknownTopicOrPartitionError: it does not exist.
        """
        return _info(self._find(name))

    def check_partition(self, name: str, partition: int) -> None:
        """Return if the partition exists.

        Raises:
            UnknownTopicOrPartitionError: the topic or the partition does not exist.
        """
        if not 0 <= partition < self.topic(name).partitions:
            raise UnknownTopicOrPartitionError(f"topic {name!r} has no partition {partition}")

    def missing_partition(self, name: str, partition: int) -> TidemillError | None:
        """Return an error if the partition does not exist, else None."""
        try:
            self.check_partition(name, partition)
        except UnknownTopicOrPartitionError as error:
            return error.with_traceback(None)  # many are kept until all are answered
        return None

    def topic_by_id(self, topic_id: UUID) -> TopicInfo:
        """Return a topic by its id.

        Raises:
            UnknownTopicIdError: no topic has this id.
        """
        name = self.name_of(topic_id)
        if name is None:
            raise UnknownTopicIdError(f"no topic has the id {topic_id}")
        return _info(self._stored.topics[name])

    def name_of(self, topic_id: UUID) -> str | None:
        """Return a topic's name; None if it does not exist."""
        return self._stored.names.get(topic_id)

    def find(self, name: str) -> tuple[UUID, int] | None:
        """Return a topic's id and number of partitions; None if it does not exist."""
        topic = self._stored.topics.get(name)
        return None if topic is None else (topic.topic_id, topic.partitions)

    def names(self) -> list[str]:
        """Return the names of all topics that are not internal."""
        return [topic.name for topic in self.topics() if not topic.internal]

    def topics(self) -> list[TopicInfo]:
        """Return all topics sorted by name, internal ones too."""
        stored = self._stored
        version, listed = self._listed
        if version != stored.version:
            listed = [_info(stored.topics[name]) for name in sorted(stored.topics)]
            self._listed = stored.version, listed
        return listed.copy()

    def __contains__(self, name: object) -> bool:
        return name in self._stored.topics

    @property
    def version(self) -> int:
        """Grows with each change of a topic, from a new beginning at each start."""
        return self._stored.version

    @property
    def partitions(self) -> int:
        """The number of partitions of all topics."""
        return self._stored.partitions

    @property
    def deleted(self) -> Mapping[UUID, str]:
        """The names by topic id of deleted topics whose folders are perhaps still there."""
        return self._stored.deleted

    def config_of(self, name: str) -> dict[str, str]:
        """Return the topic's own configs, without defaults.

        Raises:
            UnknownTopicOrPartitionError: the topic does not exist.
        """
        return dict(self._find(name).configs)

    def broker_layers(self) -> BrokerLayers:
        """Return the layers of the broker's configs."""
        stored = self._stored
        return layers_of(self._static, stored.cluster_configs, stored.broker_configs)

    def defaults(self) -> dict[str, str]:
        """Return the defaults of topic configs that are in force, under topic names."""
        return self.broker_layers().defaults()

    def log_config(self, name: str) -> LogConfig:
        """Return the configs that are in force for the topic.

        Raises:
            UnknownTopicOrPartitionError: the topic does not exist.
        """
        return parse_config(self._find(name).configs, self.defaults())

    def topic_entries(self, name: str) -> list[ConfigEntry]:
        """Return the topic's configs as admins see them.

        Raises:
            UnknownTopicOrPartitionError: the topic does not exist.
        """
        return self._entries(self._find(name).configs)

    def new_topic_entries(self, name: str, configs: Mapping[str, str | None]) -> list[ConfigEntry]:
        """Return the configs that a topic with these overrides has, or would have.

        They do not depend on its name.

        Raises:
            InvalidConfigError: a config is unknown or has an invalid value.
        """
        return self._entries({k: value for k, value in configs.items() if value is not None})

    def _entries(self, overrides: Mapping[str, str]) -> list[ConfigEntry]:
        return rules.topic_entries(overrides, self.broker_layers())

    def _find(self, name: str) -> Topic:
        topic = self._stored.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"topic {name!r} does not exist")
        return topic

    # --- create ----------------------------------------------------------------------------------

    def create(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, internal: bool = False
    ) -> Outcome[list[TopicInfo | TidemillError]]:
        """Create topics. The result has the topic or an error for each, in order.

        Args:
            validate_only: check the request, and return no records.
            internal: whether the broker creates its own topics.

        Errors in the result: InvalidTopicError (invalid name, collision, internal topic),
        TopicExistsError, InvalidPartitionsError, InvalidReplicationFactorError,
        InvalidReplicaAssignmentError, InvalidConfigError, InvalidRequestError (named twice,
        contradictions), PolicyViolationError (too many partitions).
        """
        names = [topic.name for topic in topics]
        repeated = {name for name in names if names.count(name) > 1} if len(names) > 1 else set()
        folded: dict[str, str] = {}  # the topics of this request that can be created
        total = self._upcoming.partitions()
        result: list[TopicInfo | TidemillError] = []
        records = []
        for new in topics:
            try:
                if new.name in repeated:
                    raise _named_twice(new.name)
                topic = self._checked(new, internal=internal)
                if fold(new.name) in folded:
                    raise collision(new.name, folded[fold(new.name)])
                self._check_total(total + topic.partitions)
            except TidemillError as error:
                result.append(error)
                continue
            folded[fold(new.name)] = new.name
            total += topic.partitions
            result.append(_info(topic))
            records.append(encode_topic(topic))
        return Outcome(result, self._return(records, validate_only=validate_only))

    def _checked(self, new: NewTopic, *, internal: bool) -> Topic:
        check_topic_name(new.name)
        if is_internal(new.name) and not internal:
            raise InvalidTopicError(f"topic name {new.name!r} is reserved for the broker")
        self._upcoming.check_free(new.name)
        partitions = partitions_of(new, default=self._default_partitions, node_id=self._node_id)
        configs = rules.checked_overrides(new.configs, self.defaults())
        topic_id = self._new_topic_id()
        while topic_id in self._stored.names or topic_id in _RESERVED_IDS:
            topic_id = self._new_topic_id()
        return Topic(new.name, topic_id, partitions, configs)

    def _check_total(self, total: int) -> None:
        if total > self._max_partitions:
            raise PolicyViolationError(
                f"too many partitions: {total} in all, the limit is {self._max_partitions}",
                hint="Raise limits.partitions in the broker's settings, or delete topics.",
            )

    def _changeable(self, name: str) -> Topic:
        """Return a topic that clients may change."""
        topic = self._upcoming.topic(name)
        if is_internal(name):
            raise InvalidTopicError(
                f"topic {name!r} is internal: clients can't change or delete it"
            )
        return topic

    # --- add partitions, delete ------------------------------------------------------------------

    def add_partitions(
        self,
        name: str,
        total: int,
        assignments: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> Outcome[TopicInfo]:
        """Increase the number of partitions of a topic to ``total``.

        Args:
            assignments: the replicas of each new partition; None: the broker chooses.

        Raises:
            UnknownTopicOrPartitionError: the topic does not exist.
            InvalidTopicError: the topic is internal.
            InvalidPartitionsError: ``total`` is not larger than the present number.
            InvalidReplicaAssignmentError: the assignments don't fit.
            PolicyViolationError: there would be too many partitions.
        """
        topic = self._changeable(name)
        added = total - topic.partitions
        if added <= 0:
            raise InvalidPartitionsError(
                f"topic {name!r} has {topic.partitions} partitions: {total} is not an increase"
            )
        self._check_total(self._upcoming.partitions() + added)
        if assignments is not None:
            if len(assignments) != added:
                raise InvalidReplicaAssignmentError(
                    f"{added} new partitions need as many assignments, not {len(assignments)}"
                )
            check_assignments(assignments, self._node_id)
        extended = replace(topic, partitions=total)
        records = self._return([encode_topic(extended)], validate_only=validate_only)
        return Outcome(_info(extended), records)

    def delete(self, names: Sequence[str]) -> Outcome[list[TopicInfo | TidemillError]]:
        """Delete topics. The result has the deleted topic or an error for each, in order.

        Errors in the result: UnknownTopicOrPartitionError, InvalidTopicError (internal topic),
        InvalidRequestError (named twice).
        """
        result: list[TopicInfo | TidemillError] = []
        records = []
        gone: set[str] = set()
        for name in names:
            try:
                topic = self._changeable(name)
                if name in gone:
                    raise _named_twice(name)
            except TidemillError as error:
                result.append(error)
                continue
            gone.add(name)
            result.append(_info(topic))
            records.append(encode_deletion(topic.topic_id, name))
            records.append(StateRecord(encode_key(TOPIC, name), None))
        return Outcome(result, self._return(records, validate_only=False))

    def deletions_done(self, topic_ids: Iterable[UUID]) -> Outcome[None]:
        """Forget deleted topics whose folders are gone."""
        records = [encode_deletion_done(each) for each in topic_ids if each in self._stored.deleted]
        return Outcome(None, self._return(records, validate_only=False))

    # --- configs ---------------------------------------------------------------------------------

    def alter_topic(
        self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> Outcome[None]:
        """Change some of a topic's configs (KIP-339).

        Raises:
            UnknownTopicOrPartitionError: the topic does not exist.
            InvalidTopicError: the topic is internal.
            InvalidConfigError: a config is unknown or its value is invalid.
            InvalidRequestError: a config is named twice.
        """
        topic = self._changeable(name)
        configs = rules.altered(topic.configs, changes, self.defaults())
        return self._set_configs(topic, configs, validate_only=validate_only)

    def replace_topic(
        self, name: str, configs: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Outcome[None]:
        """Set a topic's configs to exactly these (AlterConfigs). None leaves a config out.

        Raises:
            UnknownTopicOrPartitionError: the topic does not exist.
            InvalidTopicError: the topic is internal.
            InvalidConfigError: a config is unknown or its value is invalid.
        """
        topic = self._changeable(name)
        kept = {key: value for key, value in configs.items() if value is not None}
        checked = rules.checked_overrides(kept, self.defaults())
        return self._set_configs(topic, checked, validate_only=validate_only)

    def _set_configs(
        self, topic: Topic, configs: dict[str, str], *, validate_only: bool
    ) -> Outcome[None]:
        if configs == topic.configs:
            return Outcome(None)
        record = encode_topic(replace(topic, configs=configs))
        return Outcome(None, self._return([record], validate_only=validate_only))

    def alter_broker(
        self,
        changes: Sequence[ConfigChange],
        *,
        all_brokers: bool = False,
        validate_only: bool = False,
    ) -> Outcome[None]:
        """Change some dynamic configs of this broker, or of all brokers.

        Raises:
            InvalidConfigError: a config is unknown or can't be altered, or its value is invalid.
            InvalidRequestError: a config is named twice.
        """
        configs = rules.altered_broker(self._upcoming_layers(), changes, all_brokers=all_brokers)
        return self._set_broker(configs, all_brokers=all_brokers, validate_only=validate_only)

    def replace_broker(
        self,
        configs: Mapping[str, str | None],
        *,
        all_brokers: bool = False,
        validate_only: bool = False,
    ) -> Outcome[None]:
        """Set the dynamic configs of this broker, or of all, to exactly these. None omits one.

        Raises:
            InvalidConfigError: a config is unknown or can't be altered, or its value is invalid.
        """
        kept = {key: value for key, value in configs.items() if value is not None}
        rules.check_broker(rules.with_layer(self._upcoming_layers(), kept, all_brokers=all_brokers))
        return self._set_broker(kept, all_brokers=all_brokers, validate_only=validate_only)

    def _upcoming_layers(self) -> BrokerLayers:
        upcoming = self._upcoming
        return layers_of(self._static, upcoming.cluster_configs(), upcoming.broker_configs())

    def _set_broker(
        self, configs: Mapping[str, str], *, all_brokers: bool, validate_only: bool
    ) -> Outcome[None]:
        layers = self._upcoming_layers()
        self._check_with_topics(rules.with_layer(layers, configs, all_brokers=all_brokers))
        current = layers.cluster if all_brokers else layers.broker
        check_cluster_only(current, configs, all_brokers=all_brokers)
        records = [
            encode_broker_config(name, configs.get(name), all_brokers=all_brokers)
            for name in sorted({*current, *configs})
            if current.get(name) != configs.get(name)
        ]
        return Outcome(None, self._return(records, validate_only=validate_only))

    def _check_with_topics(self, layers: BrokerLayers) -> None:
        """Check the new defaults against the topics' own configs.

        Only the two compaction lags depend on each other, so only topics that set one are checked.
        """
        defaults = layers.defaults()
        for topic in self._stored.topics.values():
            if any(name.endswith(".compaction.lag.ms") for name in topic.configs):
                parse_config(topic.configs, defaults)


def _named_twice(name: str) -> InvalidRequestError:
    return InvalidRequestError(f"topic {name!r} is named twice in the request")


def _info(topic: Topic) -> TopicInfo:
    return TopicInfo(topic.name, topic.topic_id, topic.partitions, is_internal(topic.name))
