"""Deadlines: order, moves in both directions, cancellation; compared with a sorted model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.state.timers import Timers


def test_due_keys_come_in_order_of_time() -> None:
    timers: Timers[str] = Timers()
    for key, deadline in (("b", 20), ("a", 10), ("c", 30)):
        timers.set(key, deadline)
    timers.set("a", 25)
    timers.set("c", 5)
    assert [timers.pop_due(25) for _ in range(4)] == ["c", "b", "a", None]
    assert timers.active() == []


def test_nothing_is_due_before_its_time() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 10)
    assert timers.pop_due(9) is None
    assert timers.pop_due(10) == "a"


actions = st.tuples(st.sampled_from(["set", "cancel", "pop"]), st.integers(0, 4), st.integers(0, 9))


@given(st.lists(actions, max_size=60))
def test_timers_behave_like_a_dict(steps: list[tuple[str, int, int]]) -> None:
    timers: Timers[int] = Timers()
    model: dict[int, int] = {}
    for action, key, time in steps:
        if action == "set":
            timers.set(key, time)
            model[key] = time
        elif action == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            due = timers.pop_due(time)
            if due is None:
                assert not any(deadline <= time for deadline in model.values())
            else:
                assert model.pop(due) <= min([time, *model.values()])
        assert timers.next_deadline() == min(model.values(), default=None)
        assert all(timers.get(each) == model.get(each) for each in range(5))
