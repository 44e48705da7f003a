"""Describe what happened in a group, for the log of the broker.

A machine appends these to its outcome. They change nothing. This module must not know a rule of the
protocol, or how a line is logged.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tidemill.state.groups.group import Group
from tidemill.state.groups.members import Client, WithId
from tidemill.state.outcome import Outcome


class MemberChange(enum.Enum):
    """The change of a member."""

    JOINED = "joined"
    LEFT = "left"
    """It has asked for it, or an admin has."""
    REMOVED = "removed"
    REPLACED = "replaced"
    """A static member has a new id."""


class GroupChange(enum.Enum):
    """The change of a group."""

    REBALANCING = "rebalancing"
    STABLE = "stable"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class MemberEvent:
    """A member joined or is gone."""

    what: MemberChange
    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    reason: str


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """A group began or ended a rebalance. ``generation`` is the one that it has now."""

    what: GroupChange
    group_id: str
    generation: int
    members: int
    reason: str


def note_member(
    what: MemberChange,
    group: WithId,
    member_id: str,
    member: Client,
    reason: str | None,
    out: Outcome[None],
) -> None:
    """Add the change of a member to an outcome."""
    ids = group.group_id, member_id, member.instance_id
    out.events.append(MemberEvent(what, *ids, member.client_id, member.client_host, reason or ""))


def note_group(what: GroupChange, group: Group, reason: str, out: Outcome[None]) -> None:
    """Add the change of a group to an outcome."""
    out.events.append(
        GroupEvent(what, group.group_id, group.generation, len(group.members), reason)
    )
