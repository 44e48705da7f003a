"""Plain data of consumer groups: the requests of members, their answers, and views for admins.

This module must not contain behaviour, I/O or numbers of a protocol.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A request to join a group (KIP-62, KIP-345, KIP-394, KIP-800). Timeouts in milliseconds."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """(assignor name, subscription metadata), the preferred one first."""
    require_known_member_id: bool
    """JoinGroup 4 and later: a new dynamic member first gets an id and joins again with it."""
    reason: str | None = None
    supports_skipping_assignment: bool = False
    """JoinGroup 9 and later (KIP-814)."""


@dataclass(frozen=True, slots=True)
class JoinMember:
    """A member as the answer to the leader lists it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The answer to a join: the new generation. Only the leader gets ``members``."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_id: str
    members: tuple[JoinMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A request for the member's assignment. The leader sends the assignments of all members."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The answer to a sync: the member's assignment."""

    protocol_type: str
    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class LeaveMember:
    """A member that leaves. An admin may name a static member by its instance id alone."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as ``list_groups`` shows it."""

    group_id: str
    protocol_type: str
    state: str
    """Empty, PreparingRebalance, CompletingRebalance, Stable or Dead."""
    group_type: str = "classic"


@dataclass(frozen=True, slots=True)
class GroupMemberInfo:
    """A member as ``describe_groups`` shows it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as ``describe_groups`` shows it."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMemberInfo, ...]
