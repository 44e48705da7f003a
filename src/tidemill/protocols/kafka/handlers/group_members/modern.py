"""Groups whose partitions the broker assigns: heartbeat and describe.

These are consumer groups with the consumer protocol (KIP-848) and share groups (KIP-932). This
module translates only: the state machines of the groups decide what a member gets. Version 1 of a
consumer's heartbeat has a pattern of topics, and member ids that clients make (KIP-1082).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from tidemill.engine.api import (
    ConsumerGroupInfo,
    ConsumerHeartbeat,
    ConsumerMemberInfo,
    HeartbeatResult,
    NamedPartitions,
    ShareGroupInfo,
    ShareHeartbeat,
    ShareMemberInfo,
)
from tidemill.engine.authorize import GROUP
from tidemill.errors import TidemillError
from tidemill.protocols.kafka.apis import Each, RequestContext, Tree, field, handles
from tidemill.protocols.kafka.error_codes import error_fields
from tidemill.protocols.kafka.operations import allowed_operations

_fields = partial(error_fields, group=True)
NO_ID = UUID(int=0)
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


@handles(68, refused=_fields)
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
    return _heartbeat_answer(await ctx.door.groups.consumer_heartbeat(heartbeat))


@handles(76, refused=_fields)
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
    return _heartbeat_answer(await ctx.door.groups.share_heartbeat(heartbeat))


def _heartbeat_answer(answer: HeartbeatResult) -> Tree:
    """Answer a member with its epoch, and with its partitions where they changed."""
    assigned = answer.assignment
    return {
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


@handles(69)
def handle_consumer_group_describe(ctx: RequestContext, request: Any) -> Tree:
    """Answer ConsumerGroupDescribe. A classic group is an error: ask DescribeGroups for it."""
    return _describe(ctx, request, ctx.door.groups.describe_consumer_group, _consumer)


@handles(77)
def handle_share_group_describe(ctx: RequestContext, request: Any) -> Tree:
    """Answer ShareGroupDescribe. A group of another kind is an error."""
    return _describe(ctx, request, ctx.door.groups.describe_share_group, _member)


def _describe(
    ctx: RequestContext,
    request: Any,
    find: Callable[[str], ConsumerGroupInfo | ShareGroupInfo],
    member_fields: Callable[[Any], Tree],
) -> Tree:
    """Describe the groups that a request asks for. What ``find`` raises is the group's error."""

    def describe(group_id: str) -> Tree:
        try:
            group = find(group_id)
        except TidemillError as error:
            return {**_fields(error), "group_id": group_id}
        return {
            "group_id": group.group_id,
            "group_state": group.state,
            "group_epoch": group.epoch,
            "assignment_epoch": group.assignment_epoch,
            "assignor_name": group.assignor,
            "members": Each(member_fields, group.members),
            "authorized_operations": allowed_operations(
                request.include_authorized_operations, ctx.door.access, GROUP, group_id
            ),
        }

    return {"groups": Each(describe, request.group_ids)}


def _consumer(info: ConsumerMemberInfo) -> Tree:
    member = info.member
    return {
        **_member(info),
        "instance_id": member.instance_id,
        "subscribed_topic_regex": member.topic_pattern,
        "target_assignment": _assignment(info.target),
        "member_type": CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    }


def _member(info: ConsumerMemberInfo | ShareMemberInfo) -> Tree:
    """Return the fields that members of both kinds have."""
    member = info.member
    return {
        "member_id": info.member_id,
        "rack_id": member.rack_id,
        "member_epoch": info.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.topic_names),
        "assignment": _assignment(info.assigned),
    }


def _assignment(partitions: NamedPartitions) -> Tree:
    """Return partitions with the ids and names of their topics."""
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": name, "partitions": list(numbers)}
            for topic_id, name, numbers in partitions
        ]
    }
