"""Consumer groups with the consumer protocol: heartbeat and describe (KIP-848).

Translates only: the state machine of consumer groups decides what a member gets. Version 1 of the
heartbeat has a pattern of topics, and member ids that clients make (KIP-1082).
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tidemill.engine.api import ConsumerHeartbeat, ConsumerMemberInfo
from tidemill.protocols.kafka.apis import Each, RequestContext, Tree, field, handles
from tidemill.protocols.kafka.handlers.group_members.modern import (
    assignment_fields,
    describe_answer,
    group_fields,
    heartbeat_answer,
)

NO_ID = UUID(int=0)
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


@handles(68)
async def handle_consumer_group_heartbeat(ctx: RequestContext, request: Any) -> Tree:
    """Answer a member with its epoch, and with its partitions where they changed."""
    names, owned = request.subscribed_topic_names, request.topic_partitions
    heartbeat = ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        client_id=ctx.client_id or "",
        client_host=ctx.client_host,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout,
        topic_names=None if names is None else tuple(names),
        topic_pattern=field(request, "subscribed_topic_regex", None),
        assignor=request.server_assignor,
        owned=None
        if owned is None
        else {each.topic_id or NO_ID: frozenset(each.partitions) for each in owned},
        chooses_member_id=ctx.api_version >= 1,
    )
    return await heartbeat_answer(ctx.door.groups.consumer_heartbeat(heartbeat))


@handles(69)
def handle_consumer_group_describe(ctx: RequestContext, request: Any) -> Tree:
    """Answer ConsumerGroupDescribe. A classic group is an error: ask DescribeGroups for it."""

    def described(group_id: str) -> dict[str, Any]:
        group = ctx.door.groups.describe_consumer_group(group_id)
        return group_fields(group, Each(_member, group.members))

    return describe_answer(ctx, request, described)


def _member(info: ConsumerMemberInfo) -> Tree:
    member = info.member
    return {
        "member_id": info.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": info.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.topic_names),
        "subscribed_topic_regex": member.topic_pattern,
        "assignment": assignment_fields(info.assigned),
        "target_assignment": assignment_fields(info.target),
        "member_type": CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    }
