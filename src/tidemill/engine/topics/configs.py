"""The part of the engine for configs of topics and of the broker, with its access checks.

Every public method checks access and delegates. Knows no protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.engine.api import BrokerLayers, ConfigChange, ConfigEntry
from tidemill.engine.authorize import CLUSTER, GROUP, TOPIC, Access, Operation
from tidemill.engine.topics.admin import TopicAdmin


class Configs:
    """Configs for one principal."""

    def __init__(self, admin: TopicAdmin, access: Access) -> None:
        self._access = access
        self._admin = admin
        self._catalog = admin.catalog

    # --- read ------------------------------------------------------------------------------------

    def of_topic(self, topic: str) -> list[ConfigEntry]:
        """Return all configs of a topic with value, source and synonyms.

        Raises:
            TopicAuthorizationError: the principal can't describe the topic's configs.
            UnknownTopicOrPartitionError: the topic does not exist.
        """
        self._access.check(Operation.DESCRIBE_CONFIGS, TOPIC, topic)
        return self._catalog.topic_entries(topic)

    def of_new_topic(self, topic: str, configs: Mapping[str, str | None]) -> list[ConfigEntry]:
        """Return all configs that a topic with these overrides has, or would have.

        Raises:
            TopicAuthorizationError: the principal can't describe the topic's configs.
            InvalidConfigError: a config is unknown or has an invalid value.
        """
        self._access.check(Operation.DESCRIBE_CONFIGS, TOPIC, topic)
        return self._catalog.new_topic_entries(configs)

    def of_broker(self) -> BrokerLayers:
        """Return the layers of the broker's configs: settings, and what was set while it ran.

        Raises:
            ClusterAuthorizationError: the principal can't describe the broker's configs.
        """
        self._access.check(Operation.DESCRIBE_CONFIGS, CLUSTER)
        return self._catalog.broker_layers()

    def of_group(self, group_id: str) -> list[ConfigEntry]:
        """Return all configs of a group, whether it exists or not.

        Raises:
            GroupAuthorizationError: the principal can't describe the group's configs.
        """
        self._access.check(Operation.DESCRIBE_CONFIGS, GROUP, group_id)
        return self._admin.group_configs.entries(group_id)

    def groups(self) -> list[str]:
        """Return the groups that have configs and that the principal can describe."""
        return [
            group_id
            for group_id in self._admin.group_configs.groups()
            if self._access.allows(Operation.DESCRIBE_CONFIGS, GROUP, group_id)
        ]

    # --- change ----------------------------------------------------------------------------------

    async def alter_topic(
        self, topic: str, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> None:
        """Change single configs of a topic (KIP-339).

        Raises:
            TopicAuthorizationError: the principal can't alter the topic's configs.
            UnknownTopicOrPartitionError, InvalidConfigError, StorageError
        """
        self._access.check(Operation.ALTER_CONFIGS, TOPIC, topic)
        await self._admin.alter_topic_configs(topic, changes, validate_only)

    async def replace_topic(
        self, topic: str, configs: Mapping[str, str | None], validate_only: bool = False
    ) -> None:
        """Replace all configs that are set on a topic.

        Raises:
            TopicAuthorizationError: the principal can't alter the topic's configs.
            UnknownTopicOrPartitionError, InvalidConfigError, StorageError
        """
        self._access.check(Operation.ALTER_CONFIGS, TOPIC, topic)
        await self._admin.replace_topic_configs(topic, configs, validate_only)

    async def alter_group(
        self, group_id: str, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> None:
        """Change single configs of a group.

        Raises:
            GroupAuthorizationError: the principal can't alter the group's configs.
            InvalidConfigError, InvalidRequestError, PolicyViolationError, StorageError
        """
        self._access.check(Operation.ALTER_CONFIGS, GROUP, group_id)
        await self._admin.alter_group_configs(group_id, changes, validate_only)

    async def replace_group(
        self, group_id: str, configs: Mapping[str, str | None], validate_only: bool = False
    ) -> None:
        """Replace all configs that are set on a group.

        Raises:
            GroupAuthorizationError: the principal can't alter the group's configs.
            InvalidConfigError, InvalidRequestError, PolicyViolationError, StorageError
        """
        self._access.check(Operation.ALTER_CONFIGS, GROUP, group_id)
        await self._admin.replace_group_configs(group_id, configs, validate_only)

    async def alter_broker(
        self,
        changes: Sequence[ConfigChange],
        validate_only: bool = False,
        *,
        all_brokers: bool = False,
    ) -> None:
        """Change single dynamic configs of this broker, or of all brokers.

        Raises:
            ClusterAuthorizationError: the principal can't alter the broker's configs.
            InvalidConfigError, StorageError
        """
        self._access.check(Operation.ALTER_CONFIGS, CLUSTER)
        await self._admin.alter_broker_configs(changes, validate_only, all_brokers=all_brokers)

    async def replace_broker(
        self,
        configs: Mapping[str, str | None],
        validate_only: bool = False,
        *,
        all_brokers: bool = False,
    ) -> None:
        """Replace all dynamic configs of this broker, or of all brokers.

        Raises:
            ClusterAuthorizationError: the principal can't alter the broker's configs.
            InvalidConfigError, StorageError
        """
        self._access.check(Operation.ALTER_CONFIGS, CLUSTER)
        await self._admin.replace_broker_configs(configs, validate_only, all_brokers=all_brokers)
