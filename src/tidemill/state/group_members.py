"""A member of a classic consumer group: what it asked for and what it waits for.

Knows no group and no timer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemill.state.offsets_format import StoredMember
from tidemill.state.types import GroupMemberInfo, JoinRequest

Protocols = tuple[tuple[str, bytes], ...]


@dataclass(slots=True)
class Member:
    """One member. Timeouts in milliseconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join_ticket: int | None = None
    """The parked JoinGroup; set means "has joined the rebalance that is being prepared"."""
    sync_ticket: int | None = None
    """The parked SyncGroup."""
    is_new: bool = False
    """Has not seen a generation yet: it may not know its id, so it can't be expected to send
    heartbeats, and a parked join does not keep it alive for ever."""

    @classmethod
    def of_request(cls, request: JoinRequest, member_id: str) -> Member:
        """The member that ``request`` describes, under ``member_id``."""
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
        """The member as it was persisted, knowing only the protocol of its generation."""
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
        """The member as it is persisted with its generation's protocol."""
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
    def is_static(self) -> bool:
        """Named by ``group.instance.id`` (KIP-345)."""
        return self.instance_id is not None

    @property
    def awaits_join(self) -> bool:
        return self.join_ticket is not None

    @property
    def awaits_sync(self) -> bool:
        return self.sync_ticket is not None

    @property
    def is_kept_alive(self) -> bool:
        """A parked request stands for heartbeats, but for those of a new member."""
        return not self.is_new and (self.awaits_join or self.awaits_sync)

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata for a protocol; empty where it does not support it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: Iterable[str]) -> str | None:
        """Its most preferred protocol among ``candidates``."""
        allowed = set(candidates)
        return next((name for name, _ in self.protocols if name in allowed), None)

    def info(self, protocol: str | None) -> GroupMemberInfo:
        """What ``describe`` shows; metadata and assignment only with a protocol."""
        shown = protocol is not None
        return GroupMemberInfo(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.metadata(protocol) if shown else b"",
            self.assignment if shown else b"",
        )
