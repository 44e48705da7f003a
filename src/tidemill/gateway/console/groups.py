"""Groups and share groups: members, lag in records and time, and a reset with a preview.

Lists come from the snapshot. Must not know: HTML.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.gateway.cluster import changes
from tidemill.gateway.cluster.state import GroupState, MemberState, Snapshot
from tidemill.gateway.console.contract import Data, Done, Form, Page, View, address
from tidemill.gateway.console.lists import by_attribute, listed
from tidemill.gateway.console.render import plural
from tidemill.gateway.errors import HttpError, invalid
from tidemill.gateway.parameters import time_of
from tidemill.gateway.topics import SPECS, Place

SHARE = "share"
TO = ("beginning", "end", "time", "offset", "shift")
MOST_MEMBERS = 500
"""Members of one group that its page shows."""
MOST_ROWS = 2000
"""Partitions of one group that its page shows."""
_LARGEST = 1 << 62


@dataclass(frozen=True, slots=True)
class Change:
    """A partition before and after a reset."""

    topic: str
    partition: int
    before: int
    after: int


def _row(view: View, snapshot: Snapshot, group: GroupState) -> dict[str, Any]:
    topics = {*group.committed, *(name for each in group.members for name in each.partitions)}
    return {
        "name": group.name,
        "kind": group.kind,
        "state": group.state,
        "members": len(group.members),
        "topics": sorted(topics),
        "lag": group.lag,
        "lag_s": group.lag_s,
        "is_older": group.is_older,
        "per_s": snapshot.read_rates.get(group.name, 0.0),
        "hour": view.history.lags(group.name),
    }


async def _list(view: View, *, shares: bool) -> Data:
    snapshot = await view.snapshot()
    groups = [each for each in snapshot.groups.values() if (each.kind == SHARE) == shares]
    found = listed(
        view,
        groups,
        {
            **by_attribute("name", "state", "lag", "lag_s"),
            "members": lambda each: len(each.members),
            "per_s": lambda each: snapshot.read_rates.get(each.name, 0.0),
        },
        search=lambda each: f"{each.name} {' '.join(each.committed)}",
        sort="-lag",
    )
    rows = [_row(view, snapshot, each) for each in found.rows]
    return {
        "list": found.showing(rows),
        "shares": shares,
        "lag": sum(each.lag for each in groups),
        "without_members": sum(not each.members for each in groups),
    }


async def list_groups(view: View) -> Data:
    """Return the groups."""
    return await _list(view, shares=False)


async def list_shares(view: View) -> Data:
    """Return the share groups."""
    return await _list(view, shares=True)


# --- one group -----------------------------------------------------------------------------------


async def _group(view: View) -> tuple[Snapshot, GroupState]:
    """Return the group that the URL names.

    Raises:
        HttpError: it does not exist (404).
    """
    name = view.needed("name")
    snapshot = await view.snapshot_with(lambda each: name in each.groups)
    group = snapshot.groups.get(name)
    if group is None:
        raise HttpError(404, "unknown_group", f"group {name[:200]} does not exist")
    return snapshot, group


async def describe(view: View) -> Data:
    """Return a group: its members, and its partitions with their lag."""
    snapshot, group = await _group(view)
    rows = list(_partitions(snapshot, group))
    return {
        "group": _row(view, snapshot, group),
        "protocol": group.protocol,
        "members": group.members[:MOST_MEMBERS],
        "members_left_out": max(0, len(group.members) - MOST_MEMBERS),
        "partitions": rows[:MOST_ROWS],
        "left_out": max(0, len(rows) - MOST_ROWS),
        "read": view.history.read_rates([group.name]),
        "positions": TO,
    }


def _partitions(snapshot: Snapshot, group: GroupState) -> Iterable[dict[str, Any]]:
    """Yield the partitions that a group reads, or has read, with the client that has each now."""
    owners = {
        (topic, number): each.client or each.id
        for each in group.members
        for topic, numbers in each.partitions.items()
        for number in numbers
    }
    lags = group.lags(snapshot.topics)
    places = {
        *owners,
        *((topic, number) for topic, each in group.committed.items() for number in each),
    }
    for topic, number in sorted(places):
        known = snapshot.topics.get(topic)
        end = known.ends[number] if known is not None and number < known.partitions else None
        yield {
            "topic": topic,
            "partition": number,
            "committed": group.committed.get(topic, {}).get(number),
            "end": end,
            "lag": lags.get(topic, {}).get(number),
            "client": owners.get((topic, number), ""),
        }


# --- reset ---------------------------------------------------------------------------------------


async def preview(view: View, form: Form) -> Data:
    """Return what a reset would change."""
    _, group = await _group(view)
    return {
        "changes": await _changes(view, group, form),
        "given": {name: form.get(name, "") for name in ("to", "value", "topic")},
    }


async def reset(view: View, form: Form) -> Done:
    """Move the offsets of a group without members."""
    _, group = await _group(view)
    changed = [each for each in await _changes(view, group, form) if each.before != each.after]
    url = address("group", name=group.name)
    if not changed:
        return Done(url, "Nothing to change.")
    offsets = {(each.topic, each.partition): each.after for each in changed}
    move = changes.move_starts if group.kind == SHARE else changes.commit
    await asyncio.to_thread(move, view.parts.kafka, group.name, offsets)
    return Done(url, f"Moved {group.name} on {plural(len(changed), 'partition')}.")


async def _changes(view: View, group: GroupState, form: Form) -> list[Change]:
    """Return the offsets that the form asks for, from the start to the end of each partition.

    Raises:
        HttpError: the form is malformed (400), or the group has members (409).
    """
    if group.members:
        raise HttpError(
            409,
            "group_in_use",
            f"group {group.name} has {_members(group.members)}, which would commit over it",
            hint="Stop its consumers first. Crashed members leave after their session timeout.",
        )
    topic = form.get("topic", "").strip()
    if topic and topic not in group.committed:
        raise invalid(f"group {group.name} has no offsets of topic {topic[:200]}")
    before: dict[Place, int] = {
        (name, number): offset
        for name, each in group.committed.items()
        if topic in ("", name)
        for number, offset in each.items()
    }
    existing = await view.parts.catalog.names()
    places = [place for place in sorted(before) if place[1] < existing.get(place[0], 0)]
    starts, ends = await view.parts.catalog.bounds(places, committed=False)
    wanted = await _wanted(view, form, {place: before[place] for place in places}, starts, ends)
    return [
        Change(*place, before[place], min(max(wanted[place], starts[place]), ends[place]))
        for place in places
    ]


async def _wanted(
    view: View,
    form: Form,
    before: Mapping[Place, int],
    starts: Mapping[Place, int],
    ends: Mapping[Place, int],
) -> Mapping[Place, int]:
    to = form.needed("to")
    if to == "beginning":
        return starts
    if to == "end":
        return ends
    value = form.get("value", "").strip()
    if not value:
        raise invalid(f"a reset to a {to if to in TO else 'position'} needs a value")
    if to == "time":
        time_ms = time_of("value", value)
        found = await view.parts.catalog.offsets(before, SPECS.for_timestamp(time_ms))
        return {place: found[place] if found[place] >= 0 else ends[place] for place in before}
    number = _number(value)
    if to == "offset":
        return dict.fromkeys(before, number)
    if to == "shift":
        return {place: offset + number for place, offset in before.items()}
    raise invalid(f"invalid position {to[:100]!r}: use {', '.join(TO)}")


def _number(text: str) -> int:
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20):
        raise invalid(f"invalid number {text[:100]!r}")
    return max(-_LARGEST, min(sign * int(digits), _LARGEST))


def _members(members: tuple[MemberState, ...]) -> str:
    clients = ", ".join(sorted({each.client for each in members})[:3])
    return f"{plural(len(members), 'member')} ({clients})"


GROUPS = Page(
    address="groups",
    about="Consumer groups: members, and how far behind they are in records and time.",
    data=list_groups,
    section="Readers",
    live_s=5.0,
)
SHARES = Page(
    address="share-groups",
    about="Share groups: members, and records that are not finished.",
    template="groups.html",
    data=list_shares,
    section="Readers",
    live_s=5.0,
)
GROUP = Page(
    address="group",
    about="One group or share group: its members, its partitions, and a reset with a preview.",
    data=describe,
    actions={"preview": preview, "reset": reset},
    live_s=5.0,
    belongs_to="groups",
)
