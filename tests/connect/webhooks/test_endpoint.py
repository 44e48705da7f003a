"""What is sent to an endpoint, in which order and when: against a model of a few lines."""

from __future__ import annotations

import datetime
import email.utils
import tracemalloc
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.effort import examples
from tidemill.clock import ManualClock
from tidemill.connect.webhooks.attempts import Restored, encode_attempt
from tidemill.connect.webhooks.definition import Webhook, parse
from tidemill.connect.webhooks.endpoint import MAX_BYTES, Endpoint
from tidemill.connect.webhooks.lanes import Delivery, Event
from tidemill.connect.webhooks.limits import Breaker, Rate
from tidemill.connect.webhooks.marks import Marks, Offsets
from tidemill.connect.webhooks.retries import STANDARD_S, Verdict, judge, pause_ms, retry_after_ms
from tidemill.connect.webhooks.sender import Answer

NOW = 1_700_000_000_000
DAY = 86_400_000


def event(offset: int, key: str | None = None, due_ms: int = 0) -> Event:
    return Event(0, offset, NOW, key.encode() if key else None, b"{}", due_ms=due_ms)


def webhook(**more: object) -> Webhook:
    return parse({"name": "a", "topic": "t", "url": "https://a", "signed": False, **more})


def endpoint(**more: object) -> Endpoint:
    return Endpoint(webhook(**more), lambda: 0.0)


def drain(it: Endpoint, now: int) -> list[Delivery]:
    found = []
    while (each := it.next(now)) is not None:
        found.append(each)
    return found


# --- the model -----------------------------------------------------------------------------------


