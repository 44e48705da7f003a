"""Describes the data folder. Knows the store of logs, and no protocol."""

from __future__ import annotations

import os
from collections.abc import Iterator

from tidemill.engine.api import CatalogExtent, DataFolder, PartitionSize
from tidemill.engine.internal_topics import CATALOG
from tidemill.log.store import LogStore


class StorageReport:
    """The data folder, as it is at a call."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.path = store.path

    def usage(self, partitions: set[tuple[str, int]] | None = None) -> DataFolder:
        """Return the sizes of partitions (None: of all) and of the file system."""
        disk = os.statvfs(self._store.path)
        return DataFolder(
            path=self._store.path,
            total_bytes=disk.f_frsize * disk.f_blocks,
            usable_bytes=disk.f_frsize * disk.f_bavail,
            partitions=self._sizes(partitions),
        )

    def _sizes(self, partitions: set[tuple[str, int]] | None) -> Iterator[PartitionSize]:
        for tp, log in list(self._store.partitions.items()):
            if partitions is not None and tuple(tp) not in partitions:
                continue
            yield PartitionSize(tp.topic, tp.partition, log.size_bytes)

    def catalog_log(self) -> CatalogExtent:
        """Return the end of the catalog's log."""
        log = self._store.partitions[CATALOG]
        return CatalogExtent(log.leader_epoch, log.high_watermark, log.log_end_offset)
