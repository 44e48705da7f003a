"""The part of the door that is about groups and committed offsets.

Looks up which partitions exist, and hands on; decides nothing else. Knows no protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidemill.broker import replicas
from tidemill.broker.api import (
    CommitRequest,
    GroupDescription,
    GroupListing,
    JoinRequest,
    JoinResult,
    LeaveMember,
    SyncRequest,
    SyncResult,
)
from tidemill.broker.coordination import GroupCoordination
from tidemill.broker.topics import TopicAdmin
from tidemill.errors import TidemillError
from tidemill.state.offsets import FetchedOffset


class GroupsDoor:
    """Groups and committed offsets, as protocols see them."""

    _topics: TopicAdmin
    _coordination: GroupCoordination

    async def join_group(self, request: JoinRequest) -> JoinResult:
        """Join a group; answered when the new generation is complete."""
        return await self._coordination.join(request)

    async def sync_group(self, request: SyncRequest) -> SyncResult:
        """A member's assignment; answered when the leader's is on disk."""
        return await self._coordination.sync(request)

    async def heartbeat(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> None:
        """Keep a member's session alive.

        Raises:
            UnknownMemberIdError, IllegalGenerationError, RebalanceInProgressError,
            FencedInstanceIdError
        """
        await self._coordination.heartbeat(group_id, generation, member_id, instance_id)

    async def leave_group(
        self, group_id: str, members: Sequence[LeaveMember]
    ) -> list[TidemillError | None]:
        """Remove members; an error per member stands in its place."""
        return await self._coordination.leave(group_id, members)

    async def commit_offsets(self, request: CommitRequest) -> list[TidemillError | None]:
        """Commit offsets; durable when answered. Errors of the whole request are raised."""
        missing = [self._missing(each.topic, each.partition) for each in request.offsets]
        known = tuple(
            each for each, error in zip(request.offsets, missing, strict=True) if error is None
        )
        outcomes = iter(await self._coordination.commit(replace(request, offsets=known)))
        return [error or next(outcomes) for error in missing]

    def fetch_offsets(
        self,
        group_id: str,
        partitions: Sequence[tuple[str, int]] | None,
        require_stable: bool = False,
        member_id: str | None = None,
        generation: int = -1,
    ) -> dict[tuple[str, int], FetchedOffset]:
        """Committed offsets of a group (all, where ``partitions`` is None); unknown ones lack.

        With ``require_stable`` an UnstableOffsetCommitError stands in the place of an offset that
        an open transaction has committed.
        """
        return self._coordination.fetch(group_id, partitions, require_stable)

    def list_groups(
        self, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> list[GroupListing]:
        """Groups, filtered by state and type where those are given."""
        return self._coordination.list_groups(states, types)

    def describe_group(self, group_id: str) -> GroupDescription:
        """A group with its members; an unknown one has the state "Dead"."""
        return self._coordination.describe(group_id)

    async def delete_group(self, group_id: str) -> None:
        """Delete an empty group and its offsets.

        Raises:
            GroupIdNotFoundError, NonEmptyGroupError
        """
        await self._coordination.delete_group(group_id)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> list[TidemillError | None]:
        """Delete committed offsets (KIP-496)."""
        missing = [self._missing(*each) for each in partitions]
        known = [each for each, error in zip(partitions, missing, strict=True) if error is None]
        outcomes = iter(await self._coordination.delete_offsets(group_id, known))
        return [error or next(outcomes) for error in missing]

    def _missing(self, topic: str, partition: int) -> TidemillError | None:
        return replicas.missing(self._topics.catalog, topic, partition)
