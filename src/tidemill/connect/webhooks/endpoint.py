"""Decide what is sent to an endpoint and when, and what its answers change. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tidemill.connect.webhooks.definition import DAY_S, Webhook
from tidemill.connect.webhooks.lanes import Delivery, Event, Lanes
from tidemill.connect.webhooks.limits import FIRST_OPEN_MS, Breaker, Rate
from tidemill.connect.webhooks.retries import JITTER, Verdict, pause_ms

HURRY_MS = 5000
"""When the endpoint works again, what waits for a retry is sent within this time."""
MAX_BYTES = 64 << 20
"""Most bytes of events in memory; above that, no more are read."""

Outcome = Literal["delivered", "retry", "dead", "gone"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The consequence of an attempt.

    Attributes:
        outcome: ``dead``: there is no further attempt. ``gone``: the endpoint is disabled, and the
            events stay unfinished.
        due_ms: the time of the next attempt; None: there is none.
        disables: why the endpoint is to be disabled, or an empty text.
    """

    outcome: Outcome
    due_ms: int | None = None
    disables: str = ""


_DELIVERED = Decision("delivered")


class Endpoint:
    """An endpoint with the events that wait for it.

    Args:
        webhook: its definition, with the limits.
        chance: returns random numbers from 0 to 1.
        failing_since_ms: as an earlier process knew it.

    Attributes:
        failing_since_ms: the time of the first failure after the last success; 0: it works.
        in_flight: requests that are sent and not answered.
        is_full: whether no more events are to be read, until half of the room is free.
    """

    def __init__(
        self, webhook: Webhook, chance: Callable[[], float], failing_since_ms: int = 0
    ) -> None:
        self._webhook = webhook
        self._chance = chance
        self.lanes = Lanes(ordered=webhook.order == "key", batch=webhook.batch)
        self.breaker = Breaker()
        self._rate = Rate(webhook.rate)
        self.failing_since_ms = failing_since_ms
        self.in_flight = 0
        self.is_disabled = False
        self.is_full = False

    @property
    def longest_pause_ms(self) -> int:
        """The longest pause between two attempts."""
        pauses_s = (*self._webhook.retries_s, self._webhook.max_retry_after_s)
        return int(1000 * max(pauses_s) * (1 + JITTER))

    def add(self, event: Event) -> None:
        """Take an event."""
        self.lanes.add(event)
        lanes = self.lanes
        if lanes.count >= self._webhook.max_waiting or lanes.bytes >= MAX_BYTES:
            self.is_full = True

    def next(self, now_ms: int) -> Delivery | None:
        """Return a delivery to send now, or None. Call ``done`` when it was answered."""
        if self.is_disabled or self.in_flight >= self._webhook.concurrency:
            return None
        if not self.breaker.allows(now_ms) or self._rate.wait_ms(now_ms):
            return None
        found = self.lanes.take(now_ms)
        if found is not None:
            self.in_flight += 1
            self.breaker.started()
            self._rate.take(now_ms)
        return found

    def wake_ms(self, now_ms: int) -> int | None:
        """Return when ``next`` is to be called again, if nothing else happens; None: never."""
        due = self.lanes.next_due_ms
        if due is None or self.is_disabled or self.in_flight >= self._webhook.concurrency:
            return None
        if not self.breaker.allows(now_ms):
            if self.breaker.state != "open":
                return None  # the probe's answer comes first
            due = max(due, self.breaker.open_until_ms)
        return max(due, now_ms + self._rate.wait_ms(now_ms))

    def done(
        self,
        delivery: Delivery,
        verdict: Verdict,
        now_ms: int,
        retry_after_ms: int | None = None,
    ) -> Decision:
        """Take over the answer to a delivery, and return what follows.

        Args:
            retry_after_ms: how long the receiver asks to wait; None: it does not.
        """
        self.in_flight -= 1
        delivery.attempts += 1
        decision = self._decide(delivery, verdict, now_ms, retry_after_ms)
        self.make_room()
        return decision

    def make_room(self) -> None:
        """Note that events may have been removed."""
        lanes = self.lanes
        if lanes.count <= self._webhook.max_waiting // 2 and lanes.bytes <= MAX_BYTES // 2:
            self.is_full = False

    def _decide(
        self, delivery: Delivery, verdict: Verdict, now_ms: int, retry_after_ms: int | None
    ) -> Decision:
        if verdict is Verdict.DELIVERED:
            self.failing_since_ms = 0
            if self.breaker.succeeded():
                self.lanes.hurry(now_ms, HURRY_MS)
            self.lanes.finish(delivery)
            return _DELIVERED
        self.failing_since_ms = self.failing_since_ms or now_ms
        if verdict is Verdict.GONE:
            return self._disable("gone", "the endpoint answered 410 Gone")
        if verdict is Verdict.THROTTLED and (retry_after_ms or 0) < FIRST_OPEN_MS:
            retry_after_ms = None  # without a pause, it would be tried as fast as it answers
        if verdict is Verdict.FAILED:
            self.breaker.failed(now_ms, self._chance())
        else:
            self.breaker.throttled(now_ms, retry_after_ms, self._chance())
        if now_ms - self.failing_since_ms >= 1000 * self._webhook.disable_after_s:
            days = self._webhook.disable_after_s / DAY_S
            return self._disable("retry", f"every attempt failed for {days:g} days")
        if verdict is Verdict.THROTTLED:
            due = self.breaker.open_until_ms if retry_after_ms is None else now_ms + retry_after_ms
        else:
            delivery.steps += 1
            pause = pause_ms(self._webhook.retries_s, delivery.steps, self._chance())
            if pause is None:
                self.lanes.finish(delivery)
                return Decision("dead")
            due = now_ms + max(pause, retry_after_ms or 0)
        self.lanes.retry(delivery, due)
        return Decision("retry", due)

    def _disable(self, outcome: Outcome, reason: str) -> Decision:
        self.is_disabled = True
        return Decision(outcome, None, reason)
