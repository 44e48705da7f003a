"""Requests of groups that need more than the coordinator: topics that exist, share groups.

Knows no protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from tidemill.engine.api import CommitRequest
from tidemill.engine.groups.coordinator import GroupCoordinator
from tidemill.errors import TidemillError
from tidemill.state.catalog.catalog import Catalog


class GroupRequests:
    """Commits and deletions of groups. They raise what the coordinator does.

    Args:
        forget_shares: deletes what a share group has acknowledged.
    """

    def __init__(
        self,
        coordinator: GroupCoordinator,
        catalog: Catalog,
        forget_shares: Callable[[str], Awaitable[None]],
    ) -> None:
        self._coordinator = coordinator
        self._catalog = catalog
        self._forget_shares = forget_shares

    async def commit(self, request: CommitRequest) -> list[TidemillError | None]:
        """Commit offsets; return None or an error for each when they are on disk."""
        errors = [self._catalog.missing_partition(o.topic, o.partition) for o in request.offsets]
        usable = tuple(o for o, error in zip(request.offsets, errors, strict=True) if error is None)
        outcomes = iter(await self._coordinator.commit(replace(request, offsets=usable)))
        return [error or next(outcomes) for error in errors]

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> list[TidemillError | None]:
        """Delete committed offsets (KIP-496); return None or an error for each."""
        errors = [self._catalog.missing_partition(*each) for each in partitions]
        usable = [each for each, error in zip(partitions, errors, strict=True) if error is None]
        outcomes = iter(await self._coordinator.delete_offsets(group_id, usable))
        return [error or next(outcomes) for error in errors]

    async def delete(self, group_id: str) -> None:
        """Delete an empty group, its offsets, and what it has acknowledged."""
        await self._coordinator.delete_group(group_id)
        await self._forget_shares(group_id)
