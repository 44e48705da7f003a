"""The engine: one broker over one data folder. Assembles the parts, starts and stops them.

A client's request reaches the parts through ``Engine.door``. The engine knows no protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from tidemill.clock import Clock, SystemClock
from tidemill.engine.authorize import (
    ANONYMOUS,
    UNRESTRICTED,
    Access,
    AllowAll,
    Authorizer,
    Principal,
)
from tidemill.engine.door import Door, Services
from tidemill.engine.error_log import RepairLog, StorageErrorLog
from tidemill.engine.errors import BrokerStoppingError, CatalogLostError
from tidemill.engine.flusher import Flusher
from tidemill.engine.groups.assembly import group_configs
from tidemill.engine.groups.coordinator import GroupCoordinator
from tidemill.engine.groups.groups import GroupRequests
from tidemill.engine.housekeeping import Housekeeping
from tidemill.engine.internal_topics import (
    CATALOG,
    CATALOG_CONFIGS,
    OFFSETS,
    QUEUE_STATE,
    QUEUES,
    SECURITY,
    SHARE_STATE,
    TRANSACTIONS,
)
from tidemill.engine.metrics.groups import GroupMetrics
from tidemill.engine.metrics.kafka_names import add_kafka_names
from tidemill.engine.metrics.logs import LogMetrics
from tidemill.engine.metrics.queues import add_queues
from tidemill.engine.metrics.rabbitmq_names import add_rabbitmq_names
from tidemill.engine.queues.core import QueueCore
from tidemill.engine.queues.queues import QueueRequests
from tidemill.engine.records.append import Appender
from tidemill.engine.records.append_runs import RunAppender
from tidemill.engine.records.backpressure import Backpressure
from tidemill.engine.records.checks import Checks
from tidemill.engine.records.partitions import Partitions
from tidemill.engine.records.positions import Positions
from tidemill.engine.records.read import Reader
from tidemill.engine.records.records import RecordServices
from tidemill.engine.records.slices import Slices
from tidemill.engine.security.assembly import new_authorizer, super_users_of
from tidemill.engine.security.logins import Logins
from tidemill.engine.security.permissions import PermissionAdmin
from tidemill.engine.security.quotas import QuotaAdmin, Quotas
from tidemill.engine.security.rules import RuleAdmin
from tidemill.engine.security.security_log import SecurityLog
from tidemill.engine.security.users import UserAdmin
from tidemill.engine.shares.core import ShareCore
from tidemill.engine.shares.fetch import ShareFetcher
from tidemill.engine.shares.shares import ShareRequests
from tidemill.engine.state_log import StateLog
from tidemill.engine.storage import StorageReport
from tidemill.engine.topics.admin import TopicAdmin
from tidemill.engine.topics.catalog_log import CatalogLog
from tidemill.engine.topics.completeness import check_complete, check_exists
from tidemill.engine.topics.folders import Folders
from tidemill.engine.topics.notes import TopicNotes
from tidemill.engine.transactions.coordinator import TransactionCoordinator
from tidemill.engine.transactions.markers import Markers
from tidemill.engine.transactions.restart_repair import RestartRepair
from tidemill.engine.transactions.transactions import TransactionRequests
from tidemill.engine.waiters import Waiters
from tidemill.errors import TidemillError
from tidemill.log.disk.files import FileSystem
from tidemill.log.errors import CorruptLogError, StorageError
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.store import LogStore
from tidemill.metrics.registry import Registry
from tidemill.settings import Settings
from tidemill.state.catalog.catalog import Catalog
from tidemill.state.errors import CoordinatorNotAvailableError
from tidemill.state.security.scram import DEFAULT_ITERATIONS
from tidemill.state.security.types import ScramMechanism

logger = structlog.get_logger("tidemill.engine")


class Engine:
    """One broker over one data folder.

    Usage: ``await engine.start()``, ``engine.door(principal)`` for each client,
    ``await engine.stop()``. A door must not be used after ``stop``.

    The engine itself has the parts for an anonymous client: ``engine.records.append(...)`` is
    ``engine.door().records.append(...)``.

    Args:
        clock: the broker's time; None is the system's clock.
        fs: the file system; None is the real one.
        authorizer: decides about each access; None is the one of the settings and of the stored
            rules, which allows everything where there is no super user.
        admins: passwords of super users by name. The start creates these users.

    Attributes:
        records, topics, configs, groups, transactions, storage, queues, shares, security: the
            parts, after ``start``.
        logins: checks users and passwords, after ``start``.
        quotas: counts what clients use, after ``start``.
        user_admin: changes users, for the broker itself.
        metrics: the broker's metrics. Whatever serves it adds its own.
        failed: done, with a ``StorageError``, when the disk has failed so that no promise holds any
            more. The process must end then.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock | None = None,
        fs: FileSystem | None = None,
        authorizer: Authorizer | None = None,
        admins: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self._fs = fs
        self._admins = admins or {}
        self._given_authorizer = authorizer
        self._authorizer = authorizer or AllowAll()
        self.metrics = Registry()
        self._assembled = False
        self._stopped = False
        self._relief: asyncio.Future[None] | None = None

    def door(self, principal: Principal = ANONYMOUS, host: str = "") -> Door:
        """Return the engine's parts for a principal. ``start`` must have returned.

        Args:
            host: the address of the client, which rules can name.
        """
        return Door(self._services, Access(principal, self._authorizer, host))

    def inner_door(self) -> Door:
        """Return the engine's parts for the broker itself, which may do everything."""
        return Door(self._services, UNRESTRICTED)

    # --- start -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the data folder, recover after an unclean stop, and replay the state.

        Raises:
            DataDirLockedError: another process uses the folder.
            FormatVersionError: the folder has the format of another version.
            CatalogLostError: the catalog is missing or damaged, or lost records.
            CorruptLogError: another internal topic is damaged.
            StorageError: the disk refuses.
        """
        loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[StorageError] = loop.create_future()
        self._store = LogStore.open(
            self.settings.data_dir,
            clock=self.clock,
            fs=self._fs,
            defaults=self.settings.log.topic_defaults,
            max_open_files=self.settings.limits.open_files,
            producer_expiry_ms=self.settings.log.producer_id_expiration_ms,
            journal_bytes=self.settings.log.journal_bytes,
        )
        self._repairs = RepairLog(self._store.reports)
        self._repairs.report()
        try:
            await self._assemble()
        except BaseException:
            self._store.close(clean=False)
            raise

        # A sync can fail on any thread, in a client's request or in a compaction.
        pool = self._store.environment.pool
        pool.on_sync_failure = lambda error: loop.call_soon_threadsafe(self._fail, error)
        pool.on_crowded = lambda: loop.call_soon_threadsafe(self._relieve_files)
        self._housekeeping.start()

    async def _assemble(self) -> None:
        """Build all parts, in the order in which they need each other, and recover their state."""
        self._waiters, self._slices = Waiters(), Slices()
        self._flusher = Flusher(
            interval_ms=self.settings.log.sync_interval_ms,
            on_advance=self._advanced,
            on_failure=self._fail,
            journal=self._store.journal,
        )
        await self._start_topics()
        await self._start_security()
        await self._start_coordinators()
        self._backpressure = Backpressure(
            self._store, self._group_coordinator.committed_offset, self._waiters, self.clock
        )
        self._folders.on_config = self._backpressure.watch
        for log in self._store.partitions.values():
            self._backpressure.watch(log)
        self._housekeeping = Housekeeping(
            self._store,
            self._group_coordinator,
            self._transaction_coordinator,
            self._waiters,
            self._slices,
            self._topic_notes.write,
            self.settings,
            self.clock,
            self._fail,
            self._repairs.report,
            self._backpressure.check,
        )
        self._services = self._new_services()
        self._assembled = True
        self._open_parts()
        self._repairs.report()
        for tp, error in self._store.offline.items():
            logger.error("partition.offline", partition=str(tp), error=str(error), hint=error.hint)
        await RestartRepair(self._store, self._transaction_coordinator, self._markers).run()
        if self.failed.done():
            raise self.failed.result()
        self._transaction_coordinator.resume()
        await self._queues.start()
        await self._shares.start(self._group_coordinator.is_share_group)
        self._register_metrics()

    def _register_metrics(self) -> None:
        telemetry = self.settings.telemetry
        most = telemetry.metrics_series
        LogMetrics(self._store, self._flusher, self._reader, most).register(self.metrics)
        groups = GroupMetrics(
            self._store,
            self._group_coordinator,
            self._shares,
            self._transaction_coordinator,
            self.clock,
            most,
        )
        groups.register(self.metrics)
        add_queues(self.metrics, self._queues, most)
        if telemetry.shows_names_of("kafka_exporter"):
            add_kafka_names(self.metrics, self._store, groups)
        if telemetry.shows_names_of("rabbitmq"):
            cluster_id = str(self._catalog_log.cluster_id)
            add_rabbitmq_names(self.metrics, self._queues, self._store.path, cluster_id)

    def _new_services(self) -> Services:
        records = self._start_records()
        self._queues = self._new_queues()
        catalog = self._topic_admin.catalog
        return Services(
            settings=self.settings,
            clock=self.clock,
            records=records,
            catalog=catalog,
            topics=self._topic_admin,
            shares=self._new_shares(records),
            groups=(
                self._group_coordinator,
                GroupRequests(self._group_coordinator, catalog, self._shares.forget_group),
                self._group_coordinator.machine,
                self._group_coordinator.offsets,
            ),
            transactions=(
                self._transaction_coordinator,
                TransactionRequests(
                    self._transaction_coordinator,
                    self._group_coordinator,
                    catalog,
                    self._catalog_log.next_producer_id,
                ),
            ),
            storage=StorageReport(self._store),
            cluster_id=self._catalog_log.cluster_id,
            queues=(self._queues, QueueRequests(self._queues)),
            security=(
                self.user_admin,
                RuleAdmin(
                    self._security_log, is_enabled=not isinstance(self._authorizer, AllowAll)
                ),
                QuotaAdmin(self._security_log),
                PermissionAdmin(self._security_log),
            ),
            quotas=self.quotas,
        )

    def _new_queues(self) -> QueueCore:
        queues = QueueCore(
            self._topic_admin,
            self._partitions,
            self._flusher,
            self.clock,
            self._state_log(QUEUES),
            self._state_log(QUEUE_STATE),
            self._backpressure,
            strict_arguments=self.settings.queues.strict_arguments,
        )
        self._waiters.on_woken = queues.start_moved
        return queues

    def _new_shares(self, records: RecordServices) -> tuple[ShareCore, ShareRequests]:
        self._shares = ShareCore(
            self._partitions,
            records.positions,
            self._topic_admin.catalog,
            self._topic_admin.group_configs,
            self._state_log(SHARE_STATE),
            self.clock,
        )
        fetcher = ShareFetcher(self._shares, self._flusher, StorageErrorLog(self.clock))
        catalog = self._topic_admin.catalog
        return self._shares, ShareRequests(self._shares, fetcher, self._group_coordinator, catalog)

    def _open_parts(self) -> None:
        door = self.door()
        self.records = door.records
        self.topics = door.topics
        self.configs = door.configs
        self.groups = door.groups
        self.transactions = door.transactions
        self.storage = door.storage
        self.queues = door.queues
        self.shares = door.shares
        self.security = door.security

    async def _start_topics(self) -> None:
        settings = self.settings
        self._folders = Folders(self._store, self._flusher, self._waiters)
        check_exists(self._store)
        log = self._folders.internal_log(CATALOG, CATALOG_CONFIGS)
        catalog = Catalog(
            node_id=settings.node_id,
            default_partitions=settings.default_partitions,
            max_partitions=settings.limits.partitions,
            topic_defaults=settings.log.topic_defaults,
        )
        catalog_log = CatalogLog(
            StateLog(log, self._flusher, self.clock),
            catalog,
            group_configs(self.settings.groups),
        )
        self._catalog_log = catalog_log
        self._recover_catalog(catalog)
        lock = asyncio.Lock()
        self._topic_notes = TopicNotes(self._store, catalog, catalog_log, lock)
        self._topic_admin = TopicAdmin(
            catalog,
            catalog_log,
            self._folders,
            self._topic_notes,
            lock,
            auto_create=settings.auto_create_topics,
        )
        await self._topic_admin.recover()
        self._topic_admin.on_deleted = self._forget_topics

    def _recover_catalog(self, catalog: Catalog) -> None:
        """Replay the catalog, and check that it is whole."""
        catalog_log, clean = self._catalog_log, self._store.clean_start
        try:
            catalog_log.recover(clean=clean)
        except CorruptLogError as error:
            raise CatalogLostError(f"the catalog of topics can't be read: {error}") from error
        if not clean:
            check_complete(
                self._store,
                catalog,
                catalog_log.end,
                catalog_log.cluster_id,
                catalog_log.deleted_names,
            )

    async def _start_security(self) -> None:
        self._folders.uncommitted.add(SECURITY)  # no client can read it
        self._security_log = SecurityLog(self._state_log(SECURITY))
        self._security_log.recover()
        state = self._security_log.state
        self.logins = Logins(state)
        self.quotas = Quotas(self._security_log, self.clock)
        self.user_admin = UserAdmin(self._security_log)
        self._security_log.on_change.append(self.logins.changed)
        for name, password in self._admins.items():
            await self.user_admin.set_password(
                name, password, list(ScramMechanism), DEFAULT_ITERATIONS
            )
        if self._given_authorizer is None:
            super_users = super_users_of(self.settings, [*state.admins, *self._admins])
            security = self.settings.security.model_copy(
                update={"super_users": ";".join(sorted(super_users))}
            )
            self.settings = self.settings.model_copy(update={"security": security})
            self._authorizer = new_authorizer(self.settings, state, super_users, self.clock)

    async def _start_coordinators(self) -> None:
        self._group_coordinator = GroupCoordinator(
            self._state_log(OFFSETS),
            self.settings.groups,
            self.clock,
            self._topic_admin.catalog,
            self._topic_admin.group_configs,
        )
        self._group_coordinator.recover()
        self._markers = Markers(self._store, self._flusher, self.clock, self._group_coordinator)
        self._transaction_coordinator = TransactionCoordinator(
            self._state_log(TRANSACTIONS),
            self._markers,
            self._flusher,
            self._catalog_log.next_producer_id,
            self.settings.transactions,
            self.clock,
        )
        self._transaction_coordinator.recover()

    def _state_log(self, tp: TopicPartition) -> StateLog:
        """Return the log of a state machine."""
        damage = self._store.offline.get(tp)
        if damage is not None:
            raise damage
        return StateLog(self._store.partitions[tp], self._flusher, self.clock)

    def _start_records(self) -> RecordServices:
        errors = StorageErrorLog(self.clock)
        self._partitions = Partitions(self._store, self._folders.uncommitted)
        appender = Appender(
            self._partitions,
            self._flusher,
            self._waiters,
            self.clock,
            errors,
            Checks(self._partitions, self._slices, self.clock),
            self._transaction_coordinator.admit,
        )
        self._reader = Reader(
            self._partitions,
            self._flusher,
            self._waiters,
            errors,
            self.settings.limits.fetch_bytes,
        )
        return RecordServices(
            appender,
            self._reader,
            Positions(self._partitions, self._flusher, self._waiters, self._slices),
            self._backpressure,
            RunAppender(self._partitions, self._flusher, self.clock, appender),
        )

    def _advanced(self, logs: Sequence[PartitionLog]) -> None:
        """Wake what waits for records: the high watermarks of logs moved."""
        self._waiters.advanced(logs)
        if self._assembled:
            self._queues.advanced(logs)
            self._shares.advanced(logs)

    async def _forget_topics(self, names: Sequence[str]) -> None:
        if self._assembled:
            self._queues.topics_deleted(names)
            self._shares.topics_deleted()
        try:
            self._transaction_coordinator.drop_topics(names)
        except CoordinatorNotAvailableError as error:
            # The partitions are skipped when their transaction ends.
            logger.warning("topics.not_dropped", topics=names, error=str(error))
        await self._group_coordinator.forget_topics(names)

    # --- stop ------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End long polls, sync everything, and mark the stop as clean. Can be called again."""
        if self._stopped:
            return
        self._stopped = True
        clean = not self.failed.done()
        await self._queues.stop()
        self._shares.stop()
        await self._housekeeping.stop()
        stopping = BrokerStoppingError("the broker is stopping")
        self._transaction_coordinator.stop(stopping)
        await self._transaction_coordinator.stopped()
        self._group_coordinator.stop(stopping)
        self._stop_records()
        self._store.environment.pool.on_crowded = None
        if self._relief is not None:
            await asyncio.wait([self._relief])
        if clean:
            try:
                await self._flusher.drain()
            except TidemillError as error:
                logger.error("stop.failed", error=str(error))
                clean = False
        self._flusher.close()
        self.logins.close()
        self._store.close(clean=clean)

    def _relieve_files(self) -> None:
        """Sync and close files on a thread, because too many are open."""
        pool = self._store.environment.pool
        if pool.on_crowded is not None:
            loop = asyncio.get_running_loop()
            self._relief = loop.run_in_executor(None, pool.relieve)
            self._relief.add_done_callback(lambda done: done.exception())  # the pool reports it

    def _stop_records(self, failure: StorageError | None = None) -> None:
        self._partitions.stop(failure)
        self._slices.stop()
        self._waiters.wake_all()

    def _fail(self, error: StorageError) -> None:
        """Refuse all requests from now on: after a failed sync no claim about the disk holds."""
        if self.failed.done():
            return
        logger.critical("storage.failed", error=str(error), hint=error.hint)
        if self._assembled:
            self._stop_records(error)
            stopping = BrokerStoppingError("the broker is stopping")
            self._transaction_coordinator.stop(stopping)
            self._group_coordinator.stop(stopping)
        self.failed.set_result(error)
