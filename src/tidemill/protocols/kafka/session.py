"""One connection of the Kafka protocol: requests go to handlers, responses return in order.

Produce requests of a connection may overlap: each is appended when it arrives, and its response
waits for the disk. Any other request starts when all requests before it are answered, and when the
connection has its turn (``net.turns``). Sockets, limits and back-pressure belong to
``net.listener``, bytes to ``connection`` and ``codec``, and one request to ``answer``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice
from time import perf_counter
from typing import Any

import structlog

from tidemill.engine.authorize import ANONYMOUS, Principal
from tidemill.errors import ProtocolError, TidemillError
from tidemill.kafka_codec.declared import PRODUCE
from tidemill.kafka_codec.headers import parse_header, peek_header
from tidemill.net import eager
from tidemill.net.budget import Hold
from tidemill.net.link import Link
from tidemill.net.pause import Pause
from tidemill.net.work import Work
from tidemill.parts import Part
from tidemill.protocols.kafka.answer import Answer, answer, answer_wide, finish, refuse_version
from tidemill.protocols.kafka.apis import (
    PARKED,
    Api,
    ConnectionState,
    Later,
    RequestContext,
    is_urgent,
)
from tidemill.protocols.kafka.connection import Frame, FrameReader, kept
from tidemill.protocols.kafka.login import Expired
from tidemill.protocols.kafka.produce_runs import Run, Runs
from tidemill.protocols.kafka.sasl import Sasl
from tidemill.protocols.kafka.slots import Shared, Slot

log = structlog.get_logger("tidemill.kafka")

_MANY_QUEUED, _FEW_QUEUED = 128, 32
"""A connection with more queued requests is not read, until there are few."""
MOST_UNANSWERED = 128
"""Produce requests of a connection that are appended before their answers. The others wait in the
socket, so that a client that sends one record in each request has to wait, and makes batches.
Processor time with acks=all, to that of no limit: 1.5 with 16, 1.1 with 64, 1 with 256."""
SMALL_REQUEST = 1024
"""A client with a queue of requests that are smaller on average gets a small receive window."""
_NO_FRAME = Frame(memoryview(b""), None)
RUN_REQUESTS, TURN_REQUESTS = 64, 16
"""Most produce requests that are started together, and those of a connection in its turn."""
_REFUSED_SECONDS = 1.0
"""How long a connection stays open when its login could not be renewed or its user was deleted."""
FRAME_OVERHEAD = 512
"""Bytes that an unanswered request counts for besides its own."""


class KafkaSession:
    """One connection. Implements ``net.listener.Session``.

    Args:
        principal: who the client is.
        sasl: its login; None where none is needed.
    """

    def __init__(
        self,
        shared: Shared,
        link: Link,
        principal: Principal = ANONYMOUS,
        sasl: Sasl | None = None,
    ) -> None:
        self._shared = shared
        self._link = link
        self._door = shared.engine.door(principal, link.host)
        self._quotas = self._door.quotas.quotas
        self._reader: FrameReader | Expired = FrameReader(
            shared.max_frame, shared.scratch, shared.pool
        )
        self._state = ConnectionState(
            client_host=link.host,
            budget=link.budget,
            sends_files=link.sends_files,
            share_sessions=shared.share_sessions,
            turns=Work(shared.turns),
            hold=Pause(link).hold,
            throttle=Pause(link, Hold.QUOTA).throttle,
            sasl=sasl,
        )
        self._turns = shared.turns
        self._run_ctx = RequestContext(self._door, shared.node, PRODUCE, 0, 0, "", self._state)
        self._runs = Runs(self._door)
        self._slots: deque[Slot] = deque()
        self._unanswered = 0
        self._queue: deque[Frame] = deque()
        self._partial = 0
        self._flushing = False
        self._waits_for_turn = False
        self._reading_paused = False
        self._sends_at_end = False
        self._expiry: asyncio.TimerHandle | None = None
        self._is_refused = False
        if sasl is not None:
            sasl.on_proved, sasl.on_refused = self._renew_login, self._refuse_login
            sasl.on_deleted = self._end_login
            self._renew_login()

    # --- logins ----------------------------------------------------------------------------------

    def _renew_login(self) -> None:
        """Take requests until the login expires. A connection without a login has no timer."""
        if isinstance(self._reader, Expired):
            self._reader = self._reader.reader
        lifetime_s = self._state.sasl.lifetime_s if self._state.sasl is not None else None
        self._set_expiry(lifetime_s, self._expire_login)

    def _set_expiry(self, seconds: float | None, function: Callable[[], None]) -> None:
        """Call a function after so many seconds, and none that was to be called before."""
        if self._expiry is not None:
            self._expiry.cancel()
        if seconds is not None:
            self._expiry = asyncio.get_running_loop().call_later(seconds, function)

    def _expire_login(self) -> None:
        if isinstance(self._reader, FrameReader):
            self._reader = Expired(self._reader)

    def _refuse_login(self) -> None:
        """Start no more requests. The client gets the answer, and should close.

        Those that arrived behind the login get no response, as with Apache Kafka.
        """
        self._expire_login()
        self._is_refused = True
        self._set_expiry(_REFUSED_SECONDS, self._link.close)

    def _end_login(self) -> None:
        """Answer what is under way, possibly the deletion itself, start nothing new, and close."""
        # Not close(): a client that does not read would keep it open.
        self._set_expiry(_REFUSED_SECONDS, self._link.abort)
        self.stop()

    # --- called by the listener ------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether requests are unanswered."""
        return bool(self._slots or self._queue)

    @property
    def is_partial(self) -> bool:
        """Whether a request has arrived in part."""
        return self._reader.is_partial

    def get_buffer(self) -> memoryview:
        """Return the buffer to receive into; it is never empty."""
        return self._reader.get_buffer()

    def received(self, count: int) -> None:
        """Take ``count`` received bytes: start the requests that are complete, or queue them."""
        frames = self._reader.received(count)
        self._count_partial()
        if not frames:
            return
        began = now = perf_counter()
        end = self._turns.deadline(began)
        started = 0 if self._queue else self._start_runs(frames, now, end)
        now = perf_counter()
        for frame in frames[started:]:
            self._link.hold_request(len(frame.view) + FRAME_OVERHEAD)
            if not self._queue and self._may_start(frame) and self._has_turn(frame, now, end):
                self._turns.begin_slice(now)
                self._start(frame, now)
                now = perf_counter()
            else:
                self._queue.append(kept(frame))
            if self._link.is_closing:
                break
        self._turns.spend(now - began)
        self._ask_for_turn()

    def _has_turn(self, frame: Frame, now: float, end: float) -> bool:
        return now < end or (is_urgent(frame.view) and now < self._turns.deadline(now, urgent=True))

    def _count_partial(self) -> None:
        partial = self._reader.partial_bytes
        if partial != self._partial:
            self._partial = partial
            self._shared.listener.budget.count_partial(self._link, partial)

    def writable(self) -> None:
        """Continue: the client has read what it was sent."""
        self._start_queued()

    def stop(self) -> None:
        """Cancel long polls, start nothing new, and close when the open requests are answered."""
        self._state.stopping = True
        self._cancel_long_polls()
        self._close_when_done()

    def closed(self) -> None:
        """Release everything: the connection is gone."""
        budget = self._shared.listener.budget
        self._cancel_long_polls()
        # A request that is being handled takes memory until it ends. The memory of one that waits
        # for the members of a group counts as the group's.
        for slot in self._slots:
            is_running = slot.is_waiting or slot.task is not None
            slot.is_counted = is_running and slot.api.key not in PARKED
            if not slot.is_counted:
                budget.remove(slot.size)
        queued = sum(len(frame.view) + FRAME_OVERHEAD for frame in self._queue)
        budget.remove(queued)
        self._link.budget.close()
        self._state.turns.is_gone = True
        for function in list(self._state.on_close.values()):
            function()
        if self._expiry is not None:
            self._expiry.cancel()
        if self._state.sasl is not None:
            self._state.sasl.close()
        self._slots.clear()
        self._queue.clear()
        self._reader.close()
        budget.count_partial(self._link, 0)
        self._partial = 0

    def _cancel_long_polls(self) -> None:
        for slot in self._slots:
            if slot.api.cancellable and slot.task is not None:
                slot.task.cancel()

    # --- starting requests -----------------------------------------------------------------------

    def _may_start(self, frame: Frame) -> bool:
        if self._link.is_congested or self._state.stopping or self._is_refused:
            return False
        if not self._slots:
            return True
        if self._unanswered >= MOST_UNANSWERED:
            return False
        api = self._shared.apis.get(int.from_bytes(frame.view[:2], "big"))
        last = self._slots[-1]
        return api is not None and api.pipelined and last.api.pipelined and not last.ctx.exclusive

    def _start_queued(self) -> None:
        self._link.gather()
        if self._queue:
            began = now = perf_counter()
            end = self._turns.deadline(began)
            while self._can_start_queued() and self._has_turn(self._queue[0], now, end):
                self._turns.begin_slice(now)
                self._start_next(RUN_REQUESTS, now)
                now = perf_counter()
            self._turns.spend(now - began)
        self._link.send()
        self._ask_for_turn()
        if self._state.stopping:
            self._close_when_done()

    def _can_start_queued(self) -> bool:
        return bool(self._queue) and not self._link.is_closing and self._may_start(self._queue[0])

    def _ask_for_turn(self) -> None:
        """Start queued requests in later turns: one in each, while other connections wait too.

        A connection whose requests wait for turns is not read. One whose requests wait for the
        answer to a long poll is, because otherwise it could not be seen to close.
        """
        if not self._queue and not self._reading_paused:
            return
        if self._can_start_queued() and not self._waits_for_turn:
            self._waits_for_turn = True
            self._turns.queue(self._take_turn, urgent=is_urgent(self._queue[0].view))
        crowded = len(self._queue) > (_FEW_QUEUED if self._reading_paused else _MANY_QUEUED)
        paused = crowded and not (self._slots and self._slots[0].api.may_wait)
        if paused != self._reading_paused:
            self._reading_paused = paused
            (self._link.hold if paused else self._link.unhold)(Hold.QUEUE)
            if paused and sum(len(f.view) for f in self._queue) < SMALL_REQUEST * len(self._queue):
                self._link.limit_window()

    def _take_turn(self) -> None:
        self._waits_for_turn = False
        if self._can_start_queued():
            if not self._sends_at_end:
                self._sends_at_end = True
                self._link.gather()
                self._turns.at_end(self._send_at_end)
            now = perf_counter()
            self._turns.begin_slice(now)
            self._start_next(TURN_REQUESTS, now)
        self._ask_for_turn()
        if self._state.stopping:
            self._close_when_done()

    def _send_at_end(self) -> None:
        """Send the answers of this turn together."""
        self._sends_at_end = False
        self._link.send()

    def _close_when_done(self) -> None:
        # Requests that have not started get no response: their clients try another time.
        if all(slot.api.key in PARKED for slot in self._slots):
            self._link.close()

    def _start_runs(self, frames: list[Frame], now: float, end: float) -> int:
        """Start the runs at the front of what arrived; return how many requests they have."""
        started = 0
        while (
            started < len(frames)
            and self._may_start(frames[started])
            and self._has_turn(frames[started], now, end)
        ):
            count = self._start_run(frames[started : started + RUN_REQUESTS], now, counted=False)
            if not count:
                break
            started += count
            now = perf_counter()
        return started

    def _start_next(self, most: int, now: float) -> None:
        """Start the next queued request, or a run of at most so many."""
        frames = list(islice(self._queue, self._runs.most(most)))
        count = self._start_run(frames, now, counted=True)
        for _ in range(count):
            self._queue.popleft()
        if not count:
            self._start(self._queue.popleft(), now)

    def _start_run(self, frames: list[Frame], now: float, *, counted: bool) -> int:
        """Start the run at the front of some requests; return how many requests it has.

        Args:
            counted: whether the bytes of the requests are counted already.
        """
        del frames[min(MOST_UNANSWERED - self._unanswered, self._runs.most(len(frames))) :]
        run = self._runs.take([frame.view for frame in frames])
        if run is None:
            return 0
        size = FRAME_OVERHEAD * run.count
        for frame in frames[: run.count]:
            size += len(frame.view)
            if frame.owner is not None:
                self._shared.pool.give(frame.owner)
        if not counted:
            self._link.hold_request(size)
        self._answer_run(run, size, now)
        return run.count

    def _start(self, frame: Frame, now: float) -> None:
        """Decode one request and run its handler."""
        view = frame.view
        size = len(view) + FRAME_OVERHEAD
        about: tuple[int, int, str] | None = None
        try:
            key, version, correlation_id = peek_header(view)
            about = (key, version, "")
            api = self._shared.apis.get(key)
            if api is None or not api.min_version <= version <= api.max_version:
                self._link.write(refuse_version(self._shared.apis, key, version, correlation_id))
                self._link.release_request(size)
                return
            client_id, body = parse_header(view, key, version)
            about = (key, version, client_id)
            about_client = (correlation_id, client_id, self._state)
            ctx = RequestContext(self._door, self._shared.node, key, version, *about_client)
            answered = answer(api, ctx, view, body)
            if answered is None:
                answered, frame = self._answer_wide(api, ctx, kept(frame), body), _NO_FRAME
            self._answer(api, ctx, size, answered, now)
            if self._quotas.with_requests:
                self._count_work(client_id, perf_counter() - now)
        except Exception as error:
            self._fail(error, about)
            self._link.release_request(size)
        finally:
            if frame.owner is not None:
                self._shared.pool.give(frame.owner)

    def _count_work(self, client_id: str, seconds: float) -> None:
        """Count the first step of a request, which is all of most of them, for the quota."""
        throttle_ms = self._door.quotas.worked(client_id, seconds)
        if throttle_ms and not self._link.is_closing:
            self._state.throttle(throttle_ms)

    async def _answer_wide(
        self, api: Api, ctx: RequestContext, frame: Frame, body: int
    ) -> list[Part]:
        try:
            return await answer_wide(api, ctx, frame.view, body)
        finally:
            if frame.owner is not None:
                self._shared.pool.give(frame.owner)

    def _fail(self, error: BaseException, header: tuple[int, int, str] | None) -> None:
        """Close with one log line: peer, client id, software, API, and the reason."""
        about: dict[str, Any] = {}
        if header is not None:
            key, about["version"], about["client_id"] = header
            api = self._shared.apis.get(key)
            about["api"] = api.name if api is not None else key
        if self._state.software:
            about["software"] = self._state.software
        self._link.fail(error, **about)

    # --- sending responses -----------------------------------------------------------------------

    def _answer(
        self, api: Api, ctx: RequestContext, size: int, answered: Answer, began: float
    ) -> None:
        if isinstance(answered, Later):
            slot = Slot(api, ctx, size, began)
            slot.is_waiting = True
            self._enter(slot)
            answered.subscribe(lambda result: self._complete(slot, answered, result))
            return
        started = eager.Done(answered) if isinstance(answered, list) else eager.start(answered)
        # A response that holds much memory is sent in the next turn: until then its bytes count as
        # loaded, and the requests of other connections in this turn get less.
        if isinstance(started, eager.Done) and not self._slots and not self._link.budget.held:
            if started.result:
                self._link.write(started.result)
            self._link.release_request(size)
            self._shared.seconds[api.key].observe(perf_counter() - began)
            return
        slot = Slot(api, ctx, size, began)
        if isinstance(started, eager.Done):
            slot.buffers, slot.done = started.result, True
            self._enter(slot)
            return
        self._enter(slot)
        slot.task = task = asyncio.get_running_loop().create_task(started)
        self._shared.tasks.add(task)
        task.add_done_callback(lambda done: self._finished(slot, done))

    def _answer_run(self, run: Run, size: int, began: float) -> None:
        slot = Slot(self._shared.apis[PRODUCE], self._run_ctx, size, began, run.count)
        if run.call_when_done(lambda: self._complete_run(slot, run)):
            slot.is_waiting = True
        elif not self._slots and not self._link.budget.held:
            self._link.write(run.responses)
            self._link.release_request(size)
            self._shared.seconds[PRODUCE].observe(perf_counter() - began, run.count)
            return
        else:
            slot.buffers, slot.done = run.responses, True
        self._enter(slot)

    def _complete_run(self, slot: Slot, run: Run) -> None:
        self._ended(slot)
        if len(self._slots) != 1 or self._queue or self._state.stopping or self._link.budget.held:
            self._done(slot, run.responses)
            return
        # There is nothing that the answer could be sent together with in the next turn.
        self._slots.clear()
        self._unanswered = 0
        self._link.write(run.responses)
        self._link.release_request(slot.size)
        self._shared.seconds[PRODUCE].observe(perf_counter() - slot.began, slot.requests)

    def _ended(self, slot: Slot) -> None:
        slot.is_waiting, slot.task = False, None
        if self._state.turns.is_gone and slot.is_counted:
            self._shared.listener.budget.remove(slot.size)

    def _enter(self, slot: Slot) -> None:
        """Give a request its place in the order of responses."""
        self._slots.append(slot)
        self._unanswered += slot.requests
        if slot.done and slot is self._slots[0]:
            self._flush_soon()

    def _complete(self, slot: Slot, later: Later, result: Any) -> None:
        """Take the result that a request has waited for."""
        self._ended(slot)
        try:
            buffers = finish(slot.ctx, later, result)
        except Exception as error:
            self._fail_later(slot, error)
        else:
            self._done(slot, buffers)

    def _done(self, slot: Slot, buffers: list[Part]) -> None:
        if not self._link.is_closing:
            slot.buffers, slot.done = buffers, True
            if slot is self._slots[0]:
                self._flush_soon()

    def _finished(self, slot: Slot, task: asyncio.Task[list[Part]]) -> None:
        self._shared.tasks.discard(task)
        self._ended(slot)
        cancelled = ProtocolError("the request was cancelled")
        error: BaseException | None = cancelled if task.cancelled() else task.exception()
        if error is not None:
            self._fail_later(slot, error)
        else:
            self._done(slot, task.result())

    def _fail_later(self, slot: Slot, error: BaseException) -> None:
        ctx = slot.ctx
        if not self._link.is_closing:
            self._fail(error, (ctx.api_key, ctx.api_version, ctx.client_id))
        elif not isinstance(error, TidemillError):
            log.error("request.failed_after_disconnect", api=slot.api.name, exc_info=error)

    def _flush_soon(self) -> None:
        # One sync completes many requests, one after the other in this turn of the event loop.
        # Their responses are sent together in the next turn.
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Send the responses that are next in order, and start the requests that waited."""
        self._flushing = False
        buffers: list[Part] = []
        now, seconds = perf_counter(), self._shared.seconds
        while self._slots and self._slots[0].done:
            slot = self._slots.popleft()
            self._unanswered -= slot.requests
            buffers += slot.buffers
            seconds[slot.api.key].observe(now - slot.began, slot.requests)
            self._link.release_request(slot.size)
        if buffers:
            self._link.gather()  # ``_start_queued`` sends
            self._link.write(buffers)
            self._link.budget.hold(0)
        self._start_queued()
