"""The one door: everything that a protocol may ask of tidemill.

The door only holds the parts together and gives them one narrow face: ``data`` (records),
``topics`` (catalog), ``coordination`` (groups and offsets), ``transactions``, ``housekeeping``.
What may be asked of groups and of transactions stands in ``door_groups`` and
``door_transactions``. It knows no protocol.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Mapping, Sequence
from uuid import UUID

import structlog

from tidemill.broker import replicas
from tidemill.broker.api import (
    Acks,
    ConfigChange,
    ConfigEntry,
    FetchQuery,
    Isolation,
    LogDir,
    MetadataLog,
    NewTopic,
    OffsetAt,
    PartitionWrite,
    ProducerInfo,
    ReadResult,
    TopicInfo,
    TransactionVersion,
    WriteResult,
)
from tidemill.broker.coordination import GroupCoordination
from tidemill.broker.data import DataPlane
from tidemill.broker.door_groups import GroupsDoor
from tidemill.broker.door_transactions import TransactionsDoor
from tidemill.broker.flusher import Flusher
from tidemill.broker.healing import Healing
from tidemill.broker.housekeeping import Housekeeping
from tidemill.broker.markers import Markers
from tidemill.broker.topics import CATALOG, OFFSETS, TRANSACTIONS, TopicAdmin
from tidemill.broker.transactions import TransactionCoordination
from tidemill.broker.waiters import Waiters
from tidemill.clock import Clock, SystemClock
from tidemill.errors import (
    BrokerStoppingError,
    CoordinatorNotAvailableError,
    StorageError,
    TidemillError,
)
from tidemill.log.files import FileSystem
from tidemill.log.partition import PartitionLog
from tidemill.log.store import LogStore
from tidemill.settings import Settings

STOPPING = "the broker is stopping"

log_line = structlog.get_logger("tidemill.broker")


class Broker(GroupsDoor, TransactionsDoor):
    """One broker over one data folder.

    ``start`` must have returned before anything else is called, and nothing may be called after
    ``stop``.

    Attributes:
        advertised_host: host that clients are told to connect to; set by the protocol server.
        advertised_port: the port, likewise.
        failed: done, with a ``StorageError``, when the broker can't promise anything any more and
            the process must end.
    """

    def __init__(
        self, settings: Settings, clock: Clock | None = None, fs: FileSystem | None = None
    ) -> None:
        self.settings = settings
        self.node_id = settings.node_id
        self.clock: Clock = clock or SystemClock()
        self.advertised_host = settings.kafka.advertised_host or settings.host
        self.advertised_port = settings.kafka.advertised_port or settings.kafka.port
        self._fs = fs
        self._stopped = False

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the data folder, recover what an unclean stop left, replay the state.

        Raises:
            DataDirLockedError: another process uses the folder.
            FormatVersionError: the folder's format is not this version's.
            CorruptLogError: an internal topic is damaged.
            StorageError: the disk refuses.
        """
        self.failed: asyncio.Future[StorageError] = asyncio.get_running_loop().create_future()
        self._store = LogStore.open(
            self.settings.data_dir,
            clock=self.clock,
            fs=self._fs,
            defaults=self.settings.log.topic_defaults,
            max_open_files=self.settings.limits.open_files,
            producer_expiry_ms=self.settings.log.producer_id_expiration_ms,
        )
        try:
            await self._assemble()
        except BaseException:
            self._store.close(clean=False)
            raise
        loop = asyncio.get_running_loop()

        # Whoever it hit, a client's request or a compaction: no claim about the disk holds now.
        def fail(error: StorageError) -> None:
            loop.call_soon_threadsafe(self._on_failure, error)

        self._store.environment.pool.on_sync_failure = fail
        self._housekeeping.start()

    async def _assemble(self) -> None:
        self._waiters = Waiters()
        self._flusher = Flusher(
            interval_ms=self.settings.log.sync_interval_ms,
            on_advance=self._on_advance,
            on_failure=self._on_failure,
        )
        self._topics = TopicAdmin(
            self._store, self._flusher, self._waiters, self.clock, self.settings, self.node_id
        )
        await self._topics.recover()
        self._coordination = GroupCoordination(
            self._topics.journal(OFFSETS), self.settings.groups, self.clock
        )
        self._coordination.recover()
        markers = Markers(self._store, self._flusher, self.clock, self._coordination)
        self._transactions = TransactionCoordination(
            self._topics.journal(TRANSACTIONS),
            markers,
            self._flusher,
            self._topics.next_producer_id,
            self.settings.transactions,
            self.clock,
        )
        self._transactions.recover()
        self._topics.on_deleted = self._forget_topics
        self._data = DataPlane(
            self._store,
            self._flusher,
            self._waiters,
            self.clock,
            fetch_bytes=self.settings.limits.fetch_bytes,
            unborn=self._topics.unborn,
            admit=self._transactions.admit,
        )
        self._housekeeping = Housekeeping(
            self._store,
            self._coordination,
            self._transactions,
            self._waiters,
            self.settings,
            self.clock,
            self._on_failure,
        )
        for report in self._store.reports:
            log_line.warning("log.repaired", report=str(report))
        for tp, error in self._store.offline.items():
            log_line.error("partition.offline", partition=str(tp), error=str(error))
        await Healing(self._store, self._transactions, markers).run()
        if self.failed.done():
            raise self.failed.result()
        self._transactions.resume()

    async def _forget_topics(self, names: Sequence[str]) -> None:
        try:
            self._transactions.drop_topics(names)
        except CoordinatorNotAvailableError as error:
            # Where a transaction ends, partitions that are gone are skipped.
            log_line.warning("topics.not_forgotten", topics=names, error=str(error))
        await self._coordination.forget_topics(names)

    async def stop(self) -> None:
        """End long polls, sync everything, write the clean marker. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        broken = self.failed.done()
        await self._housekeeping.stop()
        self._transactions.stop(BrokerStoppingError(STOPPING))
        await self._transactions.stopped()
        self._coordination.stop(BrokerStoppingError(STOPPING))
        self._data.stop()
        if not broken:
            try:
                await self._flusher.drain()
            except TidemillError as error:
                log_line.error("stop.unclean", error=str(error))
                broken = True
        self._flusher.close()
        self._store.close(clean=not broken)

    def _on_advance(self, log: PartitionLog) -> None:
        self._waiters.advanced(log)

    def _on_failure(self, error: StorageError) -> None:
        if self.failed.done():
            return
        log_line.critical("storage.failed", error=str(error), hint=error.hint)
        self._data.stop(error)
        self._transactions.stop(BrokerStoppingError(STOPPING))
        self._coordination.stop(BrokerStoppingError(STOPPING))
        self.failed.set_result(error)

    @property
    def cluster_id(self) -> str:
        """Stable id of this data folder, in Kafka's form (22 characters of URL-safe base64)."""
        return base64.urlsafe_b64encode(self._topics.cluster_uuid.bytes).rstrip(b"=").decode()

    # --- records ---------------------------------------------------------------------------------

    def produce(
        self,
        writes: Sequence[PartitionWrite],
        acks: Acks,
        transactional_id: str | None = None,
        version: TransactionVersion = TransactionVersion.V1,
    ) -> list[WriteResult] | Awaitable[list[WriteResult]]:
        """Append record batches, in order, during the call.

        Batches of a transaction need the transactional id, whose coordinator must admit them.
        The answer is awaitable only where ``acks`` is ``DURABLE`` and has to wait for fdatasync.
        Errors stand in the results; nothing is raised for a single partition.
        """
        return self._data.produce(writes, acks, transactional_id, version)

    async def fetch(self, query: FetchQuery) -> list[ReadResult]:
        """Read from many partitions; results in the order of the query."""
        return await self._data.fetch(query)

    async def list_offset(
        self,
        topic: str,
        partition: int,
        timestamp_ms: int,
        isolation: Isolation,
        leader_epoch: int = -1,
    ) -> OffsetAt:
        """The first offset at or after ``timestamp_ms``, or a special one (see ``api``)."""
        return await self._data.list_offset(topic, partition, timestamp_ms, isolation, leader_epoch)

    async def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Delete a prefix; returns the new log start offset (-1: up to the high watermark)."""
        return await self._data.delete_records(topic, partition, before_offset)

    def end_offset_for_epoch(
        self, topic: str, partition: int, epoch: int, current_epoch: int
    ) -> tuple[int, int]:
        """(epoch, end offset) for OffsetForLeaderEpoch (KIP-320)."""
        return self._data.end_offset_for_epoch(topic, partition, epoch, current_epoch)

    async def init_producer_id(self, transactional_id: None = None) -> tuple[int, int]:
        """A fresh (producer id, epoch) for an idempotent producer (KIP-98). One with a
        transactional id asks ``init_transactional_producer``."""
        return await self._topics.next_producer_id(), 0

    def producers(self, topic: str, partition: int) -> list[ProducerInfo]:
        """Idempotent producers that a partition remembers (KIP-664)."""
        return self._data.producers(topic, partition)

    def log_dirs(self, partitions: set[tuple[str, int]] | None) -> LogDir:
        """Sizes on disk; all partitions where ``partitions`` is None."""
        return self._data.log_dir(partitions)

    def move_replicas(
        self, path: str, partitions: Sequence[tuple[str, int]]
    ) -> list[TidemillError | None]:
        """Moves of partitions to another log folder; there is one, so an error per partition."""
        here = str(self._store.path)
        return replicas.move_replicas(self._topics.catalog, here, path, partitions)

    def metadata_log(self) -> MetadataLog:
        """How far the catalog's log is."""
        log = self._store.partitions[CATALOG]
        return MetadataLog(log.leader_epoch, log.high_watermark, log.log_end_offset)

    # --- topics ----------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicInfo:
        """A topic by name.

        Raises:
            UnknownTopicOrPartitionError: there is none.
        """
        return self._topics.catalog.topic(name)

    def topic_by_id(self, topic_id: UUID) -> TopicInfo:
        """A topic by id.

        Raises:
            UnknownTopicIdError: there is none.
        """
        return self._topics.catalog.topic_by_id(topic_id)

    def topics(self) -> list[TopicInfo]:
        """All topics, by name."""
        return self._topics.catalog.topics()

    async def ensure_topic(self, name: str) -> TopicInfo:
        """The topic, created with defaults if it is missing and the settings allow it.

        Raises:
            UnknownTopicOrPartitionError: it is missing and may not be created.
            InvalidTopicError: the name is not legal.
        """
        return await self._topics.ensure(name)

    async def create_topics(
        self, topics: Sequence[NewTopic], validate_only: bool = False
    ) -> list[TopicInfo | TidemillError]:
        """Create topics, each by itself; an error per topic stands in its place."""
        return await self._topics.create(topics, validate_only)

    async def delete_topics(self, names: Sequence[str]) -> list[TidemillError | None]:
        """Delete topics with their records and committed offsets."""
        return await self._topics.delete(names)

    async def create_partitions(
        self,
        topic: str,
        total: int,
        assignments: list[list[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Grow a topic to ``total`` partitions.

        Raises:
            UnknownTopicOrPartitionError, InvalidPartitionsError, InvalidReplicaAssignmentError
        """
        await self._topics.create_partitions(topic, total, assignments, validate_only)

    def elect_leaders(self, partitions: Sequence[tuple[str, int]]) -> list[TidemillError | None]:
        """Elections of partition leaders; an error per partition: none is ever needed."""
        return replicas.elect_leaders(self._topics.catalog, partitions)

    def alter_reassignments(
        self, changes: Sequence[tuple[str, int, Sequence[int] | None]]
    ) -> list[TidemillError | None]:
        """Moves of partitions to (topic, partition, replicas); an error per partition."""
        return replicas.alter_reassignments(self._topics.catalog, self.node_id, changes)

    # --- configs ---------------------------------------------------------------------------------

    def topic_configs(self, topic: str) -> list[ConfigEntry]:
        """All configs of a topic with value, source and synonyms."""
        return self._topics.topic_configs(topic)

    def new_topic_configs(self, configs: Mapping[str, str | None]) -> list[ConfigEntry]:
        """All configs that a topic with these overrides has, or would have."""
        return self._topics.catalog.new_topic_entries(configs)

    def broker_configs(self) -> list[ConfigEntry]:
        """All configs of the broker, under Kafka's names."""
        scheme = "PLAINTEXT" if self.settings.kafka.tls_cert is None else "SSL"
        return self._topics.broker_configs(
            f"{scheme}://{self.settings.host}:{self.settings.kafka.port}",
            f"{scheme}://{self.advertised_host}:{self.advertised_port}",
        )

    async def alter_topic_configs(
        self, topic: str, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> None:
        """Change single configs (KIP-339).

        Raises:
            UnknownTopicOrPartitionError, InvalidConfigError
        """
        await self._topics.alter_configs(topic, changes, validate_only)

    async def replace_topic_configs(
        self, topic: str, configs: Mapping[str, str | None], validate_only: bool = False
    ) -> None:
        """Replace all overrides of a topic (the older AlterConfigs)."""
        await self._topics.replace_configs(topic, configs, validate_only)

    async def alter_broker_configs(
        self, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> None:
        """Change single dynamic configs of the broker."""
        await self._topics.alter_broker_configs(changes, validate_only)

    async def replace_broker_configs(
        self, configs: Mapping[str, str | None], validate_only: bool = False
    ) -> None:
        """Replace all dynamic configs of the broker."""
        await self._topics.replace_broker_configs(configs, validate_only)
