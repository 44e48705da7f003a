"""The part of the engine for topics, with its access checks.

Every public method checks access and delegates. Knows no protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tidemill.engine.api import NewTopic, TopicInfo
from tidemill.engine.authorize import TOPIC, Access, Operation
from tidemill.engine.topics.admin import TopicAdmin
from tidemill.engine.topics.lookup import check_partition
from tidemill.errors import TidemillError


class Topics:
    """Topics for one principal."""

    def __init__(self, admin: TopicAdmin, access: Access) -> None:
        self._access = access
        self._admin = admin
        self._catalog = admin.catalog

    # --- look up ---------------------------------------------------------------------------------

    def get(self, name: str) -> TopicInfo:
        """Return a topic by name.

        Raises:
            TopicAuthorizationError: the principal can't describe the topic.
            UnknownTopicOrPartitionError: the topic does not exist.
        """
        self._access.check(Operation.DESCRIBE, TOPIC, name)
        return self._catalog.topic(name)

    def by_id(self, topic_id: UUID) -> TopicInfo:
        """Return a topic by id.

        Raises:
            TopicAuthorizationError: the principal can't describe the topic.
            UnknownTopicIdError: no topic has this id.
        """
        topic = self._catalog.topic_by_id(topic_id)
        self._access.check(Operation.DESCRIBE, TOPIC, topic.name)
        return topic

    def all(self) -> list[TopicInfo]:
        """Return the topics that the principal can describe, by name."""
        topics = self._admin.listed()
        if self._access.is_unrestricted:
            return topics
        return [t for t in topics if self._access.allows(Operation.DESCRIBE, TOPIC, t.name)]

    def check_partition(self, topic: str, partition: int) -> None:
        """Return if the partition exists.

        Raises:
            TopicAuthorizationError: the principal can't describe the topic.
            UnknownTopicOrPartitionError: the partition does not exist.
        """
        self._access.check(Operation.DESCRIBE, TOPIC, topic)
        check_partition(self._catalog, topic, partition)

    # --- change ----------------------------------------------------------------------------------

    async def ensure(self, name: str) -> TopicInfo:
        """Return the topic. Create it with defaults where it is missing and settings allow it.

        Raises:
            TopicAuthorizationError: the topic exists and the principal can't describe it, or it is
                missing and the principal can't create it.
            UnknownTopicOrPartitionError: the topic does not exist and is not created.
            InvalidTopicError: the name is not legal.
        """
        operation = Operation.DESCRIBE if name in self._catalog else Operation.CREATE
        self._access.check(operation, TOPIC, name)
        return await self._admin.ensure(name)

    async def create(
        self, topics: Sequence[NewTopic], validate_only: bool = False
    ) -> list[TopicInfo | TidemillError]:
        """Create topics.

        Returns:
            The topic or its error for each, in order.
        """
        refused = self._access.refusals(Operation.CREATE, TOPIC, (topic.name for topic in topics))
        allowed = [topic for topic, error in zip(topics, refused, strict=True) if error is None]
        outcomes = iter(await self._admin.create(allowed, validate_only))
        return [error or next(outcomes) for error in refused]

    async def delete(self, names: Sequence[str]) -> list[TidemillError | None]:
        """Delete topics with their records and committed offsets.

        Returns:
            None or an error for each, in order.
        """
        refused = self._access.refusals(Operation.DELETE, TOPIC, names)
        allowed = [name for name, error in zip(names, refused, strict=True) if error is None]
        outcomes = iter(await self._admin.delete(allowed))
        return [error or next(outcomes) for error in refused]

    async def add_partitions(
        self,
        topic: str,
        total: int,
        assignments: list[list[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Grow a topic to ``total`` partitions.

        Raises:
            TopicAuthorizationError: the principal can't alter the topic.
            UnknownTopicOrPartitionError, InvalidPartitionsError, InvalidReplicaAssignmentError
            StorageError: the disk refuses.
        """
        self._access.check(Operation.ALTER, TOPIC, topic)
        await self._admin.add_partitions(topic, total, assignments, validate_only)
