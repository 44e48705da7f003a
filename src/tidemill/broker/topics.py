"""Topics, configs and producer ids: commands to the catalog, folders to the store.

Creating makes the folders first and then writes the catalog, so that a topic that the catalog
knows and that has no folder is always damage, never an unfinished creation. Deleting goes the
other way round. Folders that no catalog record owns are set aside at start, not deleted.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import structlog

from tidemill.broker.api import ConfigChange, ConfigEntry, NewTopic, TopicInfo
from tidemill.broker.flusher import Flusher
from tidemill.broker.journal import Journal
from tidemill.broker.waiters import Waiters
from tidemill.clock import Clock
from tidemill.errors import StorageError, TidemillError, UnknownTopicOrPartitionError
from tidemill.log.config import LogConfig
from tidemill.log.names import TopicPartition
from tidemill.log.partition import PartitionLog
from tidemill.log.store import LogStore
from tidemill.log.syncing import run_tickets
from tidemill.settings import Settings
from tidemill.state import broker_configs
from tidemill.state.catalog import Catalog, is_internal
from tidemill.state.catalog_format import CATALOG_TOPIC
from tidemill.state.offsets_format import OFFSETS_TOPIC
from tidemill.state.outcome import Outcome
from tidemill.state.producer_ids import ProducerIds
from tidemill.state.transactions_format import TRANSACTIONS_TOPIC

R = TypeVar("R")

CATALOG = TopicPartition(CATALOG_TOPIC, 0)
OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
TRANSACTIONS = TopicPartition(TRANSACTIONS_TOPIC, 0)
# Small segments are compacted early: what a start replays stays a few thousand records.
CATALOG_CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "1048576"}
JOURNAL_CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "2097152"}
FOLDERS_AT_ONCE = 16

log_line = structlog.get_logger("tidemill.topics")


class _Machine(Protocol):
    """A state machine in the catalog's journal."""

    def replay(self, key: bytes, value: bytes | None) -> bool: ...

    def write_failed(self, outcome: Outcome[Any]) -> None: ...


async def _nothing(_: Sequence[str]) -> None:
    return None


