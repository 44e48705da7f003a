"""The part of the engine for consumer groups and committed offsets, with its access checks.

Every public method checks access, looks up the partitions, and delegates to the coordinator. It
decides nothing else. Knows no protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemill.engine.api import (
    CommitRequest,
    CommittedOffset,
    ConsumerGroupInfo,
    ConsumerHeartbeat,
    GroupDescription,
    GroupListing,
    HeartbeatResult,
    JoinRequest,
    JoinResult,
    LeaveMember,
    ShareGroupInfo,
    ShareHeartbeat,
    SyncRequest,
    SyncResult,
)
from tidemill.engine.authorize import GROUP, TOPIC, Access, Operation
from tidemill.engine.groups.coordinator import GroupCoordinator
from tidemill.engine.topics.lookup import missing_partition
from tidemill.errors import TidemillError
from tidemill.state.catalog.catalog import Catalog


@dataclass(frozen=True, slots=True)
class GroupServices:
    """The objects behind ``Groups``, shared by all principals."""

    coordinator: GroupCoordinator
    catalog: Catalog
    forget_shares: Callable[[str], Awaitable[None]]
    """Deletes what a share group has acknowledged."""


class Groups:
    """Consumer groups and committed offsets for one principal.

    Errors that every method can raise: ``GroupAuthorizationError``; ``InvalidGroupIdError``;
    ``CoordinatorNotAvailableError``, where the disk refuses; ``BrokerStoppingError``.
    """

    def __init__(self, services: GroupServices, access: Access) -> None:
        self._access = access
        self._coordinator = services.coordinator
        self._catalog = services.catalog
        self._forget_shares = services.forget_shares

    # --- members ---------------------------------------------------------------------------------

    async def join(self, request: JoinRequest) -> JoinResult:
        """Join a group. Wait until the new generation is complete.

        Raises:
            MemberIdRequiredError, UnknownMemberIdError, FencedInstanceIdError,
            InconsistentGroupProtocolError, InvalidSessionTimeoutError, GroupMaxSizeReachedError
        """
        self._access.check(Operation.READ, GROUP, request.group_id)
        return await self._coordinator.join(request)

    async def sync(self, request: SyncRequest) -> SyncResult:
        """Return a member's assignment. Wait until the leader's assignment is on disk.

        Raises:
            UnknownMemberIdError, IllegalGenerationError, RebalanceInProgressError,
            FencedInstanceIdError, InconsistentGroupProtocolError
        """
        self._access.check(Operation.READ, GROUP, request.group_id)
        return await self._coordinator.sync(request)

    async def heartbeat(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> None:
        """Keep a member's session alive.

        Raises:
            UnknownMemberIdError, IllegalGenerationError, RebalanceInProgressError,
            FencedInstanceIdError
        """
        self._access.check(Operation.READ, GROUP, group_id)
        await self._coordinator.heartbeat(group_id, generation, member_id, instance_id)

    async def leave(
        self, group_id: str, members: Sequence[LeaveMember]
    ) -> list[TidemillError | None]:
        """Remove members from a group.

        Returns:
            None or an error for each member, in order.

        Raises:
            UnknownMemberIdError: the group does not exist.
        """
        self._access.check(Operation.READ, GROUP, group_id)
        return await self._coordinator.leave(group_id, members)

    async def consumer_heartbeat(self, request: ConsumerHeartbeat) -> HeartbeatResult:
        """Let a member with the consumer protocol join, stay, change or leave (KIP-848).

        Raises:
            InvalidRequestError, UnsupportedAssignorError, InvalidRegularExpressionError,
            GroupMaxSizeReachedError, UnknownMemberIdError, FencedMemberEpochError,
            FencedInstanceIdError, UnreleasedInstanceIdError, GroupIdNotFoundError
            TopicAuthorizationError: the member's user can't describe a topic that it names.
        """
        self._access.check(Operation.READ, GROUP, request.group_id)
        if not self._access.is_unrestricted:
            self._check_topics(request.topic_names or ())
            request = replace(
                request,
                can_see=lambda name: self._access.allows(Operation.DESCRIBE, TOPIC, name),
            )
        return await self._coordinator.consumer_heartbeat(request)

    async def share_heartbeat(self, request: ShareHeartbeat) -> HeartbeatResult:
        """Let a member of a share group join, stay, change or leave (KIP-932).

        Raises:
            InvalidRequestError, GroupMaxSizeReachedError, UnknownMemberIdError,
            FencedMemberEpochError, GroupIdNotFoundError
            TopicAuthorizationError: the member's user can't describe a topic that it names.
        """
        self._access.check(Operation.READ, GROUP, request.group_id)
        if not self._access.is_unrestricted:
            self._check_topics(request.topic_names or ())
        return await self._coordinator.share_heartbeat(request)

    def _check_topics(self, names: Iterable[str]) -> None:
        for refusal in self._access.refusals(Operation.DESCRIBE, TOPIC, names):
            if refusal is not None:
                raise refusal

    # --- committed offsets -----------------------------------------------------------------------

    async def commit(self, request: CommitRequest) -> list[TidemillError | None]:
        """Commit offsets. They are on disk when this returns.

        Returns:
            None or an error for each offset, in order.

        Raises:
            UnknownMemberIdError, IllegalGenerationError, RebalanceInProgressError,
            FencedInstanceIdError: nothing is committed.
        """
        self._access.check(Operation.READ, GROUP, request.group_id)
        errors = self._unusable([(each.topic, each.partition) for each in request.offsets])
        usable = tuple(
            each for each, error in zip(request.offsets, errors, strict=True) if error is None
        )
        outcomes = iter(await self._coordinator.commit(replace(request, offsets=usable)))
        return [error or next(outcomes) for error in errors]

    def committed(
        self,
        group_id: str,
        partitions: Sequence[tuple[str, int]] | None,
        require_stable: bool = False,
    ) -> Mapping[tuple[str, int], CommittedOffset | TidemillError]:
        """Return the committed offsets of a group.

        Args:
            partitions: None asks for all. Partitions of topics that the principal can't describe
                have an error in their place, or are left out where all are asked for.
            require_stable: replace an offset that an open transaction has committed by an
                UnstableOffsetCommitError (KIP-447).

        Returns:
            An entry for each partition that has a committed offset.
        """
        self._access.check(Operation.DESCRIBE, GROUP, group_id)
        stored = self._coordinator.fetch(group_id, partitions, require_stable)
        if self._access.is_unrestricted:
            return stored
        found: dict[tuple[str, int], CommittedOffset | TidemillError] = {**stored}
        asked = list(found) if partitions is None else list(partitions)
        refused = self._access.refusals(Operation.DESCRIBE, TOPIC, (topic for topic, _ in asked))
        for key, error in zip(asked, refused, strict=True):
            if error is not None and partitions is None:
                del found[key]
            elif error is not None:
                found[key] = error
        return found

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Check that a member may fetch offsets. None: the client names no member.

        Raises:
            UnknownMemberIdError, StaleMemberEpochError, IllegalGenerationError: the member
                is not the one that the group knows.
        """
        self._access.check(Operation.DESCRIBE, GROUP, group_id)
        self._coordinator.check_fetch(group_id, member_id, epoch)

    def positions(self, group_id: str) -> list[tuple[str, int]]:
        """Return the partitions for which a group has committed offsets, in no order.

        Partitions of topics that the principal can't describe are left out.
        """
        self._access.check(Operation.DESCRIBE, GROUP, group_id)
        positions = self._coordinator.positions(group_id)
        if self._access.is_unrestricted:
            return positions
        refused = self._access.refusals(
            Operation.DESCRIBE, TOPIC, (topic for topic, _ in positions)
        )
        return [at for at, error in zip(positions, refused, strict=True) if error is None]

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> list[TidemillError | None]:
        """Delete committed offsets (KIP-496).

        Returns:
            None or an error for each partition, in order.

        Raises:
            GroupIdNotFoundError, NonEmptyGroupError
        """
        self._access.check(Operation.DELETE, GROUP, group_id)
        errors = self._unusable(partitions)
        usable = [each for each, error in zip(partitions, errors, strict=True) if error is None]
        outcomes = iter(await self._coordinator.delete_offsets(group_id, usable))
        return [error or next(outcomes) for error in errors]

    def _unusable(self, partitions: Sequence[tuple[str, int]]) -> list[TidemillError | None]:
        """Return an error for each partition that is denied or does not exist, else None."""
        refused = self._access.refusals(Operation.READ, TOPIC, (topic for topic, _ in partitions))
        return [
            error or missing_partition(self._catalog, *each)
            for error, each in zip(refused, partitions, strict=True)
        ]

    # --- admin -----------------------------------------------------------------------------------

    def listings(
        self, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> Iterator[GroupListing]:
        """Return the groups that the principal can describe, one after the other.

        Args:
            states: only groups in one of these states; empty for all.
            types: only groups of one of these types; empty for all.
        """
        return (
            group
            for group in self._coordinator.listings(states, types)
            if self._access.allows(Operation.DESCRIBE, GROUP, group.group_id)
        )

    def describe(self, group_id: str) -> GroupDescription:
        """Return a group with its members. An unknown group has the state ``Dead``."""
        self._access.check(Operation.DESCRIBE, GROUP, group_id)
        return self._coordinator.describe(group_id)

    def describe_consumer_group(self, group_id: str) -> ConsumerGroupInfo:
        """Return a group with the consumer protocol, its members, and their partitions.

        Raises:
            GroupIdNotFoundError: there is no such group, or it is a classic one.
            TopicAuthorizationError: the principal can't describe a topic of the group.
        """
        self._access.check(Operation.DESCRIBE, GROUP, group_id)
        group = self._coordinator.describe_consumer_group(group_id)
        if not self._access.is_unrestricted:
            names = {name for each in group.members for name in each.member.topic_names}
            for each in group.members:
                names |= {name for _, name, _ in (*each.assigned, *each.target)}
            self._check_topics(sorted(names))
        return group

    def describe_share_group(self, group_id: str) -> ShareGroupInfo:
        """Return a share group, its members, and their partitions.

        Raises:
            GroupIdNotFoundError: there is no such group, or it is of another kind.
            TopicAuthorizationError: the principal can't describe a topic of the group.
        """
        self._access.check(Operation.DESCRIBE, GROUP, group_id)
        group = self._coordinator.describe_share_group(group_id)
        if not self._access.is_unrestricted:
            names = {name for each in group.members for name in each.member.topic_names}
            self._check_topics(sorted(names))
        return group

    async def delete(self, group_id: str) -> None:
        """Delete an empty group, its offsets, and what it has acknowledged.

        Raises:
            GroupIdNotFoundError, NonEmptyGroupError
        """
        self._access.check(Operation.DELETE, GROUP, group_id)
        await self._coordinator.delete_group(group_id)
        await self._forget_shares(group_id)
