"""Consumers of streams: each reads the log from an offset, and nothing is removed.

An acknowledgement only makes place for more messages. Knows one lane.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from tidemill.engine.queues.api import ConsumerSpec, Delivery, Recipient
from tidemill.engine.queues.live.consumers import REVOKED, MayRead
from tidemill.engine.queues.live.dispatch import Counters
from tidemill.engine.queues.live.lane import Lane
from tidemill.engine.queues.live.stored import Stored
from tidemill.errors import TidemillError
from tidemill.log.steps import run_steps

PER_TURN = 1000

logger = structlog.get_logger("tidemill.queues")


class StreamConsumer:
    """A consumer of a stream. See ``api.Consumer``.

    Args:
        counters: of the queue.
        start: ``x-stream-offset`` as ``arguments`` checked it.
        on_cancelled: called when the consumer is cancelled.
        may_read: returns whether its client may still read; None: always.
    """

    def __init__(
        self,
        name: str,
        lane: Lane,
        counters: Counters,
        spec: ConsumerSpec,
        recipient: Recipient,
        start: object,
        now_ms: int,
        on_cancelled: Callable[[StreamConsumer], None],
        may_read: MayRead | None,
    ) -> None:
        self._may_read = may_read
        self.spec = spec
        self.recipient = recipient
        self.priority = 0
        self.unacknowledged = 0
        self.is_cancelled = False
        self._name = name
        self._lane = lane
        self._counters = counters
        self._on_cancelled = on_cancelled
        self._read: deque[tuple[int, Stored]] = deque()
        self._event = asyncio.Event()
        self._event.set()
        self._task = asyncio.get_running_loop().create_task(self._run(start, now_ms))

    # --- api.Consumer ----------------------------------------------------------------------------

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Make place for more messages."""
        self.unacknowledged -= len(deliveries)
        self.wake()

    release = acknowledge
    reject = acknowledge

    def wake(self) -> None:
        """Look for messages: the recipient's credit or the log possibly grew."""
        self._event.set()

    def cancel(self) -> None:
        """Stop delivering."""
        if not self.is_cancelled:
            self.close()
            self._on_cancelled(self)

    def close(self) -> None:
        """Stop delivering, because the queue ends."""
        self.is_cancelled = True
        self._task.cancel()

    def release_all(self) -> None:
        """Forget what is out: nothing is held in a stream."""
        self.unacknowledged = 0

    # --- reading ---------------------------------------------------------------------------------

    async def _run(self, start: object, now_ms: int) -> None:
        try:
            position = await self._position(start, now_ms)
            while True:
                await self._event.wait()
                self._event.clear()
                position = await self._pump(position)
                if self._is_revoked():
                    self.is_cancelled = True
                    self._on_cancelled(self)
                    self.recipient.cancelled(REVOKED)
                    return
        except TidemillError as error:
            logger.error("queue.failed", queue=self._name, error=str(error), hint=error.hint)
            self.recipient.cancelled("the stream can't be read")

    def _is_revoked(self) -> bool:
        return self._may_read is not None and not self._may_read()

    async def _position(self, start: object, now_ms: int) -> int:
        log = self._lane.log
        end = self._lane.end
        if start == "first":
            return log.log_start_offset
        if start == "last":
            return max(log.log_start_offset, end - 1)
        if isinstance(start, int):
            return start
        timestamp = getattr(start, "timestamp", None)
        since = None
        if timestamp is not None:
            since = int(timestamp() * 1000)
        elif isinstance(start, tuple):
            since = now_ms - int(start[1])
        if since is None:
            return end
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(None, run_steps, log.find_timestamp(since))
        return end if found is None else found[0]

    async def _pump(self, position: int) -> int:
        """Deliver what there is credit for; return the offset to read next."""
        while (credit := self.recipient.credit()) > 0 and not self._is_revoked():
            if not self._read:
                position = max(position, self._lane.log.log_start_offset)
                if position >= self._lane.end:
                    break
                messages, position = await self._lane.load(position)
                self._read.extend(messages)
                continue
            self._deliver(min(credit, PER_TURN))
            await asyncio.sleep(0)
        return position

    def _deliver(self, count: int) -> None:
        batch: list[Delivery] = []
        while self._read and len(batch) < count:
            offset, message = self._read.popleft()
            batch.append(
                Delivery(
                    self._name,
                    self._lane.number,
                    offset,
                    0,
                    False,
                    message.value,
                    message.key,
                    message.headers,
                    message.timestamp,
                    message.exchange,
                    self,
                )
            )
        if not self.spec.no_ack:
            self.unacknowledged += len(batch)
        self._counters.delivered += len(batch)
        self.recipient.deliver(batch)
