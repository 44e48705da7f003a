"""The budget of request memory over all connections."""

from __future__ import annotations

from tidemill.net.budget import Budget, Hold


class FakeLink:
    """Knows only whether it may be read, and what has arrived."""

    def __init__(self) -> None:
        self.is_partial = True
        self.held = False
        self.received_bytes = self.queued_bytes = 0
        self.waits_for_broker = False
        self.closed: tuple[int, float] | None = None

    def hold(self, why: Hold) -> None:
        self.held = True

    def unhold(self, why: Hold) -> None:
        self.held = False

    def close_slow(self, held: int, rate: float) -> None:
        self.closed = held, rate


def links(count: int) -> list[FakeLink]:
    return [FakeLink() for _ in range(count)]


def test_below_the_limit_all_connections_are_read() -> None:
    budget = Budget(100)
    (a,) = links(1)
    budget.add(a, 100)
    assert not a.held


def test_over_the_limit_is_not_read_until_answers_made_space() -> None:
    budget = Budget(100)
    a, b = links(2)
    budget.add(a, 90)
    budget.add(b, 20)
    assert (a.held, b.held) == (False, True)
    budget.remove(5)
    assert b.held
    budget.remove(10)
    assert not b.held


def test_if_all_requests_are_partial_one_connection_at_a_time_is_read() -> None:
    budget = Budget(100)
    a, b, c = links(3)
    for link in (a, b, c):
        budget.count_partial(link, 60)
    assert (a.held, b.held, c.held) == (False, False, True)  # b is over the limit, and has the turn
    budget.count_partial(a, 70)
    assert a.held
    budget.count_partial(b, 110)
    assert not b.held  # it keeps its turn until its request is whole
    budget.count_partial(b, 0)
    budget.add(b, 110)
    assert (a.held, b.held, c.held) == (True, True, True)
    budget.remove(110)  # b's request is answered; a and c together are still over
    assert [a.held, b.held, c.held].count(False) == 1


def test_a_closed_connection_passes_its_turn_on() -> None:
    budget = Budget(100)
    a, b, c = links(3)
    for link in (a, b, c):
        budget.count_partial(link, 80)
    assert [a.held, b.held, c.held] == [False, False, True]
    budget.count_partial(b, 0)
    budget.forget(b)
    assert not c.held
    budget.count_partial(a, 0)
    budget.forget(a)
    assert budget.used == 80


def test_connection_between_two_requests_does_not_take_the_turn() -> None:
    budget = Budget(100)
    a, b, idle = links(3)
    budget.count_partial(a, 90)
    budget.add(idle, 20)
    assert idle.held
    idle.is_partial = False
    budget.count_partial(b, 40)
    budget.remove(20)  # its request is answered; only partial ones are left
    assert not idle.held
    assert not b.held


LIMIT = 8_000_000


def run(budget: Budget, seconds: float, *, rates: dict[FakeLink, int], start: float = 0.0) -> float:
    """Let clients send while memory is short, as the kernel and the broker would take it."""
    now = start
    while now < start + seconds:
        now += 0.1
        for link, rate in rates.items():
            if link.closed is None:
                link.queued_bytes += rate // 10
                if not link.held:
                    link.received_bytes += link.queued_bytes
                    link.queued_bytes = 0
        budget.relieve(now)
        for link in rates:
            if link.closed is not None:
                budget.count_partial(link, 0)
                budget.forget(link)
    return now


def test_clients_that_send_too_little_are_closed_while_others_wait_for_memory() -> None:
    budget = Budget(LIMIT)
    tricklers = links(10)
    for link in tricklers:
        budget.count_partial(link, 1_000_000)
    (neighbour,) = links(1)
    budget.count_partial(neighbour, 500_000)
    assert neighbour.held
    run(budget, 0.8, rates={**dict.fromkeys(tricklers, 10), neighbour: 10_000_000})
    closed = [link.closed for link in tricklers if link.closed is not None]
    assert 4 <= len(closed) <= 5  # until a quarter of the limit is free
    assert all(held == 1_000_000 and rate < 100 for held, rate in closed)
    assert not neighbour.held
    assert neighbour.closed is None


def test_a_slow_client_is_not_closed_while_there_is_memory() -> None:
    budget = Budget(LIMIT)
    slow, other = links(2)
    budget.count_partial(slow, 4_000_000)
    budget.count_partial(other, 4_000_000)
    run(budget, 60, rates={slow: 1, other: 1})
    assert slow.closed is other.closed is None


def test_the_slowest_goes_first_compared_with_what_it_holds() -> None:
    budget = Budget(LIMIT)
    small, slow, slower, fast, waiting = links(5)
    for link, size in ((small, 100), (slow, 3_000_000), (slower, 3_100_000), (fast, 2_900_000)):
        budget.count_partial(link, size)
    budget.count_partial(waiting, 10)
    waiting.queued_bytes = 100_000
    run(budget, 0.8, rates={small: 0, slow: 20_000, slower: 10, fast: 1_000_000, waiting: 0})
    assert slower.closed is not None
    assert small.closed is slow.closed is fast.closed is None


def test_a_client_is_not_blamed_for_what_the_broker_does_not_read() -> None:
    budget = Budget(LIMIT)
    full, ended, working, hog = links(4)
    for link in (full, ended, working, hog):
        budget.count_partial(link, 2_500_000)
    budget.count_partial(hog, 2_600_000)  # it has the turn
    for link in (ended, full):
        budget.count_partial(link, 2_600_000)
        assert link.held
    full.queued_bytes = 400_000  # it waits for the broker
    ended.queued_bytes = 500  # the rest of its request has arrived
    working.waits_for_broker = True
    budget.relieve(0.0)
    assert not ended.held
    ended.received_bytes, ended.queued_bytes = 500, 0
    budget.count_partial(ended, 0)
    budget.add(ended, 2_600_000)
    run(budget, 1.0, rates={hog: 0, full: 1_000_000, working: 0})
    assert hog.closed is not None
    assert full.closed is working.closed is ended.closed is None


def test_a_small_part_in_each_look_does_not_count_as_progress() -> None:
    budget = Budget(LIMIT)
    a, b = links(2)
    size = 4_500_000
    for link in (a, b):
        budget.count_partial(link, size)
    (waiting,) = links(1)
    budget.count_partial(waiting, 10)
    waiting.queued_bytes = 100_000
    now = 0.0
    while b.closed is None and a.closed is None:
        now = run(budget, 0.1, rates={a: 100, b: 100}, start=now)
        for link in (a, b):
            if link.closed is None:
                budget.count_partial(link, size + link.received_bytes)
        assert now < 2


def test_one_client_can_hold_the_turn_for_five_seconds() -> None:
    budget = Budget(LIMIT)
    hog, other, next_one = links(3)
    budget.count_partial(other, 4_000_000)
    budget.count_partial(hog, 4_500_000)
    budget.count_partial(next_one, 100_000)
    rates = {hog: 100_000, other: 100_000, next_one: 100_000}
    other.queued_bytes = next_one.queued_bytes = 1_000_000
    now = run(budget, 4.5, rates=rates)
    assert hog.closed is None
    run(budget, 1, rates=rates, start=now)
    assert hog.closed is not None
    assert other.closed is next_one.closed is None


def test_a_request_that_waits_for_long_does_not_stop_those_in_part() -> None:
    budget = Budget(LIMIT)
    parked, a, b = links(3)
    budget.add(parked, 700)
    for link in (a, b):
        budget.count_partial(link, 4_500_000)
    assert [a.held, b.held].count(False) >= 1
