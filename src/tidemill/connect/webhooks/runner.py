"""Deliver the records of one webhook until it is stopped, disabled or fails: one run.

It connects the parts on the event loop: ``intake`` reads, ``endpoint`` decides, ``sender`` sends,
``outbox`` records. Must not know: where definitions and orders come from.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tidemill.clock import SteadyClock, SystemClock
from tidemill.confluent.clients import Kafka
from tidemill.connect.webhooks.attempts import Recorder, Restored
from tidemill.connect.webhooks.definition import Webhook
from tidemill.connect.webhooks.endpoint import Endpoint
from tidemill.connect.webhooks.errors import MessageError, WebhookError
from tidemill.connect.webhooks.intake import Intake, Position, topic_identity
from tidemill.connect.webhooks.lanes import Delivery, Event
from tidemill.connect.webhooks.marks import Marks
from tidemill.connect.webhooks.messages import Messages
from tidemill.connect.webhooks.outbox import Outbox
from tidemill.connect.webhooks.redelivery import Job
from tidemill.connect.webhooks.retries import judge, retry_after_ms
from tidemill.connect.webhooks.sender import Answer, Sender
from tidemill.connect.webhooks.topics import (
    ATTEMPTS_CONFIG,
    DEAD_LETTERS_CONFIG,
    attempts_topic,
)
from tidemill.errors import TidemillError
from tidemill.tracing import context_in, span

TICK_S = 0.05
FIGURES_EVERY = 4
"""How often positions are made available to other threads, and in how many of these also figures,
for which all retries are looked at."""
STOP_S = 10.0
"""How long requests that are under way can take when a run stops."""
MAX_UNWRITTEN = 256
"""No new request starts while so many attempts are not on disk. A crash repeats those at most."""


def now_ms() -> int:
    """Return the wall-clock time in milliseconds since the epoch: for signatures and records.

    What is planned uses ``SteadyClock``: when an operator sets the machine's clock, retries must
    not wait for hours, and five days of failure must not pass in a moment.
    """
    return time.time_ns() // 1_000_000


class Run:
    """One run. Create and use it on the event loop; other threads read ``figures``.

    Attributes:
        figures: for statuses.
        disabled: why the endpoint is to be disabled, or an empty text.
    """

    def __init__(
        self, webhook: Webhook, kafka: Kafka, recorder: Recorder, *, from_beginning: bool = False
    ) -> None:
        self._webhook = webhook
        self._kafka = kafka
        self._from_beginning = from_beginning
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._outbox = Outbox(webhook, recorder, self._written, self.fail)
        self._endpoint = Endpoint(webhook, random.random)
        self._now_ms = SteadyClock(SystemClock()).now_ms
        self._marks: dict[int, Marks] = {}
        self._restored = Restored()
        self._jobs: dict[str, Job] = {}
        self._sends: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._topic_id = ""
        self._is_sending = False
        self._positions: Mapping[int, Position] = {}
        self._counts = {"delivered": 0, "failed": 0, "dead": 0, "filtered": 0}
        self._last_error = ""
        self._messages: Messages | None = None
        self._sender: Sender | None = None
        self._intake: Intake | None = None
        self.figures: dict[str, Any] = {}
        self.disabled = ""

    async def run(self, is_running: Callable[[], None]) -> None:
        """Deliver until ``stop``, or until the endpoint is to be disabled.

        Args:
            is_running: called when the parts are set up.

        Raises:
            TidemillError: a part has failed.
        """
        await self._prepare()
        self._intake = Intake(
            self._webhook,
            self._topic_id,
            self._kafka,
            self,
            from_beginning=self._from_beginning,
        )
        self._intake.start()
        ticks = asyncio.create_task(self._tick())
        is_running()
        try:
            await self._ended
        finally:
            self._is_sending = False
            await asyncio.gather(*(job.stop() for job in self._jobs.values()))
            await self._settle()
            ticks.cancel()
            self._publish()
            await asyncio.to_thread(self._intake.stop)
            if self._sender is not None:
                await self._sender.close()

    async def _prepare(self) -> None:
        webhook = self._webhook
        self._topic_id = await asyncio.to_thread(topic_identity, self._kafka, webhook.topic)
        self._messages = Messages(webhook, self._topic_id)
        self._outbox.topic_id = self._topic_id
        topics = {
            attempts_topic(webhook.name): (1, ATTEMPTS_CONFIG),
            webhook.dead_letters_topic: (1, DEAD_LETTERS_CONFIG),
        }
        await asyncio.to_thread(self._kafka.create_topics, "tidemill-webhooks", topics)
        self._sender = Sender(webhook)

    def stop(self) -> None:
        """Ask the run to end; requests under way are awaited."""
        if not self._ended.done():
            self._ended.set_result(None)

    def fail(self, error: TidemillError) -> None:
        """End the run with an error."""
        if not self._ended.done():
            self._ended.set_exception(error)

    async def _settle(self) -> None:
        """Wait for requests under way, and until their attempts are on disk."""
        if self._timer is not None:
            self._timer.cancel()
        if self._sends:
            _, late = await asyncio.wait(self._sends, timeout=STOP_S)
            for each in late:
                each.cancel()
        await self._outbox.settle(STOP_S)

    # --- from the thread of the intake (Taker) ------------------------------------------------

    def is_full(self) -> bool:
        """Return whether no more records are to be read for now."""
        return self._endpoint.is_full

    def positions(self) -> Mapping[int, Position]:
        """Return what can be committed."""
        return self._positions

    def assigned(self, positions: Mapping[int, Position], restored: Restored) -> None:
        """Take over partitions."""
        self._loop.call_soon_threadsafe(self._begin, positions, restored)

    def take(self, events: list[Event]) -> None:
        """Take over records, and return when they are counted: there is a bound on them."""
        admitted = threading.Event()

        def admit() -> None:
            try:
                self._admit(events)
            finally:
                admitted.set()

        self._loop.call_soon_threadsafe(admit)
        admitted.wait(STOP_S)

    def intake_failed(self, error: TidemillError) -> None:
        """Take over the error of the thread."""
        self._loop.call_soon_threadsafe(self.fail, error)

    # --- records ------------------------------------------------------------------------------

    def _begin(self, positions: Mapping[int, Position], restored: Restored) -> None:
        self._restored = self._restored.merge(restored) if self._marks else restored
        self._outbox.end = max(self._outbox.end, restored.end)
        for number, each in positions.items():
            known_to = restored.highest.get(number, -1)
            self._marks[number] = Marks(each.offset, restored.start, known_to)
            since = self._endpoint.failing_since_ms
            self._endpoint.failing_since_ms = since or min(each.failing_since_ms, self._now_ms())
        self._is_sending = not self._ended.done()
        self._publish()
        for job in self._jobs.values():
            self._start_job(job)

    def _admit(self, events: list[Event]) -> None:
        restored, messages = self._restored, self._messages
        if messages is None:
            return
        for event in events:
            marks = self._marks[event.partition]
            if event.offset < marks.next_offset:
                continue  # read again after a rebalance
            place = event.partition, event.offset
            is_known = event.offset <= restored.highest.get(event.partition, -1)
            floor = restored.start if is_known else self._outbox.end
            if is_known:
                if event.offset in restored.done.get(event.partition, ()):
                    marks.pass_over(event.offset)
                    continue
                event.attempts, event.steps, due_ms = restored.planned.pop(place, (0, 0, 0))
                # The clock of the earlier process could be ahead.
                event.due_ms = min(due_ms, self._now_ms() + self._endpoint.longest_pause_ms)
            try:
                accepted = messages.accepts(event)
            except MessageError as error:
                marks.begin(event.offset, floor)
                delivery = Delivery([event], attempts=event.attempts)
                self._bury(delivery, Answer(None, str(error)))
                continue
            if not accepted:
                self._counts["filtered"] += 1
                marks.pass_over(event.offset)
                continue
            marks.begin(event.offset, floor)
            self._endpoint.add(event)
        if self._endpoint.is_full and self._webhook.overflow == "dead-letter":
            self._evict()
        self._pump()

    def _evict(self) -> None:
        removed = self._endpoint.lanes.evict()
        if removed is not None:
            self._endpoint.make_room()
            reason = f"more than {self._webhook.max_waiting} records wait behind keys that fail"
            for event in removed.events:
                self._bury(Delivery([event], attempts=removed.attempts), Answer(None, reason))

    # --- sending ------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Start what can be sent now, and plan the next call."""
        while (delivery := self._next()) is not None:
            task = self._loop.create_task(self._send_from(delivery))
            self._sends.add(task)
            task.add_done_callback(self._sent)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake = self._endpoint.wake_ms(self._now_ms()) if self._is_sending else None
        if wake is not None:
            pause = min(max((wake - self._now_ms()) / 1000, 0.001), 3600)
            self._timer = self._loop.call_later(pause, self._pump)

    def _next(self) -> Delivery | None:
        if not self._is_sending or self._outbox.unwritten >= MAX_UNWRITTEN:
            return None
        return self._endpoint.next(self._now_ms())

    async def _send_from(self, delivery: Delivery | None) -> None:
        """Send a delivery, and further ones as long as there are some."""
        while delivery is not None:
            await self._send(delivery)
            delivery = self._next()

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sends.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.fail(WebhookError(f"unexpected {type(error).__name__}: {error}"))
        elif self._is_sending:
            self._pump()

    async def _send(self, delivery: Delivery) -> None:
        messages, sender = self._messages, self._sender
        assert messages is not None
        assert sender is not None
        message = messages.message(delivery)
        at_ms = now_ms()
        first, *others = delivery.events
        parent = context_in(first.headers) if first.headers and not others else {}
        with span(f"webhook {self._webhook.name}", "client", parent) as traced:
            headers = messages.headers(message, at_ms // 1000)
            if traced.context:
                headers = {**traced.context, **headers}
            answer = await sender.post(headers, message.body)
            if answer.status is None:
                traced.fail(answer.error)
            else:
                traced.set("http.response.status_code", answer.status)
        wait_ms = None
        if answer.retry_after is not None:
            longest = int(1000 * self._webhook.max_retry_after_s)
            wait_ms = retry_after_ms(answer.retry_after, now_ms(), longest)
        verdict = judge(answer.status, asks_to_wait=wait_ms is not None)
        decision = self._endpoint.done(delivery, verdict, self._now_ms(), wait_ms)
        if decision.outcome == "delivered":
            self._counts["delivered"] += len(delivery.events)
        else:
            self._counts["failed"] += 1
            self._last_error = answer.error or f"status {answer.status}"
        if decision.outcome == "dead" and not delivery.events[0].job:
            self._bury(delivery, answer, message.id, at_ms)
        else:
            self._outbox.attempt(delivery, message.id, answer, decision, at_ms)
        if decision.disables and not self.disabled:
            self.disabled = decision.disables
            self._is_sending = False
            self.stop()

    def _written(self, events: list[Event], is_finished: bool) -> None:
        """Take over that an attempt is on disk."""
        for each in events if is_finished else ():
            if each.job:
                self._jobs[each.job].finish()
            else:
                self._marks[each.partition].finish(each.offset)
        if self._outbox.unwritten < MAX_UNWRITTEN and not self._sends:
            self._pump()

    def _bury(
        self, delivery: Delivery, answer: Answer, message_id: str = "", at_ms: int = 0
    ) -> None:
        """Make dead letters of events."""
        self._counts["dead"] += len(delivery.events)
        message_id = message_id or delivery.events[0].id
        self._outbox.letters(delivery, message_id, answer, at_ms or now_ms())

    # --- redelivery ---------------------------------------------------------------------------

    def redeliver(self, job: Job) -> None:
        """Deliver records again."""
        if job.id not in self._jobs:
            self._jobs[job.id] = job
            if self._is_sending:
                self._start_job(job)

    def _start_job(self, job: Job) -> None:
        done = self._restored.redelivered.get(job.id)
        floor = self._outbox.end if done is None else self._restored.start
        job.start(self._topic_id, done or set(), self._take_again, floor)

    def finished_jobs(self) -> list[Job]:
        """Return the jobs that have ended. ``forget`` each when its command is deleted."""
        return [each for each in self._jobs.values() if each.is_done]

    def forget(self, job: str) -> None:
        """Forget a job. Until then, a new worker would find what it has finished."""
        self._jobs.pop(job, None)

    def _take_again(self, event: Event) -> None:
        """Take over a record of a job."""
        messages = self._messages
        assert messages is not None
        with contextlib.suppress(MessageError):  # it is a dead letter already
            if messages.accepts(event):
                self._endpoint.add(event)
                self._pump()
                return
        self._jobs[event.job].finish()

    # --- what others see ----------------------------------------------------------------------

    async def _tick(self) -> None:
        for number in itertools.count():
            self._publish(with_figures=number % FIGURES_EVERY == 0)
            await asyncio.sleep(TICK_S)

    def _publish(self, *, with_figures: bool = True) -> None:
        since = self._endpoint.failing_since_ms
        jobs = [each.floor for each in self._jobs.values()]
        positions: dict[int, Position] = {}
        for number, marks in self._marks.items():
            low, floor = marks.low_water(self._outbox.end)
            positions[number] = Position(low, min([floor, *jobs]), since, self._topic_id)
        self._positions = positions
        if with_figures:
            self._show(positions, since)

    def _show(self, positions: Mapping[int, Position], since: int) -> None:
        lanes, endpoint = self._endpoint.lanes, self._endpoint
        ends = self._intake.ends if self._intake is not None else {}
        self.figures = {
            **self._counts,
            "lag": sum(max(ends.get(n, 0) - each.offset, 0) for n, each in positions.items())
            if positions
            else None,
            "waiting": lanes.count,
            "in_flight": endpoint.in_flight,
            "retrying": lanes.retrying,
            "next_retry_ms": lanes.first_retry_ms,
            "blocked": [
                {"key": key.decode(errors="replace")[:100], "behind": behind}
                for key, behind in lanes.blocked(5)
            ],
            "is_full": endpoint.is_full,
            "breaker": endpoint.breaker.state,
            "failing_since_ms": since or None,
            "last_error": self._last_error if since else "",
            "positions": {str(number): each.offset for number, each in positions.items()},
            "redeliveries": [each.describe() for each in self._jobs.values() if not each.is_done],
        }
