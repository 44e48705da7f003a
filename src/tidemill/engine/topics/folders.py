"""Create, delete and match the folders of partitions.

Knows the store of logs. Which topics exist is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence

import structlog

from tidemill.engine.flusher import Flusher
from tidemill.engine.internal_topics import CATALOG
from tidemill.engine.topics.folder_metadata import read_folder
from tidemill.engine.waiters import Waiters
from tidemill.log.config.parse import parse_config
from tidemill.log.config.topic import LogConfig
from tidemill.log.disk.checkpoints import TopicNote
from tidemill.log.errors import StorageError
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.partition.sync import run_tickets
from tidemill.log.recovery.recovery import MissingSegmentsError
from tidemill.log.store import LogStore
from tidemill.state.catalog.catalog import Catalog
from tidemill.state.catalog.types import TopicInfo

FOLDERS_PER_TURN = 16
"""Folders that are created or deleted in one turn of the event loop."""

logger = structlog.get_logger("tidemill.topics")


class Folders:
    """The partitions' folders.

    Attributes:
        uncommitted: partitions that have a folder and no catalog record on disk yet. Clients must
            not write to them: if the catalog can't be written, they are deleted again.
    """

    def __init__(self, store: LogStore, flusher: Flusher, waiters: Waiters) -> None:
        self._store = store
        self._flusher = flusher
        self._waiters = waiters
        self.on_config: Callable[[PartitionLog], None] = lambda _log: None
        """Called when the configs of a partition were set or changed."""
        self.uncommitted: set[TopicPartition] = set()

    # --- start -----------------------------------------------------------------------------------

    def internal_log(self, tp: TopicPartition, overrides: Mapping[str, str]) -> PartitionLog:
        """Return the log of an internal partition; create it where it is missing."""
        damage = self._store.offline.get(tp)
        if isinstance(damage, MissingSegmentsError) and self._store.is_alone(tp):
            self._store.delete(tp)  # the first start ended while it created this folder
        elif damage is not None:
            raise damage
        config = parse_config(overrides, {})
        log = self._store.partitions.get(tp)
        if log is None:
            log = self._store.create(tp, config, uuid.uuid4())
            log.flush()
            return log
        log.config = config
        return log

    def is_unused(self, topic: TopicInfo) -> bool:
        """Return whether this is an internal topic that nothing was ever written to."""
        if not topic.internal:
            return False
        log = self._store.partitions.get(TopicPartition(topic.name, 0))
        return log is not None and log.log_end_offset == 0

    def match(self, catalog: Catalog) -> None:
        """Compare the folders with the catalog, and set the configs of the logs.

        A partition without a folder, or with the folder of another topic, goes offline. A folder of
        a topic that was being deleted is deleted. Another folder that no topic owns is set aside,
        or deleted where it is empty.
        """
        owned = {CATALOG}
        for topic in catalog.topics():
            config = catalog.log_config(topic.name)
            for number in range(topic.partitions):
                tp = TopicPartition(topic.name, number)
                owned.add(tp)
                self._match(tp, topic, config)
        for tp in [tp for tp in self._store.partitions if tp not in owned]:
            log = self._store.partitions[tp]
            if log.log_end_offset == 0 or log.topic_id in catalog.deleted:
                self._store.delete(tp)
            else:
                self._set_aside(tp, "no topic owns it")
        self._leave_offline(catalog, owned)
        self._store.forget_missing()

    def _leave_offline(self, catalog: Catalog, owned: set[TopicPartition]) -> None:
        """Delete or set aside the damaged folders that no topic owns."""
        for tp, error in [each for each in self._store.offline.items() if each[0] not in owned]:
            if not self._store.has_folder(tp):
                continue
            is_deleted = read_folder(self._store, tp).topic_id in catalog.deleted
            if is_deleted or isinstance(error, MissingSegmentsError):
                self._store.delete(tp)  # without segments, its creation was not finished
            else:
                self._set_aside(tp, f"no topic owns it, and it is damaged: {error}")

    def _set_aside(self, tp: TopicPartition, why: str) -> None:
        path = self._store.set_aside(tp)
        logger.warning("folder.set_aside", partition=str(tp), path=path, why=why)

    def _match(self, tp: TopicPartition, topic: TopicInfo, config: LogConfig) -> None:
        log = self._store.partitions.get(tp)
        if log is None:
            if tp not in self._store.offline:
                self._store.mark_offline(
                    tp,
                    StorageError(
                        f"the folder of partition {tp} is missing in {self._store.path}",
                        hint="Restore it from a backup, delete the topic, or let the partition "
                        f"continue without its records: tidemill doctor --repair {tp}",
                    ),
                )
        elif log.topic_id not in (None, topic.topic_id):
            log.go_offline(
                StorageError(
                    f"{log.chain.folder} belongs to topic id {log.topic_id}, "
                    f"but the catalog has topic id {topic.topic_id}",
                    hint="Restore the right folder, or delete the topic.",
                )
            )
        else:
            log.config = config

    # --- create and delete -----------------------------------------------------------------------

    async def create(
        self,
        topic: TopicInfo,
        first: int,
        config: LogConfig,
        note: TopicNote,
        created: list[TopicPartition],
    ) -> None:
        """Create the folders of a topic's partitions from number ``first`` on.

        The folders survive a power cut when this returns: a topic in the catalog that has no folder
        always means damage.

        Args:
            note: what the folders keep about their topic.
            created: gets each partition as soon as its folder exists, so that the caller can delete
                the folders after an error.
        """
        for number in range(first, topic.partitions):
            tp = TopicPartition(topic.name, number)
            self._store.create(tp, config, topic.topic_id, note)
            self.uncommitted.add(tp)
            created.append(tp)
            self.on_config(self._store.partitions[tp])
            await _pause_after(number)
        logs = [self._store.partitions[tp] for tp in created]
        tickets = [(log, ticket) for log in logs if (ticket := log.begin_sync()) is not None]
        await asyncio.get_running_loop().run_in_executor(
            None, run_tickets, [ticket for _, ticket in tickets]
        )
        for log, ticket in tickets:
            log.finish_sync(ticket)

    async def delete(self, partitions: Sequence[TopicPartition]) -> None:
        """Delete partitions with their folders, and wake the requests that wait for them."""
        for count, tp in enumerate(partitions):
            log = self._store.partitions.get(tp)
            if log is not None or tp in self._store.offline:
                self._store.delete(tp)
            if log is not None:
                self._flusher.forget(log)
            self._waiters.wake(tp)
            await _pause_after(count)

    async def sync_deletions(self) -> None:
        """Make the deletions durable."""
        await asyncio.get_running_loop().run_in_executor(None, self._store.sync_folder)

    def set_config(self, topic: TopicInfo, config: LogConfig) -> None:
        """Give the logs of a topic a new config."""
        for number in range(topic.partitions):
            log = self._store.partitions.get(TopicPartition(topic.name, number))
            if log is not None:
                log.config = config
                self.on_config(log)


async def _pause_after(count: int) -> None:
    """Let other work run now and then: the folders of a large topic take seconds."""
    if count % FOLDERS_PER_TURN == FOLDERS_PER_TURN - 1:
        await asyncio.sleep(0)
