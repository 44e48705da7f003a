"""Consumer groups, classic protocol: join, sync, heartbeat, leave, list, describe, delete.

Translates between the Kafka protocol and the broker's door; which member may do what is decided
in ``state``. Knows which field exists in which version, and nothing of group states but their
names.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tidemill.broker.api import JoinRequest, LeaveMember, SyncRequest
from tidemill.errors import (
    GroupIdNotFoundError,
    InconsistentGroupProtocolError,
    MemberIdRequiredError,
    TidemillError,
    UnknownMemberIdError,
)
from tidemill.kafka.apis import RequestContext, Tree, field, handles, millis, outcome
from tidemill.kafka.errors import error_code, error_message

GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS: all there are on a group."""

code = partial(error_code, group=True)

DEAD = "Dead"
"""State of a group that does not exist."""


@handles(11)
async def handle_join_group(ctx: RequestContext, request: Any) -> Tree:
    """JoinGroup (KIP-62, KIP-345, KIP-394, KIP-800, KIP-814)."""
    version = ctx.api_version
    session_timeout_ms = millis(request.session_timeout)
    join = JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=field(request, "group_instance_id", None),
        client_id=ctx.client_id or "",
        client_host=ctx.client_host,
        session_timeout_ms=session_timeout_ms,
        # Before v1 the session timeout did both jobs.
        rebalance_timeout_ms=(
            millis(request.rebalance_timeout) if version >= 1 else session_timeout_ms
        ),
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        require_known_member_id=version >= 4,
        reason=field(request, "reason", None),
        supports_skipping_assignment=version >= 9,
    )
    try:
        result = await ctx.broker.join_group(join)
    except TidemillError as error:
        given = error.member_id if isinstance(error, MemberIdRequiredError) else request.member_id
        return {
            "error_code": code(error),
            "generation_id": -1,
            "protocol_type": None,
            # Nullable since v7; before, the empty string stands for "none".
            "protocol_name": None if version >= 7 else "",
            "leader": "",
            "skip_assignment": False,
            "member_id": given,
            "members": [],
        }
    return {
        "error_code": 0,
        "generation_id": result.generation,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol,
        "leader": result.leader,
        "skip_assignment": result.skip_assignment,
        "member_id": result.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "metadata": member.metadata,
            }
            for member in result.members
        ],
    }


@handles(14)
async def handle_sync_group(ctx: RequestContext, request: Any) -> Tree:
    """SyncGroup. From v5 on a member must say which protocol it thinks was chosen (KIP-559)."""
    protocol_type = field(request, "protocol_type", None)
    protocol_name = field(request, "protocol_name", None)
    try:
        if ctx.api_version >= 5 and (protocol_type is None or protocol_name is None):
            raise InconsistentGroupProtocolError(
                f"SyncGroup of {request.member_id!r} names no protocol type or no protocol"
            )
        result = await ctx.broker.sync_group(
            SyncRequest(
                group_id=request.group_id,
                generation=request.generation_id,
                member_id=request.member_id,
                instance_id=field(request, "group_instance_id", None),
                protocol_type=protocol_type,
                protocol=protocol_name,
                assignments=tuple((a.member_id, a.assignment) for a in request.assignments),
            )
        )
    except TidemillError as error:
        return {
            "error_code": code(error),
            "protocol_type": None,
            "protocol_name": None,
            "assignment": b"",
        }
    return {
        "error_code": 0,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol,
        "assignment": result.assignment,
    }


@handles(12)
async def handle_heartbeat(ctx: RequestContext, request: Any) -> Tree:
    """Heartbeat."""
    try:
        await ctx.broker.heartbeat(
            request.group_id,
            request.generation_id,
            request.member_id,
            field(request, "group_instance_id", None),
        )
    except TidemillError as error:
        return {"error_code": code(error)}
    return {"error_code": 0}


@handles(13)
async def handle_leave_group(ctx: RequestContext, request: Any) -> Tree:
    """LeaveGroup: one member before v3, several with an error each from then on (KIP-345)."""
    if ctx.api_version < 3:
        try:
            (left,) = await ctx.broker.leave_group(
                request.group_id, [LeaveMember(request.member_id)]
            )
        except TidemillError as error:
            left = error
        return {"error_code": code(left)}
    leaving = [
        LeaveMember(member.member_id, member.group_instance_id, field(member, "reason", None))
        for member in request.members
    ]
    outcomes: list[TidemillError | None]
    try:
        outcomes = await ctx.broker.leave_group(request.group_id, leaving)
    except UnknownMemberIdError as error:
        # Raised where there is no such group: then nobody in it is known either.
        outcomes = [error] * len(leaving)
    except TidemillError as error:
        return {"error_code": code(error), "members": []}
    return {
        "error_code": 0,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "error_code": code(left),
            }
            for member, left in zip(leaving, outcomes, strict=True)
        ],
    }


@handles(16)
def handle_list_groups(ctx: RequestContext, request: Any) -> Tree:
    """ListGroups, filtered by state (v4, KIP-518) and type (v5, KIP-848)."""
    try:
        groups = ctx.broker.list_groups(
            tuple(field(request, "states_filter", ())),
            tuple(field(request, "types_filter", ())),
        )
    except TidemillError as error:
        return {"error_code": code(error), "groups": []}
    return {
        "error_code": 0,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.group_type,
            }
            for group in groups
        ],
    }


@handles(15)
def handle_describe_groups(ctx: RequestContext, request: Any) -> Tree:
    """DescribeGroups. From v6 on an unknown group is an error (KIP-1043), before it is Dead."""
    wants_operations = field(request, "include_authorized_operations", False)
    groups = [_describe_group(ctx, group_id) for group_id in request.groups]
    if wants_operations:
        for group in groups:
            if group["error_code"] == 0:
                group["authorized_operations"] = GROUP_OPERATIONS
    return {"groups": groups}


def _describe_group(ctx: RequestContext, group_id: str) -> dict[str, Any]:
    try:
        group = ctx.broker.describe_group(group_id)
        if group.state == DEAD and ctx.api_version >= 6:
            raise GroupIdNotFoundError(f"Group {group_id} not found.")
    except TidemillError as error:
        return {
            "error_code": code(error),
            "error_message": error_message(error),
            "group_id": group_id,
            "group_state": DEAD if isinstance(error, GroupIdNotFoundError) else "",
            "protocol_type": "",
            "protocol_data": "",
            "members": [],
        }
    return {
        "error_code": 0,
        "error_message": None,
        "group_id": group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
    }


@handles(42)
async def handle_delete_groups(ctx: RequestContext, request: Any) -> Tree:
    """DeleteGroups. Every group named is answered, or librdkafka aborts its process."""
    return {
        "results": [
            {
                "group_id": group_id,
                "error_code": code(await outcome(ctx.broker.delete_group(group_id))),
            }
            for group_id in dict.fromkeys(request.groups_names)
        ]
    }
