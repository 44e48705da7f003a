"""Log what happened in groups, so that an operator can say why a member was removed.

Ids and reasons come from clients, so they are cut. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from tidemill.state.groups.events import GroupChange, GroupEvent, MemberChange, MemberEvent

MOST_CHARACTERS = 200

logger = structlog.get_logger("tidemill.groups")


def log_events(events: Iterable[object]) -> None:
    """Log the events of an outcome, one line for each."""
    for event in events:
        if isinstance(event, MemberEvent):
            _log_member(event)
        elif isinstance(event, GroupEvent):
            _log_group(event)


def _log_member(event: MemberEvent) -> None:
    about = {
        "group": _cut(event.group_id),
        "member": _cut(event.member_id),
        "client": _cut(event.client_id),
        "host": event.client_host,
    }
    if event.instance_id is not None:
        about["instance"] = _cut(event.instance_id)
    if event.reason:
        about["reason"] = _cut(event.reason)
    match event.what:
        case MemberChange.JOINED:
            logger.info("member.joined", **about)
        case MemberChange.LEFT:
            logger.info("member.left", **about)
        case MemberChange.REMOVED:
            logger.info("member.removed", **about)
        case MemberChange.REPLACED:
            logger.info("member.replaced", **about)


def _log_group(event: GroupEvent) -> None:
    about = {
        "group": _cut(event.group_id),
        "generation": event.generation,
        "members": event.members,
    }
    if event.reason:
        about["reason"] = _cut(event.reason)
    match event.what:
        case GroupChange.REBALANCING:
            logger.info("group.rebalancing", **about)
        case GroupChange.STABLE:
            logger.info("group.stable", **about)
        case GroupChange.EMPTY:
            logger.info("group.empty", **about)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
