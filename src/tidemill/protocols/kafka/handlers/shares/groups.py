"""Members of share groups: heartbeat and describe (KIP-932).

Translates only: the state machine of share groups decides what a member gets.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tidemill.engine.api import ShareGroupInfo, ShareHeartbeat, ShareMemberInfo
from tidemill.engine.authorize import GROUP
from tidemill.errors import TidemillError
from tidemill.protocols.kafka.apis import Each, RequestContext, Tree, handles
from tidemill.protocols.kafka.error_codes import error_code, error_message
from tidemill.protocols.kafka.operations import allowed_operations

code = partial(error_code, group=True)


@handles(76)
async def handle_share_group_heartbeat(ctx: RequestContext, request: Any) -> Tree:
    """Answer a member with its epoch, and with its partitions where they changed."""
    names = request.subscribed_topic_names
    heartbeat = ShareHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        client_id=ctx.client_id or "",
        client_host=ctx.client_host,
        rack_id=request.rack_id,
        topic_names=None if names is None else tuple(names),
    )
    try:
        result = await ctx.door.groups.share_heartbeat(heartbeat)
    except TidemillError as error:
        return {"error_code": code(error), "error_message": error_message(error)}
    assigned = result.assignment
    return {
        "error_code": 0,
        "error_message": None,
        "member_id": result.member_id,
        "member_epoch": result.member_epoch,
        "heartbeat_interval": result.heartbeat_interval_ms,
        "assignment": None
        if assigned is None
        else {
            "topic_partitions": [
                {"topic_id": topic, "partitions": sorted(assigned[topic])}
                for topic in sorted(assigned)
            ]
        },
    }


@handles(77)
def handle_share_group_describe(ctx: RequestContext, request: Any) -> Tree:
    """Answer ShareGroupDescribe. A group of another kind is an error."""

    def describe(group_id: str) -> Tree:
        try:
            group = _described(ctx.door.groups.describe_share_group(group_id))
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


def _described(group: ShareGroupInfo) -> dict[str, Any]:
    return {
        "error_code": 0,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": Each(_member, group.members),
    }


def _member(info: ShareMemberInfo) -> Tree:
    member = info.member
    return {
        "member_id": info.member_id,
        "rack_id": member.rack_id,
        "member_epoch": info.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.topic_names),
        "assignment": {
            "topic_partitions": [
                {"topic_id": topic_id, "topic_name": name, "partitions": list(numbers)}
                for topic_id, name, numbers in info.assigned
            ]
        },
    }