class TopicAdmin:
    """Owns the catalog.

    Attributes:
        catalog: to be read by anyone, changed only here.
        unborn: partitions that have a folder, but no catalog record on disk yet: nobody may write
            to them, since a catalog that can't be written takes them away again.
        on_deleted: awaited with the names of topics that were deleted.
    """

    def __init__(
        self,
        store: LogStore,
        flusher: Flusher,
        waiters: Waiters,
        clock: Clock,
        settings: Settings,
        node_id: int,
    ) -> None:
        self._store = store
        self._flusher = flusher
        self._waiters = waiters
        self._clock = clock
        self._settings = settings
        self._node_id = node_id
        self.catalog = Catalog(
            node_id=node_id,
            default_partitions=settings.default_partitions,
            max_partitions=settings.limits.partitions,
            topic_defaults=settings.log.topic_defaults,
        )
        self._producer_ids = ProducerIds()
        # Creation and deletion touch folders too: one at a time.
        self._lock = asyncio.Lock()
        self.unborn: set[TopicPartition] = set()
        self.on_deleted: Callable[[Sequence[str]], Awaitable[None]] = _nothing

    # --- start -----------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Replay the catalog and match it with the folders that are there.

        Raises:
            StorageError: the catalog's own log is damaged.
        """
        log = self._internal_log(CATALOG, CATALOG_CONFIGS)
        self._journal = Journal(log, self._flusher, self._clock)
        for key, value in self._journal.latest().items():
            if not self._replay(key, value):
                log_line.warning("catalog.foreign_record", key=key[:64].decode(errors="replace"))
        self._match_folders()
        new = [
            NewTopic(name, 1, 1, configs=JOURNAL_CONFIGS)
            for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
            if name not in self.catalog
        ]
        for created in await self._create(new, internal=True):
            if isinstance(created, TidemillError):
                raise created

    def _internal_log(self, tp: TopicPartition, overrides: Mapping[str, str]) -> PartitionLog:
        damage = self._store.offline.get(tp)
        if damage is not None:
            raise damage
        config = LogConfig.parse(overrides, {})
        log = self._store.partitions.get(tp)
        if log is None:
            return self._store.create(tp, config, uuid.uuid4())
        log.config = config
        return log

    def _match_folders(self) -> None:
        owned = {CATALOG}
        for topic in self.catalog.topics():
            config = self.catalog.log_config(topic.name)
            for number in range(topic.partitions):
                tp = TopicPartition(topic.name, number)
                owned.add(tp)
                self._match(tp, topic, config)
        for tp in [tp for tp in self._store.partitions if tp not in owned]:
            if self._store.partitions[tp].log_end_offset == 0:
                self._store.delete(tp)
            else:
                path = self._store.set_aside(tp)
                log_line.warning(
                    "folder.set_aside", partition=str(tp), path=path, reason="no topic owns it"
                )

    def _match(self, tp: TopicPartition, topic: TopicInfo, config: LogConfig) -> None:
        log = self._store.partitions.get(tp)
        if log is None:
            if tp not in self._store.offline:
                self._store.mark_offline(
                    tp,
                    StorageError(
                        f"the folder of partition {tp} is missing in {self._store.path}",
                        hint="Put it back from a backup, or delete the topic.",
                    ),
                )
        elif log.topic_id not in (None, topic.topic_id):
            log.go_offline(
                StorageError(
                    f"the folder of partition {tp} belongs to topic id {log.topic_id}, "
                    f"the catalog says {topic.topic_id}",
                    hint="Put the right folder back, or delete the topic.",
                )
            )
        else:
            log.config = config

    @property
    def cluster_uuid(self) -> uuid.UUID:
        """Identity of the data folder: the catalog's own topic id."""
        return self._journal.log.topic_id or uuid.UUID(int=0)

    def journal(self, tp: TopicPartition) -> Journal:
        """The journal of a state machine: ``OFFSETS``, ``TRANSACTIONS``.

        Raises:
            StorageError: its log is damaged.
        """
        damage = self._store.offline.get(tp)
        if damage is not None:
            raise damage
        return Journal(self._store.partitions[tp], self._flusher, self._clock)

    # --- create ----------------------------------------------------------------------------------

    async def ensure(self, name: str) -> TopicInfo:
        """The topic, created with defaults where the settings allow it."""
        if name in self.catalog:
            return self.catalog.topic(name)
        if not self._settings.auto_create_topics or is_internal(name):
            raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
        async with self._lock:
            if name in self.catalog:
                return self.catalog.topic(name)
            (created,) = await self._create([NewTopic(name)])
        if isinstance(created, TidemillError):
            raise created
        log_line.info("topic.auto_created", topic=name, partitions=created.partitions)
        return created

    async def create(
        self, topics: Sequence[NewTopic], validate_only: bool
    ) -> list[TopicInfo | TidemillError]:
        async with self._lock:
            if validate_only:
                return self.catalog.create(topics, validate_only=True).result
            return await self._create(topics)

    async def _create(
        self, topics: Sequence[NewTopic], *, internal: bool = False
    ) -> list[TopicInfo | TidemillError]:
        outcome = self.catalog.create(topics, internal=internal)
        made: list[TopicPartition] = []
        try:
            for new, info in zip(topics, outcome.result, strict=True):
                if isinstance(info, TopicInfo):
                    overrides = {k: v for k, v in new.configs.items() if v is not None}
                    config = LogConfig.parse(overrides, self.catalog.defaults())
                    await self._make_folders(info, 0, config, made)
            await self._commit(outcome, self.catalog)
        except TidemillError as error:
            self.catalog.write_failed(outcome)
            await self._drop(made)
            return [r if isinstance(r, TidemillError) else error for r in outcome.result]
        finally:
            self.unborn.difference_update(made)
        return outcome.result

    async def _make_folders(
        self, topic: TopicInfo, first: int, config: LogConfig, made: list[TopicPartition]
    ) -> None:
        for number in range(first, topic.partitions):
            tp = TopicPartition(topic.name, number)
            self._store.create(tp, config, topic.topic_id)
            self.unborn.add(tp)
            made.append(tp)
            await self._pause(number)
        # Before the catalog names them they must survive a power cut.
        logs = [self._store.partitions[tp] for tp in made]
        tickets = [(log, ticket) for log in logs if (ticket := log.begin_sync()) is not None]
        await asyncio.get_running_loop().run_in_executor(
            None, run_tickets, [ticket for _, ticket in tickets]
        )
        for log, ticket in tickets:
            log.finish_sync(ticket)

    async def create_partitions(
        self,
        name: str,
        total: int,
        assignments: Sequence[Sequence[int]] | None,
        validate_only: bool,
    ) -> None:
        async with self._lock:
            outcome = self.catalog.add_partitions(
                name, total, assignments, validate_only=validate_only
            )
            if validate_only:
                return
            made: list[TopicPartition] = []
            try:
                before = self.catalog.topic(name).partitions
                await self._make_folders(
                    outcome.result, before, self.catalog.log_config(name), made
                )
                await self._commit(outcome, self.catalog)
            except TidemillError:
                self.catalog.write_failed(outcome)
                await self._drop(made)
                raise
            finally:
                self.unborn.difference_update(made)

    # --- delete ----------------------------------------------------------------------------------

    async def delete(self, names: Sequence[str]) -> list[TidemillError | None]:
        async with self._lock:
            outcome = self.catalog.delete(names)
            try:
                await self._commit(outcome, self.catalog)
            except TidemillError as error:
                return [r if isinstance(r, TidemillError) else error for r in outcome.result]
            gone = [info for info in outcome.result if isinstance(info, TopicInfo)]
            for topic in gone:
                await self._drop([TopicPartition(topic.name, n) for n in range(topic.partitions)])
            if gone:  # before anybody may create them again
                await self.on_deleted([topic.name for topic in gone])
        return [r if isinstance(r, TidemillError) else None for r in outcome.result]

    async def _drop(self, partitions: Sequence[TopicPartition]) -> None:
        for count, tp in enumerate(partitions):
            log = self._store.partitions.get(tp)
            if log is not None or tp in self._store.offline:
                self._store.delete(tp)
            if log is not None:
                self._flusher.forget(log)
            self._waiters.wake(tp)
            await self._pause(count)

    @staticmethod
    async def _pause(count: int) -> None:
        """Folders of a large topic take seconds: let others have a turn in between."""
        if count % FOLDERS_AT_ONCE == FOLDERS_AT_ONCE - 1:
            await asyncio.sleep(0)

    # --- configs ---------------------------------------------------------------------------------

    def topic_configs(self, name: str) -> list[ConfigEntry]:
        return self.catalog.topic_entries(name)

    def broker_configs(self, listener: str, advertised: str) -> list[ConfigEntry]:
        static = broker_configs.static_values(
            self._settings,
            node_id=self._node_id,
            listener=listener,
            advertised_listener=advertised,
        )
        return broker_configs.broker_entries(
            static, self.catalog.broker_config(), self._settings.log.topic_defaults
        )

    async def alter_configs(
        self, name: str, changes: Sequence[ConfigChange], validate_only: bool
    ) -> None:
        await self._commit(
            self.catalog.alter_topic(name, changes, validate_only=validate_only), self.catalog
        )
        self._apply_config(name)

    async def replace_configs(
        self, name: str, overrides: Mapping[str, str | None], validate_only: bool
    ) -> None:
        await self._commit(
            self.catalog.replace_topic(name, overrides, validate_only=validate_only), self.catalog
        )
        self._apply_config(name)

    async def alter_broker_configs(
        self, changes: Sequence[ConfigChange], validate_only: bool
    ) -> None:
        await self._commit(
            self.catalog.alter_broker(changes, validate_only=validate_only), self.catalog
        )
        self._apply_all_configs()

    async def replace_broker_configs(
        self, overrides: Mapping[str, str | None], validate_only: bool
    ) -> None:
        await self._commit(
            self.catalog.replace_broker(overrides, validate_only=validate_only), self.catalog
        )
        self._apply_all_configs()

    def _apply_all_configs(self) -> None:
        for topic in self.catalog.topics():
            self._apply_config(topic.name)

    def _apply_config(self, name: str) -> None:
        # The topic may have been deleted while its change was written.
        if name not in self.catalog:
            return
        config = self.catalog.log_config(name)
        for number in range(self.catalog.topic(name).partitions):
            log = self._store.partitions.get(TopicPartition(name, number))
            if log is not None:
                log.config = config

    # --- producer ids ----------------------------------------------------------------------------

    async def next_producer_id(self) -> int:
        """A producer id that was never used.

        Raises:
            StorageError: the catalog could not be written.
        """
        return await self._commit(self._producer_ids.allocate(), self._producer_ids)

    # --- inside ----------------------------------------------------------------------------------

    def _replay(self, key: bytes, value: bytes | None) -> bool:
        return self.catalog.replay(key, value) or self._producer_ids.replay(key, value)

    async def _commit(self, outcome: Outcome[R], machine: _Machine) -> R:
        """Write, then replay, then answer.

        Raises:
            StorageError: the catalog could not be written; nothing has changed.
        """
        if not outcome.records:
            return outcome.result
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            if error is None:
                for record in outcome.records:
                    self._replay(record.key, record.value)
            else:
                machine.write_failed(outcome)
            if written.done():
                return
            if error is None:
                written.set_result(None)
            elif isinstance(error, TidemillError):
                written.set_exception(error)
            else:
                written.set_exception(StorageError(f"the catalog could not be written: {error}"))

        self._journal.submit(outcome.records, done)
        await written
        return outcome.result
