"""The log lines of groups: one for each event, bounded whatever a client sends."""

from __future__ import annotations

import asyncio

from tests.engine.groups.test_coordinator import Bench
from tests.support.logged import logged
from tidemill.engine.api import JoinRequest, LeaveMember
from tidemill.engine.groups.group_log import MOST_CHARACTERS, log_events
from tidemill.state.groups.events import GroupChange, GroupEvent, MemberChange, MemberEvent


def test_each_change_has_its_own_event() -> None:
    with logged() as logs:
        log_events(MemberEvent(what, "g", "m", None, "c", "h", "") for what in MemberChange)
        log_events(GroupEvent(what, "g", 1, 2, "") for what in GroupChange)
    assert [line["event"] for line in logs] == [
        *("member.joined", "member.left", "member.removed", "member.replaced"),
        *("group.rebalancing", "group.stable", "group.empty"),
    ]
    assert {line["log_level"] for line in logs} == {"info"}
    assert logs[0] == {
        "event": "member.joined",
        "log_level": "info",
        "group": "g",
        "member": "m",
        "client": "c",
        "host": "h",
    }


def test_long_ids_and_reasons_are_cut() -> None:
    long = "x" * 30_000
    with logged() as logs:
        log_events([MemberEvent(MemberChange.JOINED, long, long, long, long, "h", long)])
        log_events([GroupEvent(GroupChange.REBALANCING, long, 1, 2, long)])
    for line in logs:
        assert all(len(str(value)) <= MOST_CHARACTERS + 1 for value in line.values())


async def test_the_coordinator_logs_who_joined_and_who_left_and_why() -> None:
    bench = Bench()
    request = JoinRequest(
        *("g", "", None, "app", "10.0.0.1", 10_000, 60_000, "consumer", (("range", b""),)),
        require_known_member_id=False,
    )
    with logged() as logs:
        joining = asyncio.ensure_future(bench.groups.join(request))
        await asyncio.sleep(0)
        (member,) = bench.groups.machine.describe("g").members
        leaving = bench.groups.leave("g", [LeaveMember(member.member_id, None, "closed")])
        left = asyncio.ensure_future(leaving)
        await asyncio.sleep(0)
    joining.cancel()
    left.cancel()
    joined, rebalancing, gone, *_ = logs
    assert (joined["event"], joined["client"], joined["host"]) == (
        *("member.joined", "app", "10.0.0.1"),
    )
    assert rebalancing["reason"] == f"member {member.member_id} joined"
    assert (gone["event"], gone["member"], gone["reason"]) == (
        *("member.left", member.member_id, "closed"),
    )
