"""Members of share groups: heartbeat and describe (KIP-932).

Translates only: the state machine of share groups decides what a member gets.
"""

from __future__ import annotations

from typing import Any

from tidemill.engine.api import ShareHeartbeat, ShareMemberInfo
from tidemill.protocols.kafka.apis import Each, RequestContext, Tree, handles
from tidemill.protocols.kafka.handlers.group_members.modern import (
    assignment_fields,
    describe_answer,
    group_fields,
    heartbeat_answer,
)


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
    return await heartbeat_answer(ctx.door.groups.share_heartbeat(heartbeat))


@handles(77)
def handle_share_group_describe(ctx: RequestContext, request: Any) -> Tree:
    """Answer ShareGroupDescribe. A group of another kind is an error."""

    def described(group_id: str) -> dict[str, Any]:
        group = ctx.door.groups.describe_share_group(group_id)
        return group_fields(group, Each(_member, group.members))

    return describe_answer(ctx, request, described)


def _member(info: ShareMemberInfo) -> Tree:
    member = info.member
    return {
        "member_id": info.member_id,
        "rack_id": member.rack_id,
        "member_epoch": info.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.topic_names),
        "assignment": assignment_fields(info.assigned),
    }
