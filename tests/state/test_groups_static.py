"""Static members (KIP-345, KIP-814): a restart within the session costs no rebalance."""

from __future__ import annotations

import pytest

from tests.state.harness import Desk, subscription
from tidemill.errors import FencedInstanceIdError, UnknownMemberIdError
from tidemill.state.types import LeaveMember, OffsetToCommit


def test_restarted_member_takes_its_place_without_a_rebalance() -> None:
    desk = Desk()
    _, old = desk.stable(2, instances=["a", "b"])
    generation = desk.generation
    result = desk.joined(desk.join(instance_id="b"))
    assert (result.generation, result.skip_assignment) == (generation, False)
    assert result.member_id != old
    assert desk.state == "Stable"
    ticket = desk.sync(result.member_id, generation, instance_id="b")
    assert desk.synced(ticket).assignment == old.encode()


def test_old_id_of_a_restarted_member_is_fenced_everywhere() -> None:
    desk = Desk()
    _, old = desk.stable(2, instances=["a", "b"])
    generation = desk.generation
    desk.join(instance_id="b")
    with pytest.raises(FencedInstanceIdError):
        desk.heartbeat(old, generation, "b")
    with pytest.raises(FencedInstanceIdError):
        desk.commit(old, generation, OffsetToCommit("t", 0, 1), instance_id="b")
    assert isinstance(desk.error(desk.join(old, instance_id="b")), FencedInstanceIdError)
    assert isinstance(
        desk.error(desk.sync(old, generation, instance_id="b")), FencedInstanceIdError
    )
    assert isinstance(desk.leave(LeaveMember(old, "b"))[0], FencedInstanceIdError)
    with pytest.raises(UnknownMemberIdError):
        desk.heartbeat(old, generation)


def test_restarted_leader_of_an_old_client_is_told_that_the_old_one_leads() -> None:
    desk = Desk()
    old, _ = desk.stable(2, instances=["a", "b"])
    result = desk.joined(desk.join(instance_id="a"))
    assert (result.leader, result.members) == (old, ())
    assert result.member_id != old


def test_restarted_leader_of_a_new_client_skips_the_assignment() -> None:
    desk = Desk()
    desk.stable(2, instances=["a", "b"])
    result = desk.joined(desk.join(instance_id="a", supports_skipping_assignment=True))
    assert result.leader == result.member_id
    assert result.skip_assignment
    assert {m.instance_id for m in result.members} == {"a", "b"}


def test_restarted_follower_of_a_new_client_skips_nothing() -> None:
    desk = Desk()
    leader, _ = desk.stable(2, instances=["a", "b"])
    result = desk.joined(desk.join(instance_id="b", supports_skipping_assignment=True))
    assert (result.leader, result.skip_assignment, result.members) == (leader, False, ())


def test_user_data_alone_does_not_count_as_another_subscription() -> None:
    desk = Desk()
    desk.stable(2, instances=["a", "b"])
    changed = (("range", subscription("t", user_data=b"owned")),)
    assert desk.joined(desk.join(instance_id="b", protocols=changed)).generation == desk.generation
    assert desk.state == "Stable"


def test_another_subscription_rebalances() -> None:
    desk = Desk()
    desk.stable(2, instances=["a", "b"])
    desk.join(instance_id="b", topics=("t", "u"))
    assert desk.state == "PreparingRebalance"


def test_restart_while_assignments_are_awaited_rebalances_and_fences_the_waiting() -> None:
    desk = Desk()
    a, b = desk.stable(2, instances=["a", "b"])
    desk.join(a, instance_id="a")
    desk.join(b, instance_id="b")
    waiting = desk.sync(b, desk.generation, instance_id="b")
    desk.join(instance_id="b")
    assert isinstance(desk.error(waiting), FencedInstanceIdError)
    assert desk.state == "PreparingRebalance"


def test_restart_while_joins_are_awaited_fences_the_older_join() -> None:
    desk = Desk()
    a, b = desk.stable(2, instances=["a", "b"])
    older = desk.join(b, instance_id="b", topics=("t", "u"))
    newer = desk.join(instance_id="b")
    assert isinstance(desk.error(older), FencedInstanceIdError)
    desk.join(a, instance_id="a")
    assert desk.joined(newer).generation == desk.generation


def test_static_member_that_does_not_rejoin_keeps_its_place_until_its_session_ends() -> None:
    desk = Desk()
    _, b = desk.stable(2, instances=["a", "b"], session_timeout_ms=300_000)
    ticket = desk.join(instance_id="c", session_timeout_ms=300_000)
    again = desk.join(b, instance_id="b", session_timeout_ms=300_000)
    desk.advance(60_000)
    members = desk.joined(again).members or desk.joined(ticket).members
    assert {m.instance_id for m in members} == {"a", "b", "c"}


def test_group_of_absent_static_members_waits_for_their_sessions() -> None:
    desk = Desk()
    desk.stable(1, instances=["a"], session_timeout_ms=100_000)
    ticket = desk.join()  # makes it rebalance, then gives up
    newcomer = desk.groups.describe("g").members[-1].member_id
    desk.leave(LeaveMember(newcomer))
    assert isinstance(desk.error(ticket), UnknownMemberIdError)
    desk.advance(60_000)
    assert desk.state == "PreparingRebalance"
    desk.advance(40_000)
    assert desk.state == "Empty"


def test_admin_removes_static_members_by_instance_id() -> None:
    desk = Desk()
    desk.stable(2, instances=["a", "b"])
    assert desk.leave(LeaveMember("", "b")) == [None]
    assert isinstance(desk.leave(LeaveMember("", "zzz"))[0], UnknownMemberIdError)
    assert len(desk.groups.describe("g").members) == 1


def test_replaced_static_member_survives_a_restart_of_the_broker() -> None:
    desk = Desk()
    desk.stable(2, instances=["a", "b"])
    new = desk.joined(desk.join(instance_id="b")).member_id
    desk = desk.restart()
    desk.heartbeat(new, desk.generation, "b")


def test_full_group_takes_a_restarted_static_member() -> None:
    desk = Desk(max_size=2)
    desk.stable(2, instances=["a", "b"])
    assert desk.joined(desk.join(instance_id="a")).generation == desk.generation
