"""A member of a classic consumer group: its join request, and the request that it waits for.

This module must not know the group or a timer.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Protocol

from tidemill.state.errors import FencedInstanceIdError, UnknownMemberIdError
from tidemill.state.groups.format import StoredMember
from tidemill.state.groups.memory import MEMBER_BYTES
from tidemill.state.groups.types import GroupMemberInfo, JoinRequest

Protocols = tuple[tuple[str, bytes], ...]


def size_of_request(
    protocols: Protocols, instance_id: str | None, client_id: str, client_host: str
) -> int:
    """Return the bytes of memory that a member takes for what it sends when it joins."""
    strings = len(instance_id or "") + len(client_id) + len(client_host)
    return MEMBER_BYTES + strings + sum(len(name) + len(data) for name, data in protocols)


class Client(Protocol):
    """A member of a group of any kind, as far as events name it."""

    @property
    def instance_id(self) -> str | None:
        """The instance id of a static member."""

    @property
    def client_id(self) -> str:
        """The name of the client."""

    @property
    def client_host(self) -> str:
        """The address of the client."""


class WithId(Protocol):
    """A group of any kind."""

    group_id: str


class Members(WithId, Protocol):
    """A group, as far as its members' ids go."""

    static_members: dict[str, str]

    @property
    def members(self) -> Mapping[str, object]:
        """The members by their ids."""


def check_ids(group: Members, member_id: str, instance_id: str | None) -> None:
    """Check that a member has both ids.

    Raises:
        UnknownMemberIdError: the group has no such member.
        FencedInstanceIdError: another member uses the instance id now.
    """
    if instance_id is not None:
        owner = group.static_members.get(instance_id)
        if owner is None:
            raise UnknownMemberIdError(
                f"group {group.group_id!r} has no static member {instance_id!r}"
            )
        if owner != member_id:
            raise FencedInstanceIdError(
                f"group {group.group_id!r}: a newer member uses the instance id {instance_id!r}"
            )
    if member_id not in group.members:
        raise UnknownMemberIdError(f"group {group.group_id!r} has no member {member_id!r}")


@dataclass(slots=True)
class Member:
    """A member of a group. Timeouts are in milliseconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join_ticket: int | None = None
    """The parked JoinGroup. If set, the member has joined the rebalance that is being prepared."""
    sync_ticket: int | None = None
    """The parked SyncGroup."""
    is_new: bool = False
    """Whether it has not seen a generation yet. Such a member possibly does not know its id, so it
    can't send heartbeats, and a parked join does not keep it alive."""

    @classmethod
    def of_request(cls, request: JoinRequest, member_id: str) -> Member:
        """Return the member that ``request`` describes, with the id ``member_id``."""
        return cls(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
        )

    @classmethod
    def of_stored(cls, stored: StoredMember, protocol: str | None) -> Member:
        """Return the member as it was stored: with the protocol of its generation only."""
        return cls(
            stored.member_id,
            stored.instance_id,
            stored.client_id,
            stored.client_host,
            stored.rebalance_timeout_ms,
            stored.session_timeout_ms,
            ((protocol or "", stored.subscription),),
            stored.assignment,
        )

    def stored(self, protocol: str | None) -> StoredMember:
        """Return the member as it is stored, with the protocol of its generation."""
        return StoredMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            self.assignment,
        )

    @property
    def size(self) -> int:
        """The bytes of memory that it takes, roughly."""
        return (
            size_of_request(self.protocols, self.instance_id, self.client_id, self.client_host)
            + 2 * len(self.member_id)
            + len(self.assignment)
        )

    @property
    def is_static(self) -> bool:
        """Whether it has a ``group.instance.id`` (KIP-345)."""
        return self.instance_id is not None

    @property
    def awaits_join(self) -> bool:
        """Whether its JoinGroup is parked."""
        return self.join_ticket is not None

    @property
    def awaits_sync(self) -> bool:
        """Whether its SyncGroup is parked."""
        return self.sync_ticket is not None

    @property
    def is_kept_alive(self) -> bool:
        """Whether a parked request replaces its heartbeats. That of a new member does not."""
        return not self.is_new and (self.awaits_join or self.awaits_sync)

    def metadata(self, protocol: str | None) -> bytes:
        """Return its metadata for a protocol; empty if it does not support the protocol."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: Container[str]) -> str | None:
        """Return the protocol that it prefers among ``candidates``."""
        return next((name for name, _ in self.protocols if name in candidates), None)

    def info(self, protocol: str | None) -> GroupMemberInfo:
        """Return the member for ``describe``; metadata and assignment only with a protocol."""
        shown = protocol is not None
        return GroupMemberInfo(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.metadata(protocol) if shown else b"",
            self.assignment if shown else b"",
        )
