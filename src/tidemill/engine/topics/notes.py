"""Keep the notes about topics in the partitions' folders current.

A new folder gets its note when it is created. After a change of the topic, the note in the folder
of its first partition is written again, in the background. If the catalog is lost, ``rebuild``
reads these notes. Knows the catalog and the folders, and no client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from tidemill.engine.topics.catalog_log import CatalogLog
from tidemill.engine.topics.folder_metadata import read_folder, write_metadata
from tidemill.errors import TidemillError
from tidemill.log.disk.checkpoints import TopicNote
from tidemill.log.names import TopicPartition, folder_name
from tidemill.log.store import LogStore
from tidemill.state.catalog.catalog import Catalog
from tidemill.state.catalog.types import TopicInfo

READ_PER_TURN = 16
"""Files that are read in one turn of the event loop."""


class TopicNotes:
    """The notes of all topics.

    Args:
        lock: is held while folders are created or deleted.
    """

    def __init__(
        self, store: LogStore, catalog: Catalog, catalog_log: CatalogLog, lock: asyncio.Lock
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._catalog_log = catalog_log
        self._lock = lock
        self._changed: dict[str, None] = {}
        self._unchecked: list[str] = []
        self._newest: str | None = None

    def note(self, partitions: int, configs: Mapping[str, str]) -> TopicNote:
        """Return the note of a topic with these partitions and configs of its own."""
        return TopicNote(
            partitions,
            dict(configs),
            self._catalog_log.end,
            self._catalog_log.reserved_producer_ids,
            self._catalog_log.cluster_id,
        )

    def changed(self, name: str) -> None:
        """Write the topic's note again at the next ``write``."""
        self._changed[name] = None

    def created(self, name: str) -> None:
        """Write the newest topic's note again at the next ``write``.

        A new folder's note lacks only the end of the catalog behind its own topic. The newest one
        says that for all.
        """
        self._newest = name

    def check(self, names: Iterable[str]) -> None:
        """Compare the topics' notes with the catalog at the next ``write``."""
        self._unchecked += names

    async def write(self) -> None:
        """Write all notes that are due.

        Raises:
            StorageError: a note can't be written. The next call tries it again.
        """
        if self._newest is not None:
            self._changed[self._newest] = None
            self._newest = None
        while self._changed:
            name = next(iter(self._changed))
            async with self._lock:
                self._changed.pop(name, None)
                try:
                    await self._write(name, always=True)
                except TidemillError:
                    self._changed[name] = None
                    raise
        while self._unchecked:
            async with self._lock:
                for name in self._unchecked[-READ_PER_TURN:]:
                    await self._write(name, always=False)
                del self._unchecked[-READ_PER_TURN:]
            await asyncio.sleep(0)

    async def _write(self, name: str, *, always: bool) -> None:
        """Write one topic's note. The lock is held, so its folders stay where they are."""
        if name not in self._catalog:
            return
        topic = self._catalog.topic(name)
        tp = next(filter(self._is_usable, _partitions(topic)), None)
        if tp is None:
            return
        note = self.note(topic.partitions, self._catalog.config_of(name))
        if not always:
            found = read_folder(self._store, tp)
            if found.topic_id == topic.topic_id and _says_the_same(found.note, note):
                return
        folder = f"{self._store.path}/{folder_name(tp)}"
        fs = self._store.environment.fs
        await asyncio.get_running_loop().run_in_executor(
            None, write_metadata, fs, folder, topic.topic_id, tp.partition, note
        )

    def _is_usable(self, tp: TopicPartition) -> bool:
        """Return whether the folder is there and is the topic's own: others are offline."""
        log = self._store.partitions.get(tp)
        return log is not None and log.failure is None


def _partitions(topic: TopicInfo) -> Iterable[TopicPartition]:
    return (TopicPartition(topic.name, number) for number in range(topic.partitions))


def _says_the_same(old: TopicNote | None, new: TopicNote) -> bool:
    return old is not None and old == new._replace(
        catalog_end=old.catalog_end, producer_ids=old.producer_ids
    )
