"""Group commit: run fdatasync for many requests together.

Every append reports its log as dirty. A log is synced as soon as a request waits for it (a durable
write, a reader at the end of the log, a state machine), and otherwise after ``interval_ms``. At
most one sync per log runs at a time. It covers everything that was appended before it started, so
any number of requests share one sync. The journal makes what many logs wait for durable with one
sync (``journaling``). A log with more unsynced bytes than the journal takes, or with files to sync,
is synced in its own files, on a few threads. Everything else happens on the event loop.

Knows logs and futures, and nothing of what is written or why.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias

import structlog

from tidemill.engine.errors import BrokerStoppingError
from tidemill.engine.journaling import RETRY_S, SYNC_SECONDS, Journaling
from tidemill.engine.threads.syncs import TicketRunner
from tidemill.log.errors import StorageError, SyncFailedError, TooManyOpenFilesError
from tidemill.log.journal.journal import ROUND_BYTES, Journal
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.partition.sync import SyncTicket
from tidemill.log.rounds import Taken, finish_pieces, take_pieces
from tidemill.metrics.registry import Histogram

logger = structlog.get_logger("tidemill.flusher")

SYNC_THREADS = 4
RELEASED_PER_TURN = 32
"""Requests of one log that are released in one turn of the event loop, of perhaps thousands."""
LARGE_APPEND = 32 << 10
"""Bytes of a request that takes long enough to look after the journal while a turn lasts."""
LONG_TURN_S = 0.0002
"""How long an append waits for others of its turn of the event loop: about as long as a sync."""
ACCEPTED_PER_TURN = 64
"""Logs of one round of the journal whose requests are released in one turn."""


def settle(waiter: asyncio.Future[Any], error: Exception | None) -> None:
    """End a wait for the disk, well or with an error, unless who waited is gone."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)


class _LogState:
    """The flusher's notes about one dirty log."""

    __slots__ = ("log", "queued", "releasing", "syncing", "waiters", "wanted")

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.queued = False
        self.releasing = False
        self.syncing = False
        self.wanted = False
        self.waiters: list[tuple[int, int, Callable[[Exception | None], None]]] = []


Awaited: TypeAlias = tuple[PartitionLog, int, Callable[[Exception | None], None]]
"""A log, an offset, and what to call when everything below it is on disk, or with the error."""
_Finished: TypeAlias = tuple[_LogState, bool, bool]
"""A log that was synced, whether its high watermark rose, and whether it has records above it."""


