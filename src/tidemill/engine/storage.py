"""The part of the engine that describes the data folder, with its access checks.

Knows the store of logs. Knows no protocol.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from tidemill.engine.api import CatalogLog, DataFolder, PartitionSize
from tidemill.engine.authorize import CLUSTER, TOPIC, Access, Operation
from tidemill.engine.internal_topics import CATALOG
from tidemill.log.store import LogStore


@dataclass(frozen=True, slots=True)
class StorageServices:
    """The objects behind ``Storage``, shared by all principals."""

    store: LogStore
    cluster_id: UUID


class Storage:
    """The data folder, for one principal.

    Attributes:
        cluster_id: the identity of the data folder. It is not protected: clients need it to
            recognize a cluster before they authenticate.
        path: the folder. It is not protected either.
    """

    def __init__(self, services: StorageServices, access: Access) -> None:
        self._access = access
        self._store = services.store
        self.cluster_id = services.cluster_id
        self.path = services.store.path

    def usage(self, partitions: set[tuple[str, int]] | None = None) -> DataFolder:
        """Return the sizes of partitions and of the file system.

        Args:
            partitions: None asks for all that the principal can describe.

        Raises:
            ClusterAuthorizationError: the principal can't describe the cluster.
        """
        self._access.check(Operation.DESCRIBE, CLUSTER)
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
            if self._access.allows(Operation.DESCRIBE, TOPIC, tp.topic):
                yield PartitionSize(tp.topic, tp.partition, log.size_bytes)

    def catalog_log(self) -> CatalogLog:
        """Return the end of the catalog's log.

        Raises:
            ClusterAuthorizationError: the principal can't describe the cluster.
        """
        self._access.check(Operation.DESCRIBE, CLUSTER)
        log = self._store.partitions[CATALOG]
        return CatalogLog(log.leader_epoch, log.high_watermark, log.log_end_offset)
