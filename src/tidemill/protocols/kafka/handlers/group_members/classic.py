"""Consumer groups with the classic protocol: join, sync, heartbeat, leave, list, describe, delete.

Translates only: the group state machine decides what a member can do. Knows which field exists in
which version, and nothing of group states but their names.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tidemill.engine.api import JoinRequest, LeaveMember, SyncRequest
from tidemill.engine.authorize import GROUP
from tidemill.errors import TidemillError
from tidemill.protocols.kafka.apis import Each, RequestContext, Tree, field, handles, outcome
from tidemill.protocols.kafka.error_codes import error_code, error_fields
from tidemill.protocols.kafka.operations import allowed_operations
from tidemill.state.errors import (
    GroupIdNotFoundError,
    InconsistentGroupProtocolError,
    MemberIdRequiredError,
    UnknownMemberIdError,
)

code = partial(error_code, group=True)

DEAD = "Dead"
"""State of a group that does not exist."""


def _refused(error: TidemillError) -> Tree:
    return {"error_code": code(error)}


@handles(11)
async def handle_join_group(ctx: RequestContext, request: Any) -> Tree:
    """Answer JoinGroup (KIP-62, KIP-345, KIP-394, KIP-800, KIP-814)."""
    version = ctx.api_version
    session_timeout_ms = request.session_timeout
    join = JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=field(request, "group_instance_id", None),
        client_id=ctx.client_id or "",
        client_host=ctx.client_host,
        session_timeout_ms=session_timeout_ms,
        # v0 has one timeout for both.
        rebalance_timeout_ms=request.rebalance_timeout if version >= 1 else session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        require_known_member_id=version >= 4,
        reason=field(request, "reason", None),
        supports_skipping_assignment=version >= 9,
    )
    try:
        result = await ctx.door.groups.join(join)
    except TidemillError as error:
        given = error.member_id if isinstance(error, MemberIdRequiredError) else request.member_id
        return {"error_code": code(error), "member_id": given}
    return {
        "generation_id": result.generation,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol,
        "leader": result.leader,
        "skip_assignment": result.skip_assignment,
        "member_id": result.member_id,
        "members": Each(
            lambda member: {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "metadata": member.metadata,
            },
            result.members,
        ),
    }


@handles(14, refused=_refused)
async def handle_sync_group(ctx: RequestContext, request: Any) -> Tree:
    """Answer SyncGroup. From v5 on the member names the protocol that it expects (KIP-559)."""
    protocol_type = field(request, "protocol_type", None)
    protocol_name = field(request, "protocol_name", None)
    if ctx.api_version >= 5 and (protocol_type is None or protocol_name is None):
        raise InconsistentGroupProtocolError(
            f"SyncGroup of {request.member_id!r} lacks the protocol type or the protocol name"
        )
    result = await ctx.door.groups.sync(
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
    return {
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol,
        "assignment": result.assignment,
    }


@handles(12)
async def handle_heartbeat(ctx: RequestContext, request: Any) -> Tree:
    """Keep a member's session alive."""
    error = await outcome(
        ctx.door.groups.heartbeat(
            request.group_id,
            request.generation_id,
            request.member_id,
            field(request, "group_instance_id", None),
        )
    )
    return {"error_code": code(error)}


@handles(13, refused=_refused)
async def handle_leave_group(ctx: RequestContext, request: Any) -> Tree:
    """Remove members: one before v3, several with an error for each from v3 on (KIP-345)."""
    if ctx.api_version < 3:
        (left,) = await ctx.door.groups.leave(request.group_id, [LeaveMember(request.member_id)])
        return {"error_code": code(left)}
    leaving = await ctx.turns.collect(
        LeaveMember(member.member_id, member.group_instance_id, field(member, "reason", None))
        for member in request.members
    )
    outcomes: list[TidemillError | None]
    try:
        outcomes = await ctx.turns.in_parts(
            lambda part: ctx.door.groups.leave(request.group_id, part), leaving
        )
    except UnknownMemberIdError as error:
        # The group does not exist, so none of the members is known either.
        outcomes = [error] * len(leaving)
    return {"members": Each(_left, list(zip(leaving, outcomes, strict=True)))}


def _left(outcome: tuple[LeaveMember, TidemillError | None]) -> Tree:
    member, error = outcome
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "error_code": code(error),
    }


@handles(16, refused=_refused)
async def handle_list_groups(ctx: RequestContext, request: Any) -> Tree:
    """Answer with groups by state (from v4 on, KIP-518) and type (from v5 on, KIP-848)."""
    groups = await ctx.turns.collect(
        ctx.door.groups.listings(
            field(request, "states_filter", ()), field(request, "types_filter", ())
        )
    )
    return {
        "groups": Each(
            lambda group: {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.group_type,
            },
            groups,
        ),
    }


@handles(15)
def handle_describe_groups(ctx: RequestContext, request: Any) -> Tree:
    """Answer DescribeGroups. An unknown group is Dead up to v5, an error from v6 on (KIP-1043)."""
    wants_operations = field(request, "include_authorized_operations", False)
    return {"groups": Each(partial(_describe_group, ctx, wants_operations), request.groups)}


def _describe_group(ctx: RequestContext, wants_operations: bool, group_id: str) -> Tree:
    try:
        group = ctx.door.groups.describe(group_id)
        if group.state == DEAD and ctx.api_version >= 6:
            raise GroupIdNotFoundError(f"Group {group_id} not found.")
    except TidemillError as error:
        return {
            **error_fields(error, group=True),
            "group_id": group_id,
            "group_state": DEAD if isinstance(error, GroupIdNotFoundError) else "",
        }
    return {
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
        "authorized_operations": allowed_operations(
            wants_operations, ctx.door.access, GROUP, group_id
        ),
    }


@handles(42)
async def handle_delete_groups(ctx: RequestContext, request: Any) -> Tree:
    """Delete groups. Each named group needs an answer, or librdkafka aborts its process."""

    async def delete(group_id: str) -> Tree:
        error = await outcome(ctx.door.groups.delete(group_id))
        return {"group_id": group_id, "error_code": code(error)}

    return {"results": await ctx.turns.each(delete, dict.fromkeys(request.groups_names))}
