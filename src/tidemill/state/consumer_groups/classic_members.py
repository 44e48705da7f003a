"""Members with the classic protocol in a consumer group: join, sync, heartbeat, leave.

The broker assigns to them as to all others. A member learns from its heartbeat that it has to join
again; its epoch is its generation. It gives partitions back by joining without them.

This module must not know how a group is found or converted.

Source: KIP-848, section "Online upgrade"; Apache Kafka's ``GroupMetadataManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidemill.errors import TidemillError
from tidemill.log.errors import InvalidRecordError
from tidemill.state.consumer_groups.group import Changes, ConsumerGroup, ConsumerTable
from tidemill.state.consumer_groups.members import replace_static, replaced_member, update_member
from tidemill.state.consumer_groups.migration import assignment_of, member_of
from tidemill.state.consumer_groups.targets import update_epoch
from tidemill.state.consumer_groups.types import ClassicProtocols, ConsumerMember, MemberState
from tidemill.state.errors import (
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    MemberIdRequiredError,
    UnknownMemberIdError,
)
from tidemill.state.groups.commits import rebalancing
from tidemill.state.groups.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    Subscription,
    read_subscription,
)
from tidemill.state.groups.events import MemberChange, note_member
from tidemill.state.groups.types import (
    JoinRequest,
    JoinResult,
    LeaveMember,
    SyncRequest,
    SyncResult,
)
from tidemill.state.modern_groups.machine import Limit, Sessions, note_epoch
from tidemill.state.modern_groups.types import Topics
from tidemill.state.outcome import Outcome, nothing


class ClassicMembers:
    """The requests of members with the classic protocol, for all consumer groups."""

    def __init__(
        self,
        table: ConsumerTable,
        sessions: Sessions,
        topics: Topics,
        new_id: Callable[[], str],
    ) -> None:
        self._table = table
        self._sessions = sessions
        self._topics = topics
        self._new_id = new_id

    def join(
        self, group: ConsumerGroup, request: JoinRequest, now_ms: int, out: Outcome[None]
    ) -> JoinResult:
        """Add a member, or take it to its next epoch."""
        member_id, instance_id = request.member_id, request.instance_id
        is_new = not member_id
        if not group.supports(request.protocol_type, request.protocols):
            raise InconsistentGroupProtocolError(
                f"group {group.group_id!r}: the other classic members don't support the protocols "
                "of this one",
                hint="All members must share a protocol type and an assignor.",
            )
        subscription = _subscription_of(request)
        if is_new:
            member_id = f"{instance_id or request.client_id}-{self._new_id()}"
        old_id = None
        if instance_id is not None and is_new:
            old_id = replaced_member(group, member_id, instance_id, classic=True)
        elif instance_id is not None:
            group.check_member(member_id, instance_id)
        known = group.members.get(old_id or member_id)
        if known is None:
            self._table.check_size(group.group_id, len(group.members))
        member = member_of(request, subscription)
        self._table.check_growth(group, member_id, member)
        if is_new and instance_id is None and request.require_known_member_id:
            raise MemberIdRequiredError("join again with this member id", member_id=member_id)

        changes = Changes(group, out.records)
        epoch = group.epoch
        if old_id is not None:
            self._sessions.forget(group, old_id)
            replace_static(changes, old_id, member_id)
        owned = {
            found[0]: numbers
            for name, numbers in subscription.owned.items()
            if (found := self._topics.find(name)) is not None
        }
        step = update_member(changes, member_id, member, owned, self._topics, now_ms)
        if known is None:
            note_member(MemberChange.JOINED, group, member_id, member, request.reason, out)
        elif old_id is not None:
            note_member(MemberChange.REPLACED, group, member_id, member, f"was {old_id}", out)
        note_epoch(group, epoch, f"member {member_id} joined", out)
        self._sessions.end(Limit.JOIN, group, member_id)
        self._sessions.start(Limit.SESSION, group, member_id, request.session_timeout_ms, now_ms)
        self._sessions.start(Limit.SYNC, group, member_id, member.rebalance_timeout_ms, now_ms)
        protocol = request.protocols[0][0]
        return JoinResult(step.epoch, CONSUMER_PROTOCOL_TYPE, protocol, "", member_id)

    def sync(self, group: ConsumerGroup, request: SyncRequest, now_ms: int) -> SyncResult:
        """Return a member's partitions."""
        member_id = request.member_id
        member, classic = self._checked(group, member_id, request.instance_id, request.generation)
        protocol, metadata = classic.protocols[0]
        _check_same("protocol type", request.protocol_type, CONSUMER_PROTOCOL_TYPE)
        _check_same("protocol", request.protocol, protocol)
        current = group.current(member_id)
        if group.epoch > current.epoch and current.state is not MemberState.UNREVOKED:
            self._expect_join(group, member_id, member, now_ms)
            raise rebalancing(group)
        self._sessions.end(Limit.SYNC, group, member_id)
        self._sessions.start(Limit.SESSION, group, member_id, classic.session_timeout_ms, now_ms)
        assignment = assignment_of(current, metadata, self._topics)
        return SyncResult(CONSUMER_PROTOCOL_TYPE, protocol, assignment)

    def heartbeat(
        self,
        group: ConsumerGroup,
        generation: int,
        member_id: str,
        instance_id: str | None,
        now_ms: int,
    ) -> None:
        """Extend a member's session."""
        member, classic = self._checked(group, member_id, instance_id, generation)
        self._sessions.start(Limit.SESSION, group, member_id, classic.session_timeout_ms, now_ms)
        current = group.current(member_id)
        released = current.state is MemberState.UNRELEASED and not group.waits_for_release(
            member_id
        )
        if current.epoch < group.epoch or current.state is MemberState.UNREVOKED or released:
            self._expect_join(group, member_id, member, now_ms)
            raise rebalancing(group)

    def leave(
        self, group: ConsumerGroup, members: Sequence[LeaveMember], now_ms: int
    ) -> Outcome[list[TidemillError | None]]:
        """Remove members; the result has an error or None for each, in order."""
        out = nothing()
        changes = Changes(group, out.records)
        result: list[TidemillError | None] = []
        for leaving in members:
            try:
                member_id = leaving.member_id
                if not member_id and leaving.instance_id is not None:
                    member_id = group.static_members.get(leaving.instance_id, "")
                member = group.check_member(member_id, leaving.instance_id)
                _classic_of(group, member_id, member)
                note_member(MemberChange.LEFT, group, member_id, member, leaving.reason, out)
                self._sessions.forget(group, member_id)
                changes.drop_member(member_id)
                result.append(None)
            except TidemillError as error:
                result.append(error)
        if None in result:
            epoch = group.epoch
            update_epoch(changes, self._topics, now_ms, bump=True)
            note_epoch(group, epoch, "members left", out)
        return Outcome(result, out.records, out.replies, out.events)

    # --- inside ----------------------------------------------------------------------------------

    def _checked(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerMember, ClassicProtocols]:
        member = group.check_member(member_id, instance_id)
        classic = _classic_of(group, member_id, member)
        epoch = group.current(member_id).epoch
        if generation != epoch:
            raise IllegalGenerationError(
                f"group {group.group_id!r}: member {member_id!r} is in generation {epoch}, not "
                f"{generation}"
            )
        return member, classic

    def _expect_join(
        self, group: ConsumerGroup, member_id: str, member: ConsumerMember, now_ms: int
    ) -> None:
        limit = member.rebalance_timeout_ms
        self._sessions.start_once(Limit.JOIN, group, member_id, limit, now_ms)


def _subscription_of(request: JoinRequest) -> Subscription:
    try:
        return read_subscription(request.protocols[0][1])
    except InvalidRecordError as error:
        raise InconsistentGroupProtocolError(
            f"group {request.group_id!r}: the subscription can't be read: {error}"
        ) from error


def _classic_of(group: ConsumerGroup, member_id: str, member: ConsumerMember) -> ClassicProtocols:
    if member.classic is None:
        raise UnknownMemberIdError(
            f"member {member_id!r} of group {group.group_id!r} does not use the classic protocol"
        )
    return member.classic


def _check_same(what: str, sent: str | None, actual: str) -> None:
    if sent is not None and sent != actual:
        raise InconsistentGroupProtocolError(f"the member's {what} is {actual!r}, not {sent!r}")
