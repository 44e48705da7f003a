"""Write the catalog: topics, dynamic configs, configs of groups and producer ids, in one state log.

Knows the state machines whose records are in it, and nothing of folders.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

import structlog

from tidemill.engine.state_log import StateLog
from tidemill.state.catalog.catalog import Catalog
from tidemill.state.catalog.format import TOPIC, decode_key
from tidemill.state.catalog.group_configs import GroupConfigs
from tidemill.state.catalog.producer_ids import ProducerIds
from tidemill.state.outcome import Outcome

R = TypeVar("R")

SKIPPED_PRODUCER_IDS = 1 << 24
"""Producer ids that stay unused after an unclean stop, in which the log perhaps lost claims. No
broker gives out as many between two checkpoints."""
MOST_SKIPS = 1 << 16
"""A start skips up to as many times these ids, by chance: the claim behind the ids that it skips
can get lost, too, and the next start must not come to the same ids."""

logger = structlog.get_logger("tidemill.topics")


class CatalogLog:
    """The catalog on disk.

    Args:
        catalog: is changed by replayed records only.
        group_configs: the configs of single groups, likewise.

    Attributes:
        group_configs: the configs of single groups.
        cluster_id: the identity of the data folder: the topic id of the catalog itself.
        deleted_names: the names of topics whose last record is their deletion, after ``recover``.
    """

    def __init__(self, state_log: StateLog, catalog: Catalog, group_configs: GroupConfigs) -> None:
        self._state_log = state_log
        self._catalog = catalog
        self._producer_ids = ProducerIds()
        self.group_configs = group_configs
        self.cluster_id = state_log.log.topic_id or UUID(int=0)
        self.deleted_names: set[str] = set()

    def recover(self, *, clean: bool) -> None:
        """Replay the state log.

        Args:
            clean: the last stop was clean.
        """
        with self._state_log.naming_place():
            for key, value in self._state_log.latest().items():
                if value is None and decode_key(key)[0] == TOPIC:
                    self.deleted_names.add(decode_key(key)[1])
                if not self._replay(key, value):
                    name = key[:64].decode(errors="replace")
                    logger.warning("record.ignored", key=name, why="unknown record type")
        if not clean and self.end > 0:
            self._producer_ids.skip(SKIPPED_PRODUCER_IDS * random.randint(1, MOST_SKIPS))

    @property
    def end(self) -> int:
        """The end offset of the records that are synced."""
        return self._state_log.log.high_watermark

    @property
    def reserved_producer_ids(self) -> int:
        """All producer ids below it may be in use."""
        return self._producer_ids.reserved

    def _replay(self, key: bytes, value: bytes | None) -> bool:
        return (
            self._catalog.replay(key, value)
            or self._producer_ids.replay(key, value)
            or self.group_configs.replay(key, value)
        )

    async def next_producer_id(self) -> int:
        """Return a producer id that was never used."""
        return await self.commit(self._producer_ids.allocate(), self._producer_ids.write_failed)

    async def commit(
        self, outcome: Outcome[R], write_failed: Callable[[Outcome[R]], None] | None = None
    ) -> R:
        """Write an outcome, replay it, and return its result.

        Args:
            write_failed: forgets the outcome if it could not be written; None: the catalog does.

        Raises:
            StorageError: the catalog could not be written. Nothing has changed.
        """
        if not outcome.records:
            return outcome.result

        def ended(error: Exception | None) -> None:
            if error is None:
                for record in outcome.records:
                    self._replay(record.key, record.value)
            else:
                (write_failed or self._catalog.write_failed)(outcome)

        await self._state_log.write(outcome.records, ended, "the catalog could not be written")
        return outcome.result
