"""Answers about groups whose partitions the broker assigns: consumer groups and share groups.

Translates only. This module must not know a kind of group.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from tidemill.engine.api import HeartbeatResult, NamedPartitions
from tidemill.engine.authorize import GROUP
from tidemill.errors import TidemillError
from tidemill.protocols.kafka.apis import Each, RequestContext, Tree
from tidemill.protocols.kafka.error_codes import error_code, error_message
from tidemill.protocols.kafka.operations import allowed_operations

code = partial(error_code, group=True)


class GroupInfo(Protocol):
    """A group as ``describe`` shows it, as far as all kinds have it."""

    @property
    def group_id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def assignment_epoch(self) -> int: ...
    @property
    def assignor(self) -> str: ...


async def heartbeat_answer(result: Awaitable[HeartbeatResult]) -> Tree:
    """Answer a member with its epoch, and with its partitions where they changed."""
    try:
        answer = await result
    except TidemillError as error:
        return {"error_code": code(error), "error_message": error_message(error)}
    assigned = answer.assignment
    return {
        "error_code": 0,
        "error_message": None,
        "member_id": answer.member_id,
        "member_epoch": answer.member_epoch,
        "heartbeat_interval": answer.heartbeat_interval_ms,
        "assignment": None
        if assigned is None
        else {
            "topic_partitions": [
                {"topic_id": topic, "partitions": sorted(assigned[topic])}
                for topic in sorted(assigned)
            ]
        },
    }


def describe_answer(
    ctx: RequestContext, request: Any, described: Callable[[str], dict[str, Any]]
) -> Tree:
    """Describe the groups that a request asks for.

    Args:
        described: returns the fields of a group. What it raises is the group's error.
    """

    def describe(group_id: str) -> Tree:
        try:
            group = described(group_id)
        except TidemillError as error:
            return {
                "error_code": code(error),
                "error_message": error_message(error),
                "group_id": group_id,
            }
        if request.include_authorized_operations:
            group["authorized_operations"] = allowed_operations(ctx.door.access, GROUP, group_id)
        return group

    return {"groups": Each(describe, request.group_ids)}


def group_fields(group: GroupInfo, members: Each[Any, Any]) -> dict[str, Any]:
    """Return the fields of a group and its members."""
    return {
        "error_code": 0,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": members,
    }


def assignment_fields(partitions: NamedPartitions) -> Tree:
    """Return partitions with the ids and names of their topics."""
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": name, "partitions": list(numbers)}
            for topic_id, name, numbers in partitions
        ]
    }
