"""Plain data of share groups: requests of members, answers, what is stored, views for admins.

This module must not contain behaviour, I/O or numbers of a protocol. Source: KIP-932.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from tidemill.state.assignors.types import Partitions
from tidemill.state.modern_groups.types import GroupInfo, MemberInfo


@dataclass(frozen=True, slots=True)
class ShareHeartbeat:
    """A member's heartbeat (ShareGroupHeartbeat). None: as in the heartbeat before."""

    group_id: str
    member_id: str
    member_epoch: int
    client_id: str
    client_host: str
    rack_id: str | None = None
    topic_names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ShareMember:
    """A member as it is stored: what it asked for."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    """Sorted."""
    instance_id: ClassVar[None] = None
    """Share groups have no static members."""


@dataclass(frozen=True, slots=True)
class ShareAssignment:
    """A member's epoch and partitions, as they are stored."""

    epoch: int = 0
    previous_epoch: int = 0
    """The epoch before. A member whose answer was lost sends it again."""
    partitions: Partitions = field(default_factory=dict)


ShareMemberInfo: TypeAlias = MemberInfo[ShareMember]
ShareGroupInfo: TypeAlias = GroupInfo[ShareMember]
