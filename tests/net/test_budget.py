"""The budget of request memory over all connections."""

from __future__ import annotations

from tidemill.net.budget import Budget, Hold


class FakeLink:
    """Knows only whether it may be read."""

    def __init__(self) -> None:
        self.is_partial = True
        self.held = False

    def hold(self, why: Hold) -> None:
        self.held = True

    def unhold(self, why: Hold) -> None:
        self.held = False


def links(count: int) -> list[FakeLink]:
    return [FakeLink() for _ in range(count)]


def test_below_the_limit_all_connections_are_read() -> None:
    budget = Budget(100)
    (a,) = links(1)
    budget.add(a, 100, whole=True)
    assert not a.held


def test_over_the_limit_is_not_read_until_answers_made_space() -> None:
    budget = Budget(100)
    a, b = links(2)
    budget.add(a, 90, whole=True)
    budget.add(b, 20, whole=True)
    assert (a.held, b.held) == (False, True)
    budget.remove(5, whole=True)
    assert b.held
    budget.remove(10, whole=True)
    assert not b.held


def test_if_all_requests_are_partial_one_connection_at_a_time_is_read() -> None:
    budget = Budget(100)
    a, b, c = links(3)
    for link in (a, b, c):
        budget.add(link, 60, whole=False)
    assert (a.held, b.held, c.held) == (False, False, True)  # b is over the limit, and has the turn
    budget.add(a, 10, whole=False)
    assert a.held
    budget.add(b, 50, whole=False)
    assert not b.held  # it keeps its turn until its request is whole
    budget.remove(110, whole=False)
    budget.add(b, 110, whole=True)
    assert (a.held, b.held, c.held) == (True, True, True)
    budget.remove(110, whole=True)  # b's request is answered; a and c together are still over
    assert [a.held, b.held, c.held].count(False) == 1


def test_a_closed_connection_passes_its_turn_on() -> None:
    budget = Budget(100)
    a, b, c = links(3)
    for link in (a, b, c):
        budget.add(link, 80, whole=False)
    assert [a.held, b.held, c.held] == [False, False, True]
    budget.remove(80, whole=False)
    budget.forget(b)
    assert not c.held
    budget.remove(80, whole=False)
    budget.forget(a)
    assert budget.used == 80


def test_connection_between_two_requests_does_not_take_the_turn() -> None:
    budget = Budget(100)
    a, b, idle = links(3)
    budget.add(a, 90, whole=False)
    budget.add(idle, 20, whole=True)
    assert idle.held
    idle.is_partial = False
    budget.add(b, 40, whole=False)
    budget.remove(20, whole=True)  # its request is answered; only partial ones are left
    assert not idle.held
    assert not b.held
