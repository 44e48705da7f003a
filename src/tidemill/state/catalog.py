"""The catalog: which topics exist, with their ids, partitions and configs, as a state machine.

Commands check and give back records; only ``replay`` changes what is seen. Commands that follow
each other before their records are replayed are checked against each other too. Knows no disk,
and does not decide on auto-creation: the broker does.

Source: Apache Kafka's rules for CreateTopics, CreatePartitions, DeleteTopics and
IncrementalAlterConfigs (KIP-339).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from tidemill.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    InvalidTopicError,
    PolicyViolationError,
    TidemillError,
    TopicExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from tidemill.log.config import LogConfig
from tidemill.log.names import check_topic_name
from tidemill.state import configs as rules
from tidemill.state.catalog_format import (
    BROKER_CONFIG,
    TOPIC,
    Topic,
    decode_broker_config,
    decode_key,
    decode_topic,
    encode_broker_config,
    encode_key,
    encode_topic,
)
from tidemill.state.outcome import Outcome, StateRecord
from tidemill.state.topic_rules import INTERNAL_TOPICS as INTERNAL_TOPICS
from tidemill.state.topic_rules import (
    check_assignments,
    collision,
    fold,
    partitions_of,
    refuse_internal,
)
from tidemill.state.topic_rules import is_internal as is_internal
from tidemill.state.types import ConfigChange, ConfigEntry, NewTopic, TopicInfo

NO_TOPIC_ID = UUID(int=0)
_RESERVED_IDS = frozenset({NO_TOPIC_ID, UUID(int=1)})


class Catalog:
    """All topics, and the dynamic configs of the broker.

    Args:
        node_id: the one broker's id.
        default_partitions: of topics created with -1 partitions (``num.partitions``).
        max_partitions: over all topics.
        topic_defaults: static defaults of topic configs, under topic or broker names.
        new_topic_id: makes topic ids; used again until one is free.
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
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[UUID, str] = {}
        self._folded: dict[str, str] = {}
        """name with '.' and '_' taken for the same -> name"""
        self._partitions = 0
        self._broker_configs: dict[str, str] = {}
        self._in_flight: dict[bytes, list[StateRecord]] = {}
        """Records given out and not replayed, by key."""

    # --- what survives a restart -----------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Apply one record of the catalog's topic; False (and no effect) if it is another's.

        Raises:
            InvalidRecordError, FormatVersionError: the record can't be read.
        """
        kind, name = decode_key(key)
        if kind == TOPIC:
            self._store(name, None if value is None else decode_topic(name, value))
        elif kind == BROKER_CONFIG:
            if value is None:
                self._broker_configs.pop(name, None)
            else:
                self._broker_configs[name] = decode_broker_config(value)
        else:
            return False
        self._landed(key, value)
        return True

    def _store(self, name: str, topic: Topic | None) -> None:
        old = self._topics.pop(name, None)
        if old is not None:
            del self._by_id[old.topic_id]
            del self._folded[fold(name)]
            self._partitions -= old.partitions
        if topic is not None:
            self._topics[name] = topic
            self._by_id[topic.topic_id] = name
            self._folded[fold(name)] = name
            self._partitions += topic.partitions

    def write_failed(self, outcome: Outcome[Any]) -> None:
        """The outcome's records could not be written: what it promised is not to be."""
        for record in outcome.records:
            self._landed(record.key, record.value)

    def _landed(self, key: bytes, value: bytes | None) -> None:
        pending = self._in_flight.get(key, [])
        for position, record in enumerate(pending):
            if record.value == value:
                del pending[position]
                break
        if not pending:
            self._in_flight.pop(key, None)

    def _give(self, records: Iterable[StateRecord], *, validate_only: bool) -> list[StateRecord]:
        if validate_only:
            return []
        given = list(records)
        for record in given:
            self._in_flight.setdefault(record.key, []).append(record)
        return given

    # --- views -----------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicInfo:
        """Raises UnknownTopicOrPartitionError."""
        return _info(self._find(name))

    def topic_by_id(self, topic_id: UUID) -> TopicInfo:
        """Raises UnknownTopicIdError."""
        name = self._by_id.get(topic_id)
        if name is None:
            raise UnknownTopicIdError(f"no topic has the id {topic_id}")
        return _info(self._topics[name])

    def topics(self) -> list[TopicInfo]:
        """All topics, internal ones too, by name."""
        return [_info(self._topics[name]) for name in sorted(self._topics)]

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    @property
    def partitions(self) -> int:
        """Partitions over all topics."""
        return self._partitions

    def config_of(self, name: str) -> dict[str, str]:
        """The topic's own configs. Raises UnknownTopicOrPartitionError."""
        return dict(self._find(name).configs)

    def broker_config(self) -> dict[str, str]:
        """The dynamic broker configs."""
        return dict(self._broker_configs)

    def defaults(self) -> dict[str, str]:
        """Defaults of topic configs in force, under topic names: dynamic before static ones."""
        return rules.merged_defaults(self._static, self._broker_configs)

    def log_config(self, name: str) -> LogConfig:
        """The topic's configs in force. Raises UnknownTopicOrPartitionError."""
        return LogConfig.parse(self._find(name).configs, self.defaults())

    def topic_entries(self, name: str) -> list[ConfigEntry]:
        """The topic's configs as admins see them. Raises UnknownTopicOrPartitionError."""
        return rules.topic_entries(self._find(name).configs, self._broker_configs, self._static)

    def new_topic_entries(self, configs: Mapping[str, str | None]) -> list[ConfigEntry]:
        """The configs that a topic with these overrides has, or would have."""
        overrides = {name: value for name, value in configs.items() if value is not None}
        return rules.topic_entries(overrides, self._broker_configs, self._static)

    def _find(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
        return topic

    # --- what it will look like when all records given out are written ---------------------------

    def _upcoming(self, name: str) -> Topic | None:
        pending = self._in_flight.get(encode_key(TOPIC, name)) if self._in_flight else None
        if not pending:
            return self._topics.get(name)
        value = pending[-1].value
        return None if value is None else decode_topic(name, value)

    def _topics_in_flight(self) -> set[str]:
        keys = [decode_key(key) for key in self._in_flight]
        return {name for kind, name in keys if kind == TOPIC}

    def _upcoming_partitions(self) -> int:
        total = self._partitions
        for name in self._topics_in_flight():
            for topic, sign in ((self._upcoming(name), 1), (self._topics.get(name), -1)):
                total += sign * topic.partitions if topic is not None else 0
        return total

    def _check_free(self, name: str) -> None:
        if self._upcoming(name) is not None:
            raise TopicExistsError(f"topic {name!r} exists")
        others = {each for each in self._topics_in_flight() if fold(each) == fold(name)}
        others.add(self._folded.get(fold(name), name))
        for other in sorted(others):
            if self._upcoming(other) is not None:
                raise collision(name, other)

    def _existing(self, name: str) -> Topic:
        topic = self._upcoming(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
        return topic

    # --- create ----------------------------------------------------------------------------------

    def create(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, internal: bool = False
    ) -> Outcome[list[TopicInfo | TidemillError]]:
        """Create topics; the result has for each the topic or why it can't be created.

        Args:
            validate_only: check only, give no records.
            internal: the broker creates its own topics.

        Errors: InvalidTopicError (name, collision, internal), TopicExistsError,
        InvalidPartitionsError, InvalidReplicationFactorError, InvalidReplicaAssignmentError,
        InvalidConfigError, InvalidRequestError (named twice, contradictions),
        PolicyViolationError (too many partitions).
        """
        names = [topic.name for topic in topics]
        repeated = {name for name in names if names.count(name) > 1} if len(names) > 1 else set()
        folded: dict[str, str] = {}  # of those of this request that can be created
        total = self._upcoming_partitions()
        result: list[TopicInfo | TidemillError] = []
        records = []
        for new in topics:
            try:
                if new.name in repeated:
                    raise InvalidRequestError(f"topic {new.name!r} is named twice in the request")
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
        return Outcome(result, self._give(records, validate_only=validate_only))

    def _checked(self, new: NewTopic, *, internal: bool) -> Topic:
        check_topic_name(new.name)
        if is_internal(new.name) and not internal:
            raise InvalidTopicError(f"{new.name!r} is a name of the broker's own topics")
        self._check_free(new.name)
        partitions = partitions_of(new, default=self._default_partitions, node_id=self._node_id)
        configs = rules.checked_overrides(new.configs, self.defaults())
        topic_id = self._new_topic_id()
        while topic_id in self._by_id or topic_id in _RESERVED_IDS:
            topic_id = self._new_topic_id()
        return Topic(new.name, topic_id, partitions, configs)

    def _check_total(self, total: int) -> None:
        if total > self._max_partitions:
            raise PolicyViolationError(
                f"there would be {total} partitions, the limit is {self._max_partitions}",
                hint="Raise limits.partitions in the broker's settings, or delete topics.",
            )

    # --- extend, delete --------------------------------------------------------------------------

    def add_partitions(
        self,
        name: str,
        total: int,
        assignments: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> Outcome[TopicInfo]:
        """Let a topic have ``total`` partitions.

        Args:
            assignments: replicas of each new partition; None lets the broker choose.

        Raises:
            UnknownTopicOrPartitionError, InvalidTopicError (internal), InvalidPartitionsError,
            InvalidReplicaAssignmentError, PolicyViolationError: as their names say.
        """
        topic = self._existing(name)
        refuse_internal(name)
        added = total - topic.partitions
        if added <= 0:
            raise InvalidPartitionsError(
                f"topic {name!r} has {topic.partitions} partitions; {total} would be no increase"
            )
        self._check_total(self._upcoming_partitions() + added)
        if assignments is not None:
            if len(assignments) != added:
                raise InvalidReplicaAssignmentError(
                    f"{added} partitions are added, {len(assignments)} assignments are given"
                )
            check_assignments(assignments, self._node_id)
        extended = replace(topic, partitions=total)
        return Outcome(
            _info(extended), self._give([encode_topic(extended)], validate_only=validate_only)
        )

    def delete(self, names: Sequence[str]) -> Outcome[list[TopicInfo | TidemillError]]:
        """Delete topics; the result has for each the topic as it was, or why it can't be deleted.

        Errors: UnknownTopicOrPartitionError, InvalidTopicError (internal).
        """
        result: list[TopicInfo | TidemillError] = []
        records = []
        gone: set[str] = set()
        for name in names:
            try:
                topic = self._existing(name)
                refuse_internal(name)
                if name in gone:
                    raise InvalidRequestError(f"topic {name!r} is named twice in the request")
            except TidemillError as error:
                result.append(error)
                continue
            gone.add(name)
            result.append(_info(topic))
            records.append(StateRecord(encode_key(TOPIC, name), None))
        return Outcome(result, self._give(records, validate_only=False))

    # --- configs ---------------------------------------------------------------------------------

    def alter_topic(
        self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> Outcome[None]:
        """Change a topic's configs one by one (KIP-339).

        Raises:
            UnknownTopicOrPartitionError, InvalidTopicError (internal), InvalidConfigError,
            InvalidRequestError (a config named twice): as their names say.
        """
        topic = self._existing(name)
        refuse_internal(name)
        configs = rules.altered(topic.configs, changes, self.defaults())
        return self._set_configs(topic, configs, validate_only=validate_only)

    def replace_topic(
        self, name: str, configs: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Outcome[None]:
        """Set a topic's configs to exactly these (AlterConfigs); None leaves a config out.

        Raises:
            UnknownTopicOrPartitionError, InvalidTopicError (internal), InvalidConfigError.
        """
        topic = self._existing(name)
        refuse_internal(name)
        kept = {key: value for key, value in configs.items() if value is not None}
        checked = rules.checked_overrides(kept, self.defaults())
        return self._set_configs(topic, checked, validate_only=validate_only)

    def _set_configs(
        self, topic: Topic, configs: dict[str, str], *, validate_only: bool
    ) -> Outcome[None]:
        if configs == topic.configs:
            return Outcome(None)
        record = encode_topic(replace(topic, configs=configs))
        return Outcome(None, self._give([record], validate_only=validate_only))

    def alter_broker(
        self, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> Outcome[None]:
        """Change dynamic broker configs one by one: defaults of topics under Kafka's broker names.

        Raises:
            InvalidConfigError: unknown, malformed or not dynamic.
            InvalidRequestError: a config is named twice.
        """
        configs = rules.altered_broker(self._upcoming_broker(), changes, self._static)
        return self._set_broker(configs, validate_only=validate_only)

    def replace_broker(
        self, configs: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Outcome[None]:
        """Set the dynamic broker configs to exactly these. Raises InvalidConfigError."""
        kept = {key: value for key, value in configs.items() if value is not None}
        rules.check_broker(kept, self._static)
        return self._set_broker(kept, validate_only=validate_only)

    def _set_broker(self, configs: Mapping[str, str], *, validate_only: bool) -> Outcome[None]:
        self._check_with_topics(configs)
        current = self._upcoming_broker()
        records = [
            encode_broker_config(name, configs.get(name))
            for name in sorted({*current, *configs})
            if current.get(name) != configs.get(name)
        ]
        return Outcome(None, self._give(records, validate_only=validate_only))

    def _check_with_topics(self, broker_configs: Mapping[str, str]) -> None:
        """Only the two compaction lags depend on each other: check the topics that set one."""
        defaults = rules.merged_defaults(self._static, broker_configs)
        for topic in self._topics.values():
            if any(name.endswith(".compaction.lag.ms") for name in topic.configs):
                LogConfig.parse(topic.configs, defaults)

    def _upcoming_broker(self) -> dict[str, str]:
        configs = dict(self._broker_configs)
        for key, pending in self._in_flight.items():
            kind, name = decode_key(key)
            if kind != BROKER_CONFIG:
                continue
            value = pending[-1].value
            if value is None:
                configs.pop(name, None)
            else:
                configs[name] = decode_broker_config(value)
        return configs


def _info(topic: Topic) -> TopicInfo:
    return TopicInfo(topic.name, topic.topic_id, topic.partitions, is_internal(topic.name))
