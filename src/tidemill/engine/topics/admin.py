"""Create, grow and delete topics, and change configs: commands to the catalog, folders on disk.

A creation makes the folders first and then writes the catalog. So a topic in the catalog without a
folder is always damage, and never an unfinished creation. A deletion works the other way round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from uuid import UUID

import structlog

from tidemill.engine.api import ConfigChange, NewTopic, TopicInfo
from tidemill.engine.internal_topics import JOURNAL_CONFIGS
from tidemill.engine.topics.catalog_log import CatalogLog
from tidemill.engine.topics.folders import Folders
from tidemill.engine.topics.notes import TopicNotes
from tidemill.errors import TidemillError, UnknownTopicOrPartitionError
from tidemill.log.config.parse import parse_config
from tidemill.log.names import TopicPartition
from tidemill.state.catalog.catalog import Catalog
from tidemill.state.catalog.group_configs import GroupConfigs
from tidemill.state.internal_topics import (
    CATALOG_TOPIC,
    INTERNAL_TOPICS,
    PRIVATE_TOPICS,
    is_internal,
)

logger = structlog.get_logger("tidemill.topics")


async def _do_nothing(_: Sequence[str]) -> None:
    return None


class TopicAdmin:
    """Changes topics and configs.

    Args:
        catalog: what exists. Others may read it.
        catalog_log: writes the catalog.
        notes: what the folders keep about their topics.
        lock: creation and deletion change folders too, so they run one at a time.
        auto_create: whether ``ensure`` creates topics.

    Attributes:
        on_deleted: awaited with the names of deleted topics.
    """

    def __init__(
        self,
        catalog: Catalog,
        catalog_log: CatalogLog,
        folders: Folders,
        notes: TopicNotes,
        lock: asyncio.Lock,
        *,
        auto_create: bool,
    ) -> None:
        self.catalog = catalog
        self._catalog_log = catalog_log
        self._folders = folders
        self._notes = notes
        self._auto_create = auto_create
        self._lock = lock
        self.on_deleted: Callable[[Sequence[str]], Awaitable[None]] = _do_nothing

    async def recover(self) -> None:
        """Match the folders with the catalog, and create missing internal topics."""
        self._folders.match(self.catalog)
        if self.catalog.deleted:
            await self._finish_deletions(list(self.catalog.deleted))
        self._notes.check(topic.name for topic in self.catalog.topics())
        new = [
            NewTopic(name, 1, 1, configs=JOURNAL_CONFIGS)
            for name in sorted(INTERNAL_TOPICS - {CATALOG_TOPIC})
            if name not in self.catalog
        ]
        for created in await self._create(new, internal=True):
            if isinstance(created, TidemillError):
                raise created

    # --- topics ----------------------------------------------------------------------------------

    def listed(self) -> list[TopicInfo]:
        """Return the topics that exist for clients, by name.

        An internal topic exists from its first use, as in Apache Kafka. By its name it can be found
        before: its folder is there. A private one is not listed.
        """
        return [
            topic
            for topic in self.catalog.topics()
            if topic.name not in PRIVATE_TOPICS and not self._folders.is_unused(topic)
        ]

    async def ensure(self, name: str) -> TopicInfo:
        """Return the topic. Create it with defaults where the settings allow it.

        Raises:
            UnknownTopicOrPartitionError: the topic does not exist and is not created.
            InvalidTopicError: the name is not legal.
        """
        if name in self.catalog:
            return self.catalog.topic(name)
        if not self._auto_create or is_internal(name):
            raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
        async with self._lock:
            if name in self.catalog:
                return self.catalog.topic(name)
            (created,) = await self._create([NewTopic(name)])
        if isinstance(created, TidemillError):
            raise created
        logger.info("topic.auto_created", topic=name, partitions=created.partitions)
        return created

    async def create(
        self,
        topics: Sequence[NewTopic],
        validate_only: bool = False,
        after: Awaitable[None] | None = None,
    ) -> list[TopicInfo | TidemillError]:
        """Create topics.

        Returns:
            The topic or its error for each, in order.

        Args:
            after: is awaited before the catalog is written, while the folders are created.
        """
        async with self._lock:
            if validate_only:
                return self.catalog.create(topics, validate_only=True).result
            return await self._create(topics, after=after)

    async def _create(
        self,
        topics: Sequence[NewTopic],
        *,
        internal: bool = False,
        after: Awaitable[None] | None = None,
    ) -> list[TopicInfo | TidemillError]:
        outcome = self.catalog.create(topics, internal=internal)
        created: list[TopicPartition] = []
        try:
            for new, info in zip(topics, outcome.result, strict=True):
                if isinstance(info, TopicInfo):
                    overrides = {k: v for k, v in new.configs.items() if v is not None}
                    config = parse_config(overrides, self.catalog.defaults())
                    note = self._notes.note(info.partitions, overrides)
                    await self._folders.create(info, 0, config, note, created)
            if after is not None:
                await after
            await self._catalog_log.commit(outcome)
        except TidemillError as error:
            self.catalog.write_failed(outcome)
            await self._folders.delete(created)
            return [r if isinstance(r, TidemillError) else error for r in outcome.result]
        finally:
            self._folders.uncommitted.difference_update(created)
        if created:
            self._notes.created(created[-1].topic)
        return outcome.result

    async def add_partitions(
        self,
        name: str,
        total: int,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Grow a topic to ``total`` partitions.

        Raises:
            UnknownTopicOrPartitionError, InvalidPartitionsError, InvalidReplicaAssignmentError
            StorageError: the disk refuses.
        """
        async with self._lock:
            outcome = self.catalog.add_partitions(
                name, total, assignments, validate_only=validate_only
            )
            if validate_only:
                return
            created: list[TopicPartition] = []
            try:
                before = self.catalog.topic(name).partitions
                config = self.catalog.log_config(name)
                note = self._notes.note(total, self.catalog.config_of(name))
                await self._folders.create(outcome.result, before, config, note, created)
                await self._catalog_log.commit(outcome)
            except TidemillError:
                self.catalog.write_failed(outcome)
                await self._folders.delete(created)
                raise
            finally:
                self._folders.uncommitted.difference_update(created)
            self._notes.changed(name)

    async def delete(self, names: Sequence[str]) -> list[TidemillError | None]:
        """Delete topics with their records and committed offsets.

        Returns:
            None or an error for each, in order.
        """
        async with self._lock:
            outcome = self.catalog.delete(names)
            try:
                await self._catalog_log.commit(outcome)
            except TidemillError as error:
                return [r if isinstance(r, TidemillError) else error for r in outcome.result]
            deleted = [info for info in outcome.result if isinstance(info, TopicInfo)]
            for topic in deleted:
                partitions = [TopicPartition(topic.name, n) for n in range(topic.partitions)]
                await self._folders.delete(partitions)
            if deleted:  # under the lock: before a client can create them again
                await self.on_deleted([topic.name for topic in deleted])
                await self._finish_deletions([topic.topic_id for topic in deleted])
        return [r if isinstance(r, TidemillError) else None for r in outcome.result]

    async def _finish_deletions(self, topic_ids: Sequence[UUID]) -> None:
        """Forget deleted topics, because their folders are gone.

        Until then the catalog says that remaining folders are not those of a lost topic.
        """
        try:
            await self._folders.sync_deletions()
            await self._catalog_log.commit(self.catalog.deletions_done(topic_ids))
        except TidemillError as error:  # the next start does it again
            logger.warning("deletion.not_recorded", error=str(error))

    # --- configs: errors are those of the catalog, of GroupConfigs, and StorageError -------------

    async def alter_topic_configs(
        self, name: str, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> None:
        """Change single configs of a topic (KIP-339)."""
        await self._catalog_log.commit(
            self.catalog.alter_topic(name, changes, validate_only=validate_only)
        )
        self._apply_configs(name)

    async def replace_topic_configs(
        self, name: str, overrides: Mapping[str, str | None], validate_only: bool = False
    ) -> None:
        """Replace all configs that are set on a topic."""
        await self._catalog_log.commit(
            self.catalog.replace_topic(name, overrides, validate_only=validate_only)
        )
        self._apply_configs(name)

    async def alter_broker_configs(
        self,
        changes: Sequence[ConfigChange],
        validate_only: bool = False,
        *,
        all_brokers: bool = False,
    ) -> None:
        """Change single dynamic configs of this broker, or of all brokers."""
        await self._catalog_log.commit(
            self.catalog.alter_broker(changes, all_brokers=all_brokers, validate_only=validate_only)
        )
        self._apply_all_configs()

    async def replace_broker_configs(
        self,
        overrides: Mapping[str, str | None],
        validate_only: bool = False,
        *,
        all_brokers: bool = False,
    ) -> None:
        """Replace all dynamic configs of this broker, or of all brokers."""
        await self._catalog_log.commit(
            self.catalog.replace_broker(
                overrides, all_brokers=all_brokers, validate_only=validate_only
            )
        )
        self._apply_all_configs()

    @property
    def group_configs(self) -> GroupConfigs:
        """The configs of single groups. Others may read it."""
        return self._catalog_log.group_configs

    async def alter_group_configs(
        self, group_id: str, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> None:
        """Change single configs of a group."""
        outcome = self.group_configs.alter(group_id, changes, validate_only=validate_only)
        await self._catalog_log.commit(outcome, self.group_configs.write_failed)

    async def replace_group_configs(
        self, group_id: str, configs: Mapping[str, str | None], validate_only: bool = False
    ) -> None:
        """Replace all configs that are set on a group."""
        outcome = self.group_configs.replace(group_id, configs, validate_only=validate_only)
        await self._catalog_log.commit(outcome, self.group_configs.write_failed)

    def _apply_all_configs(self) -> None:
        for topic in self.catalog.topics():
            self._folders.set_config(topic, self.catalog.log_config(topic.name))

    def _apply_configs(self, name: str) -> None:
        # The topic might have been deleted while its change was written.
        if name in self.catalog:
            self._folders.set_config(self.catalog.topic(name), self.catalog.log_config(name))
            self._notes.changed(name)