class DeliveryMachine(RuleBasedStateMachine):
    """Adds events, answers deliveries at random, and compares with sets and lists."""

    ORDERED, BATCH, CONCURRENCY = True, 1, 3

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(NOW)
        definition = webhook(
            order="key" if self.ORDERED else "none",
            batch=self.BATCH,
            concurrency=self.CONCURRENCY,
            retries_s=[1.0, 10.0],
            disable_after_s=365 * DAY / 1000,
        )
        self.it = Endpoint(definition, lambda: 0.5)
        self.marks = Marks(0, 0)
        self.flying: list[Delivery] = []
        self.added: list[Event] = []
        self.settled: list[int] = []
        self.sent: dict[bytes | None, list[int]] = defaultdict(list)

    @rule(key=st.sampled_from(["a", "b", None]))
    def add(self, key: str | None) -> None:
        made = event(len(self.added), key)
        self.added.append(made)
        self.marks.begin(made.offset, len(self.settled))
        self.it.add(made)

    @rule()
    def start(self) -> None:
        found = self.it.next(self.clock.now_ms())
        if found is not None:
            assert found.due_ms <= self.clock.now_ms()
            self.flying.append(found)
            for each in found.events:
                if each.offset not in self.sent[each.key]:
                    self.sent[each.key].append(each.offset)

    @rule(ms=st.sampled_from([1, 500, 2000, 70_000]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    @precondition(lambda self: self.flying)
    @rule(verdict=st.sampled_from(list(Verdict)[:4]), pick=st.integers(0, 9), wait=st.booleans())
    def answer(self, verdict: Verdict, pick: int, wait: bool) -> None:
        delivery = self.flying.pop(pick % len(self.flying))
        asked = 5000 if wait and verdict is not Verdict.DELIVERED else None
        decision = self.it.done(delivery, verdict, self.clock.now_ms(), asked)
        if decision.outcome in ("delivered", "dead"):
            for each in delivery.events:
                self.settled.append(each.offset)
                self.marks.finish(each.offset)
        else:
            assert decision.due_ms is not None
            assert decision.due_ms >= self.clock.now_ms()

    @invariant()
    def limits_hold(self) -> None:
        assert self.it.in_flight == len(self.flying) <= self.CONCURRENCY
        lanes = [each.lane for each in self.flying if each.lane is not None]
        assert len(set(lanes)) == len(lanes)  # a key has one request at a time
        assert len(self.settled) == len(set(self.settled))
        assert self.it.lanes.count == len(self.added) - len(self.settled)

    @invariant()
    def the_committed_offset_is_below_everything_unfinished(self) -> None:
        unfinished = {each.offset for each in self.added} - set(self.settled)
        low, floor = self.marks.low_water(len(self.settled))
        assert low == min(unfinished, default=len(self.added))
        assert floor <= len(self.settled)
        assert self.marks.unfinished == len(unfinished)

    def teardown(self) -> None:
        """With an endpoint that works, everything ends, each key in order."""
        for _ in range(10 * len(self.added) + 100):
            for delivery in self.flying:
                self.it.done(delivery, Verdict.DELIVERED, self.clock.now_ms())
                self.settled += [each.offset for each in delivery.events]
            self.flying = drain(self.it, self.clock.now_ms())
            for delivery in self.flying:
                for each in delivery.events:
                    if each.offset not in self.sent[each.key]:
                        self.sent[each.key].append(each.offset)
            wake = self.it.wake_ms(self.clock.now_ms())
            if not self.flying:
                if wake is None:
                    break
                self.clock.advance(max(wake - self.clock.now_ms(), 1))
        assert sorted(self.settled) == [each.offset for each in self.added]
        for key in (b"a", b"b"):
            if self.ORDERED:
                assert self.sent[key] == sorted(self.sent[key])


class BatchMachine(DeliveryMachine):
    BATCH = 3


class UnorderedMachine(DeliveryMachine):
    ORDERED, BATCH, CONCURRENCY = False, 2, 1


TestDelivery = DeliveryMachine.TestCase
TestBatches = BatchMachine.TestCase
TestUnordered = UnorderedMachine.TestCase
for _case in (TestDelivery, TestBatches, TestUnordered):
    _case.settings = settings(max_examples=examples(25), stateful_step_count=40, deadline=None)
del _case


# --- marks ---------------------------------------------------------------------------------------


def test_a_record_that_fails_for_days_costs_no_memory_for_those_finished_behind_it() -> None:
    marks, restored = Marks(0, 0), Restored()
    marks.begin(0, 0)
    tracemalloc.start()
    try:
        for offset in range(1, 100_000):
            marks.begin(offset, offset)
            marks.finish(offset)
        for offset in range(1, 10_000):  # what a new worker reads then
            value = encode_attempt([event(offset)], "id", 1, NOW, Answer(200), "delivered")
            restored.apply(value)
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()
    assert marks.low_water(7) == (0, 0)
    assert (0 in restored.done[0], 1 in restored.done[0], 9999 in restored.done[0]) == (
        *(False, True, True),
    )
    marks.finish(0)
    assert marks.low_water(7) == (100_000, 7)


@given(st.lists(st.integers(0, 12)), st.lists(st.integers(0, 12)))
def test_offsets_are_a_set(added: list[int], more: list[int]) -> None:
    found = Offsets()
    for offset in added + more:
        found.add(offset)
    assert list(found) == sorted({*added, *more})
    assert [each for each in range(-1, 14) if each in found] == list(found)


@pytest.mark.parametrize("place", ["[-1, 0]", "[0, -1]", "[0, 1e300]", "[0, 9223372036854775807]"])
def test_an_absurd_place_in_the_topic_of_attempts_is_left_out(place: str) -> None:
    restored = Restored()
    restored.apply(b'{"outcome":"delivered","attempt":1,"records":[%b]}' % place.encode())
    assert (restored.done, restored.highest) == ({}, {})


# --- lanes ---------------------------------------------------------------------------------------


def test_a_failing_key_holds_only_what_is_behind_it() -> None:
    it = endpoint()
    for offset in range(20):
        it.add(event(offset, "bad" if offset % 2 else f"good{offset}"))
    bad = next(each for each in drain(it, NOW) if each.lane == b"bad")
    it.done(bad, Verdict.FAILED, NOW)
    assert it.lanes.blocked(5) == [(b"bad", 9)]
    assert it.in_flight == 10
    assert drain(it, NOW) == []  # the bad key waits for its retry
    (again,) = drain(it, NOW + 5000)
    assert (again, again.attempts, again.events[0].offset) == (bad, 1, 1)


def test_events_without_a_key_have_no_order() -> None:
    it = endpoint()
    for offset in range(3):
        it.add(event(offset))
    assert [each.lane for each in drain(it, NOW)] == [None] * 3


def test_the_lane_with_most_behind_it_can_be_removed() -> None:
    it = endpoint()
    for offset, key in enumerate(["a", "b", "b", "c"]):
        it.add(event(offset, key))
    flying = drain(it, NOW)
    assert it.lanes.evict() is None  # all are in flight, and none failed
    for each in flying:
        it.done(each, Verdict.FAILED, NOW)
    removed = it.lanes.evict()
    assert removed is not None
    assert [each.offset for each in removed.events] == [1, 2]
    assert (it.lanes.count, it.lanes.retrying) == (2, 2)
    assert sorted(each.lane or b"" for each in drain(it, NOW + 10_000)) == [b"a", b"c"]
    it.add(event(9, "b"))  # its key works again
    assert [each.events[0].offset for each in drain(it, NOW + 10_000)] == [9]


def test_a_batch_has_a_bound_in_bytes() -> None:
    it = endpoint(batch=1000)
    for offset in range(10):
        it.add(Event(0, offset, NOW, b"k", b"x" * (2 << 20 if offset == 0 else 300_000)))
    sizes = []
    while (found := it.next(NOW)) is not None:
        sizes.append(len(found.events))
        it.done(found, Verdict.DELIVERED, NOW)
    assert sizes == [1, 3, 3, 3]


@pytest.mark.parametrize("order", ["key", "none"])
def test_a_batch_has_records_of_one_redelivery_or_of_none(order: str) -> None:
    it = endpoint(batch=10, order=order)
    jobs = ["", "", "a", "a", "", "b", "a"]
    for offset, job in enumerate(jobs):
        it.add(Event(0, offset, NOW, None, b"{}", job=job))
    found = [[each.job for each in delivery.events] for delivery in drain(it, NOW)]
    assert found == [["", ""], ["a", "a"], [""], ["b"], ["a"]]


def test_an_attempt_that_an_earlier_process_planned_keeps_its_time() -> None:
    it = endpoint()
    it.add(event(0, "a", due_ms=NOW + 900))
    it.add(event(1, "a"))
    assert drain(it, NOW) == []
    assert it.wake_ms(NOW) == NOW + 900
    assert [each.events[0].offset for each in drain(it, NOW + 900)] == [0]


# --- verdicts, schedule, Retry-After -------------------------------------------------------------


VERDICTS: dict[str, list[int | None]] = {
    "DELIVERED": [200, 202, 299],
    "FAILED": [None, 100, 301, 307, 400, 404, 500, 503, 999],
    "THROTTLED": [429],
    "OVERLOADED": [502, 504],
    "GONE": [410],
}


@pytest.mark.parametrize(
    ("status", "verdict"), [(each, name) for name, found in VERDICTS.items() for each in found]
)
def test_a_status_has_the_meaning_of_standard_webhooks(status: int | None, verdict: str) -> None:
    assert judge(status) is Verdict[verdict]


def test_503_with_retry_after_throttles() -> None:
    assert judge(503, asks_to_wait=True) is Verdict.THROTTLED


def test_the_schedule_ends_with_a_dead_letter() -> None:
    it = endpoint()
    it.add(event(0))
    now, outcomes = NOW, []
    for _ in range(20):
        found = it.next(now)
        if found is None:
            wake = it.wake_ms(now)
            if wake is None:
                break
            now = wake
            continue
        outcomes.append(it.done(found, Verdict.FAILED, now).outcome)
    assert outcomes == ["retry"] * 9 + ["dead"]
    assert 74 * 3600 < (now - NOW) / 1000 < 76 * 3600
    assert it.lanes.count == 0


def test_a_pause_has_jitter() -> None:
    assert pause_ms(STANDARD_S, 1, 0.0) == 5000
    assert pause_ms(STANDARD_S, 1, 1.0) == 6000
    assert pause_ms((), 1, 0.0) is None


def date(after_s: float) -> str:
    when = datetime.datetime.fromtimestamp(NOW / 1000 + after_s, datetime.UTC)
    return email.utils.format_datetime(when, usegmt=True)


HOUR = 3_600_000
INVALID = ["", "-1", "1.5", "soon", "٣", "9" * 5000, "Mon, 99 Foo 2026", None]


@pytest.mark.parametrize(
    ("header", "ms"),
    [
        ("120", 120_000),
        (" 0 ", 0),
        (date(60), 60_000),
        (date(-60), 0),
        ("99999999999", HOUR),
        ("Fri, 31 Dec 9999 23:59:59 GMT", HOUR),
        *((each, None) for each in INVALID),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_is_capped(header: str | None, ms: int | None) -> None:
    assert retry_after_ms(header, NOW, 3_600_000) == ms


@given(st.text(max_size=70))
def test_no_retry_after_header_raises(text: str) -> None:
    found = retry_after_ms(text, NOW, 1000)
    assert found is None or 0 <= found <= 1000


def test_retry_after_makes_a_pause_longer_and_never_shorter() -> None:
    for asked, due in ((77_000, 77_000), (0, 5000)):
        it = endpoint()
        it.add(event(0))
        (found,) = drain(it, NOW)
        assert it.done(found, Verdict.FAILED, NOW, asked).due_ms == NOW + due


def test_an_endpoint_that_throttles_for_long_uses_up_no_attempt() -> None:
    it = endpoint(retries_s=[1.0])
    it.add(event(0))
    now = NOW
    for asked in [None, 1000, 0] * 50:
        (found,) = drain(it, now)
        due = it.done(found, Verdict.THROTTLED, now, asked).due_ms
        assert due is not None
        assert now + 1000 <= due <= now + 60_000
        now = due
    assert found.attempts == 150
    (found,) = drain(it, now)
    assert it.done(found, Verdict.OVERLOADED, now).outcome == "retry"
    (found,) = drain(it, now + 70_000)
    assert it.done(found, Verdict.OVERLOADED, now + 70_000).outcome == "dead"


# --- disabling -----------------------------------------------------------------------------------


def test_410_disables_and_the_event_stays() -> None:
    it = endpoint()
    it.add(event(0))
    (found,) = drain(it, NOW)
    decision = it.done(found, Verdict.GONE, NOW)
    assert (decision.outcome, decision.disables) == ("gone", "the endpoint answered 410 Gone")
    assert it.next(NOW + DAY) is None
    assert it.lanes.count == 1


def test_five_days_without_a_success_disable() -> None:
    it = endpoint()
    for offset in range(3):
        it.add(event(offset))
    first, second, third = drain(it, NOW)
    assert it.done(first, Verdict.FAILED, NOW).disables == ""
    assert it.done(second, Verdict.FAILED, NOW + 5 * DAY - 1).disables == ""
    assert "5 days" in it.done(third, Verdict.FAILED, NOW + 5 * DAY).disables


def test_a_success_starts_the_five_days_again() -> None:
    it = endpoint()
    for offset in range(3):
        it.add(event(offset))
    first, second, third = drain(it, NOW)
    it.done(first, Verdict.FAILED, NOW)
    it.done(second, Verdict.DELIVERED, NOW + 4 * DAY)
    assert it.done(third, Verdict.FAILED, NOW + 6 * DAY).disables == ""
    assert it.failing_since_ms == NOW + 6 * DAY


# --- limits --------------------------------------------------------------------------------------


def test_the_breaker_opens_probes_and_closes() -> None:
    it = endpoint(concurrency=5, retries_s=[3600.0] * 9)
    for offset in range(20):
        it.add(event(offset))
    for each in drain(it, NOW):
        it.done(each, Verdict.FAILED, NOW)
    assert it.breaker.state == "open"
    assert it.next(NOW) is None
    assert it.wake_ms(NOW) == NOW + 1000
    probe = drain(it, NOW + 1000)
    assert len(probe) == 1
    it.done(probe[0], Verdict.FAILED, NOW + 1000)
    assert it.wake_ms(NOW + 1000) == NOW + 3000  # twice as long
    (probe2,) = drain(it, NOW + 3000)
    it.done(probe2, Verdict.DELIVERED, NOW + 3000)
    assert len(drain(it, NOW + 3000)) == 5
    assert it.lanes.first_retry_ms is not None
    assert it.lanes.first_retry_ms <= NOW + 3000 + 5000  # an hour's pause is cut short


def test_a_throttled_endpoint_is_left_alone_for_as_long_as_it_asks() -> None:
    it = endpoint(concurrency=1)
    it.add(event(0))
    it.add(event(1))
    (found,) = drain(it, NOW)
    it.done(found, Verdict.THROTTLED, NOW, 30_000)
    assert it.next(NOW + 29_999) is None
    assert it.next(NOW + 30_000) is not None


def test_a_late_failure_does_not_prolong_an_open_breaker() -> None:
    breaker = Breaker()
    for _ in range(5):
        breaker.failed(NOW, 0.0)
    until = breaker.open_until_ms
    breaker.failed(NOW + 900, 0.0)
    assert breaker.open_until_ms == until


@pytest.mark.parametrize("per_s", [0.5, 1.0, 7.0, 100.0, 5000.0])
def test_a_rate_holds_over_time(per_s: float) -> None:
    rate, now, taken = Rate(per_s), NOW, 0
    while now < NOW + 10_000:
        wait = rate.wait_ms(now)
        if wait == 0:
            rate.take(now)
            taken += 1
        now += wait
    burst = per_s / 10
    assert 10 * per_s - 1 <= taken <= 10 * per_s + burst + per_s / 100 + 2


def test_reading_stops_at_the_bounds() -> None:
    it = endpoint(max_waiting=2)
    it.add(event(0))
    assert not it.is_full
    it.add(event(1))
    assert it.is_full
    for large in (
        Event(0, 0, NOW, None, b"x" * MAX_BYTES),
        Event(0, 0, NOW, b"x" * MAX_BYTES, None),
        Event(0, 0, NOW, None, None, (("a", None), ("b", b"x" * MAX_BYTES))),
    ):
        it = endpoint()
        it.add(large)
        assert it.is_full