class Flusher:
    """Runs fdatasync for the requests that wait for it.

    Args:
        interval_ms: longest time that data stays unsynced while no request waits for it.
        on_advance: called on the loop after the high watermarks of logs have moved.
        on_failure: called once, on the loop, with the error after which no promise holds any more.
        journal: the journal of the logs; None syncs every log in its own files.

    Attributes:
        journaling: runs the journal; None if there is none.
        sync_seconds: how long the syncs of logs' own files took, each with those beside it.
    """

    def __init__(
        self,
        *,
        interval_ms: int,
        on_advance: Callable[[Sequence[PartitionLog]], None],
        on_failure: Callable[[StorageError], None],
        journal: Journal | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.journaling = (
            None if journal is None else Journaling(journal, self._dispatch_soon, self._fail)
        )
        self._gathered: deque[_LogState] = deque()
        self._interval_s = interval_ms / 1000
        self._on_advance = on_advance
        self._on_failure = on_failure
        self._states: dict[PartitionLog, _LogState] = {}
        self._queue: deque[_LogState] = deque()
        self.sync_seconds = Histogram(SYNC_SECONDS.buckets)
        self._runner = TicketRunner(self._loop, SYNC_THREADS)
        self._sequence = 0
        self._timer: asyncio.TimerHandle | None = None
        self._dispatching = False
        self._asked_at = 0.0
        self._polling = False
        self._failure: StorageError | None = None
        self._drained: asyncio.Future[None] | None = None

    @property
    def unsynced(self) -> int:
        """The number of logs with data that is not on disk."""
        return len(self._states)

    def written(self, log: PartitionLog) -> None:
        """Note that ``log`` has unsynced data. This is cheap, and called after each append."""
        if log not in self._states:
            self._states[log] = _LogState(log)
            if self._timer is None:
                self._timer = self._loop.call_later(self._interval_s, self._on_timer)

    def request(self, log: PartitionLog) -> None:
        """Sync ``log`` now if it is dirty, for example because a reader waits for the data."""
        state = self._states.get(log)
        if state is not None:
            self._want(state)

    def when_durable(self, log: PartitionLog, offset: int) -> asyncio.Future[None]:
        """Return a future that is done when everything below ``offset`` is on disk.

        It has a StorageError if the sync failed, or if the log was deleted.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        self.call_when_durable(log, offset, partial(settle, future))
        return future

    def call_when_durable(
        self, log: PartitionLog, offset: int, done: Callable[[Exception | None], None]
    ) -> None:
        """Call ``done`` when everything below ``offset`` is on disk, or with the error.

        Calls for one log are made in the order of their offsets.
        """
        if self._failure is not None:
            self._loop.call_soon(done, self._failure)
            return
        state = self._states.get(log)
        durable = state is None or log.high_watermark >= offset
        if state is None or (durable and not state.waiters):
            self._loop.call_soon(done, None)
            return
        self._sequence += 1
        heapq.heappush(state.waiters, (offset, self._sequence, done))
        if durable:
            self._release_soon(state)  # behind those that are still to be released
        else:
            self._want(state)

    def call_when_each_is_durable(self, awaited: Sequence[Awaited]) -> None:
        """Do ``written`` and ``call_when_durable`` for logs whose offsets are not durable yet."""
        states, is_new = self._states, False
        if self._failure is not None:
            for *_, done in awaited:
                self._loop.call_soon(done, self._failure)
            return
        for log, offset, done in awaited:
            if log not in states:
                self.written(log)
            state = states[log]
            self._sequence += 1
            heapq.heappush(state.waiters, (offset, self._sequence, done))
            is_new = self._enqueue(state) or is_new
        if is_new:
            self._dispatch_soon()

    def appended(self, size: int) -> None:
        """Keep the disk busy during a long turn of the event loop. This is called after appends.

        If a sync was done meanwhile, the next one starts now and not in the next turn, and so does
        a first one that has waited for ``LONG_TURN_S``. The event loop releases the requests.

        Args:
            size: bytes of a request. Small ones gain nothing by more syncs, which take time.
        """
        if size < LARGE_APPEND or self._failure is not None:
            return
        journaling = self.journaling
        self._polling = True
        try:
            self._runner.poll()
            if journaling is not None:
                journaling.poll()
            is_busy = self._runner.is_busy or (journaling is not None and journaling.is_busy)
            waited = self._dispatching and perf_counter() - self._asked_at > LONG_TURN_S
            if waited and not is_busy:
                self._dispatch()
        finally:
            self._polling = False

    def forget(self, log: PartitionLog) -> None:
        """Forget a deleted log. The requests that wait for it get an error."""
        state = self._states.pop(log, None)
        if self.journaling is not None:
            self.journaling.forget(log)
        if state is not None:
            waiters, state.waiters = state.waiters, []
            error = StorageError(f"{log.tp} was deleted while data waited to be synced")
            for _, _, done in waiters:
                done(error)
        self._check_idle()

    async def drain(self) -> None:
        """Sync everything that is dirty; raise StorageError if that fails."""
        for state in list(self._states.values()):
            self._want(state)
        while self._states:
            self._drained = self._drained or self._loop.create_future()
            await asyncio.shield(self._drained)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop the threads. Requests that still wait get a ``BrokerStoppingError``."""
        if self._timer is not None:
            self._timer.cancel()
        self._fail_all(BrokerStoppingError("the broker stopped before the data was synced"))
        if self.journaling is not None:
            self.journaling.close()
        self._runner.close()

    # --- inside ----------------------------------------------------------------------------------

    def _want(self, state: _LogState) -> None:
        if self._enqueue(state):
            self._dispatch_soon()

    def _enqueue(self, state: _LogState) -> bool:
        state.wanted = True
        if state.queued or state.syncing:
            return False
        state.queued = True
        self._queue.append(state)
        return True

    def _on_timer(self) -> None:
        self._timer = None
        for state in self._states.values():
            self._want(state)

    def _dispatch_soon(self) -> None:
        # In the next turn of the loop, so that all appends of this one share the sync.
        if not self._dispatching and (self._queue or self._gathered):
            self._dispatching = True
            self._asked_at = perf_counter()
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatching = False
        if self._failure is None:
            self._guard(self._start_syncs)

    def _guard(self, step: Callable[..., None], *args: object) -> None:
        """Run a step. If it ends without memory or with a bug, no request waits forever."""
        try:
            step(*args)
        except Exception as error:
            self._fail(error)

    def _start_syncs(self) -> None:
        journaling = self.journaling
        if journaling is not None:
            self._gather(journaling)
        while self._queue and self._runner.free:
            # Dirty logs are spread evenly over the free threads.
            share = -(-len(self._queue) // self._runner.free)
            work: list[tuple[_LogState, SyncTicket, int]] = []
            for _ in range(share):
                state = self._queue.popleft()
                state.queued = False
                state.wanted = False
                ticket = self._begin(state)
                if ticket is not None:
                    number = -1 if journaling is None else journaling.begin_store(state.log)
                    work.append((state, ticket, number))
            if work:
                finish = partial(self._guard, self._finish, work, perf_counter())
                self._runner.run([ticket for _, ticket, _ in work], finish)

    def _gather(self, journaling: Journaling) -> None:
        """Take the logs that the journal can serve out of the queue, and start its next round."""
        if not journaling.is_open:
            self._queue.extend(self._gathered)
            self._gathered.clear()
            if self._queue:
                journaling.open()
            return
        if journaling.is_busy:
            left, self._queue = self._queue, deque()
        else:
            self._gathered += self._queue
            self._queue.clear()
            self._start_round(journaling)
            left, self._gathered = self._gathered, deque()
        for state in left:
            (self._gathered if state.log.fits_journal else self._queue).append(state)

    def _start_round(self, journaling: Journaling) -> None:
        """Pass what logs wait for to the journal; a log that it can't serve goes to the queue."""
        states = self._states
        waiting = [state for state in self._gathered if states.get(state.log) is state]
        found = take_pieces([state.log for state in waiting], ROUND_BYTES)
        self._gathered = deque(waiting[len(found) :])
        round_: list[tuple[_LogState, Taken]] = []
        pieces, logs = [], []
        for state, taken in zip(waiting, found, strict=False):
            if taken is None:
                self._queue.append(state)
                continue
            state.queued = state.wanted = False
            state.syncing = True
            round_.append((state, taken))
            pieces.append(taken[0])
            logs.append(state.log)
        accept = partial(self._guard, self._accept, round_)
        if round_ and not journaling.start(pieces, logs, accept):
            self._sync_files(state for state, _ in round_)

    def _sync_files(self, states: Iterable[_LogState]) -> None:
        """Sync logs in their own files, because the journal could not take their data."""
        for state in states:
            state.log.withdraw_piece()
            state.syncing = False
            state.queued = True
            self._queue.append(state)

    def _accept(self, round_: list[tuple[_LogState, Taken]], written: bool) -> None:
        """Finish a round, in slices: raise the high watermarks and release the requests."""
        if not written:
            self._sync_files(state for state, _ in round_)
            return
        part, rest = round_[:ACCEPTED_PER_TURN], round_[ACCEPTED_PER_TURN:]
        moved = finish_pieces([state.log for state, _ in part], [taken for _, taken in part])
        finished: list[_Finished] = []
        for (state, _), (has_risen, has_more) in zip(part, moved, strict=True):
            state.syncing = False
            finished.append((state, has_risen, has_more))
        self._continue(finished)
        if rest:
            self._loop.call_soon(self._guard, self._accept, rest, True)

    def _release(self, finished: Iterable[_Finished]) -> None:
        """Release the requests of logs."""
        for state, _, _ in finished:
            self._settle(state)
        moved = [state.log for state, has_risen, _ in finished if has_risen]
        if moved:
            self._on_advance(moved)

    def _begin(self, state: _LogState) -> SyncTicket | None:
        if self._states.get(state.log) is not state:
            return None
        ticket = state.log.begin_sync(is_awaited=bool(state.waiters))
        if ticket is None:
            self._settle(state)
            return None
        state.syncing = True
        return ticket

    def _finish(
        self,
        work: list[tuple[_LogState, SyncTicket, int]],
        began: float,
        error: BaseException | None,
    ) -> None:
        self.sync_seconds.observe(perf_counter() - began)
        if isinstance(error, TooManyOpenFilesError):
            self._retry([each for each in work if not each[1].done], error)
            work = [each for each in work if each[1].done]
        elif error is not None:
            self._fail(error)
            return
        finished: list[_Finished] = []
        for state, ticket, number in work:
            log = state.log
            state.syncing = False
            before = log.high_watermark
            log.finish_sync(ticket)
            if self.journaling is not None:
                self.journaling.finish_store(log, number, ticket)
            watermark = log.high_watermark
            finished.append((state, watermark > before, watermark < log.log_end_offset))
        self._continue(finished)

    def _retry(
        self, work: Sequence[tuple[_LogState, SyncTicket, int]], error: TooManyOpenFilesError
    ) -> None:
        """Sync logs again later, whose files could not be opened. Their requests still wait."""
        logger.warning("sync.retried", error=str(error), hint=error.hint)
        for state, _, number in work:
            state.syncing = False
            state.log.withdraw_piece()  # what was copied since begins above the high watermark
            if self.journaling is not None:
                self.journaling.fail_store(state.log, number)

        def again() -> None:
            for state, _, _ in work:
                if self._states.get(state.log) is state:
                    self._want(state)

        self._loop.call_later(RETRY_S, again)

    def _continue(self, finished: Iterable[_Finished]) -> None:
        """Start what is to be synced next, and then release the requests of logs.

        So the disk works while they are answered.
        """
        for state, _, has_more in finished:
            if has_more and state.waiters:
                self._enqueue(state)
        if self._queue or self._gathered:
            self._dispatch()
        if self._polling:
            self._loop.call_soon(self._release, finished)
        else:
            self._release(finished)

    def _settle(self, state: _LogState) -> None:
        """Release the waiters whose offset is reached. Sync again if data or waiters are left."""
        log = state.log
        watermark = log.high_watermark  # if it rises meanwhile, there is another release
        for _ in range(RELEASED_PER_TURN):
            if not state.waiters or state.waiters[0][0] > watermark:
                break
            done = heapq.heappop(state.waiters)[2]
            try:
                done(None)
            except Exception as error:  # a bug: the waiter is in an unknown state
                self._fail(error)
        if self._states.get(log) is not state:
            return
        if not state.waiters and watermark >= log.log_end_offset:
            del self._states[log]
            if self._drained is not None:
                self._check_idle()
        elif state.waiters and state.waiters[0][0] <= watermark:
            self._release_soon(state)
            if state.wanted:
                self._want(state)
        elif state.waiters or state.wanted:
            self._want(state)
        elif self._timer is None:
            self._timer = self._loop.call_later(self._interval_s, self._on_timer)

    def _release_soon(self, state: _LogState) -> None:
        """Release more waiters in the next turn of the event loop."""
        if not state.releasing:
            state.releasing = True
            self._loop.call_soon(self._release_more, state)

    def _release_more(self, state: _LogState) -> None:
        state.releasing = False
        if self._states.get(state.log) is state:
            self._settle(state)

    def _fail(self, cause: BaseException) -> None:
        if not isinstance(cause, StorageError):
            cause = SyncFailedError(f"a sync ended unexpectedly: {cause!r}")
        is_first, self._failure = self._failure is None, cause
        self._fail_all(cause)
        if is_first:
            self._on_failure(cause)

    def _fail_all(self, error: Exception) -> None:
        states, self._states = self._states, {}
        self._queue.clear()
        self._gathered.clear()
        for state in states.values():
            waiters, state.waiters = state.waiters, []
            for _, _, done in waiters:
                done(error)
        self._check_idle()

    def _check_idle(self) -> None:
        if self._drained is not None and not self._states:
            self._drained.set_result(None)
            self._drained = None
