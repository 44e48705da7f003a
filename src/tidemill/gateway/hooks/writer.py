"""Store the records of a hook in its topic: each delivery id once, by one gateway at a time.

All records that wait are written in one transaction, and requests are answered when it is
committed. The transactional id belongs to the hook, so a gateway that starts fences an earlier one
and ends its transaction; then it reads the ids back from the topic. So a record is known to be in
the log or not to be, also after a crash of either side. Sources: KIP-98, KIP-360. Must not know:
HTTP, signatures.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import structlog

from tidemill.clock import SteadyClock, SystemClock
from tidemill.confluent.clients import Kafka
from tidemill.connect.base.errors import (
    ProducerFencedError,
    RecordRefusedError,
    RecordTooLargeError,
)
from tidemill.errors import TidemillError
from tidemill.gateway.dedup import Once, Stored, Window, rebuild
from tidemill.gateway.errors import (
    HookFencedError,
    HookOverloadedError,
    HookUnavailableError,
)
from tidemill.gateway.hooks.mapping import Record
from tidemill.gateway.hooks.settings import HookEntry

if TYPE_CHECKING:
    from tidemill.connect.base.producer import Producer

ID_HEADER = "webhook-id"
"""The header of a stored record with the hook's name and the delivery id, ``NAME:ID``."""
MAX_WAITING, MAX_WAITING_BYTES = 10_000, 64 << 20
"""What may wait to be stored, in records and bytes."""
MAX_BATCH, MAX_BATCH_BYTES = 2000, 8 << 20
"""The records and bytes of one transaction."""
TRANSACTION_S = 60
"""How long a transaction of a gateway that does not return holds readers of the topic back."""
_PAUSES_S = (0.1, 0.5, 1.0, 2.0, 5.0)
"""How long a writer waits before it opens its producer again."""
_OVERHEAD = 200
"""Bytes that a batch needs besides its records."""
_CLIENT = "tidemill-gateway-hooks"
_NEW = Stored(-1, -1, 0)
"""The place of a record that this process has stored: no request asks for it."""

log = structlog.get_logger("tidemill.gateway")
Result = TypeVar("Result")


@dataclass(slots=True)
class _Waiting:
    """A record that is not stored yet, and the request that waits for it."""

    record: Record
    future: asyncio.Future[Stored]
    is_attempted: bool = False


class Writer:
    """Stores the records of one hook. It belongs to one event loop; ``run`` does the work.

    Attributes:
        is_ready: whether records can be stored now.
        is_fenced: whether another gateway has the hook.
    """

    def __init__(self, kafka: Kafka, entry: HookEntry) -> None:
        self._kafka = kafka
        self._entry = entry
        self._clock = SteadyClock(SystemClock())
        self._once = Once(self._new_window(), self._clock.now_ms)
        self._queue: deque[_Waiting] = deque()
        self._bytes = 0
        self._failures = 0  # since a batch was stored
        self._alone = 0  # so many records are stored one by one
        self._wake = asyncio.Event()
        self._most_bytes = MAX_BATCH_BYTES
        self._is_stopping = False
        self.is_ready = self.is_fenced = False

    # --- requests --------------------------------------------------------------------------------

    async def store(self, record: Record) -> bool:
        """Store a record, and return when it is durable.

        Returns:
            Whether it was stored; False if the topic has a record with its id.

        Raises:
            RecordTooLargeError: the topic does not take so large a record.
            RecordRefusedError: the topic does not take it, e.g. without a key if it is compacted.
            HookUnavailableError: it was not stored in time. It is when that is possible again, if
                it has an id; so it is not stored twice if the sender tries again.
            HookFencedError: another gateway has taken over the hook.
        """
        try:
            async with asyncio.timeout(self._entry.timeout_s):
                if record.id is None:
                    await self._append(record)
                    return True
                stored, is_own = await self._once.store(record.id, lambda: self._append(record))
                return is_own and stored == _NEW
        except TimeoutError:
            seconds = self._entry.timeout_s
            raise self._unavailable(f"it was not stored within {seconds:g} s") from None

    async def _append(self, record: Record) -> Stored:
        if self.is_fenced:
            raise self._fenced()
        if record.size + _OVERHEAD > self._most_bytes:
            raise RecordTooLargeError(
                f"a record of {record.size:,} bytes is larger than topic {self._entry.topic} takes",
                hint="Raise max.message.bytes of the topic: tidemill topic alter",
            )
        if len(self._queue) >= MAX_WAITING or self._bytes + record.size > MAX_WAITING_BYTES:
            raise HookOverloadedError(f"too many requests to hook {self._entry.name} wait")
        waiting = _Waiting(record, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._bytes += record.size
        self._wake.set()
        return await waiting.future

    # --- the writer's task -----------------------------------------------------------------------

    async def run(self) -> None:
        """Store what arrives, until ``stop``, or until another gateway takes over."""
        while not (self.is_fenced or self._is_stopping):
            try:
                producer, window, self._most_bytes = await _in_thread(self._open)
                self._once.window = window
                self.is_ready = True
                log.info("hook.ready", hook=self._entry.name, ids=len(window))
                await self._write_all(producer)
            except ProducerFencedError:
                self._fence()
            except Exception as error:
                self.is_ready = False
                cause = str(error) if isinstance(error, TidemillError) else repr(error)
                log.warning("hook.unavailable", hook=self._entry.name, error=cause)
                await asyncio.sleep(_PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)])
                self._failures += 1
        self.is_ready = False
        self._fail_waiting(self._fenced() if self.is_fenced else self._unavailable("it stops"))

    def stop(self) -> None:
        """Let ``run`` end when what waits is stored."""
        self._is_stopping = True
        self._wake.set()

    async def _write_all(self, producer: Producer) -> None:
        """Store what arrives. The producer is closed at the end.

        Raises:
            ProducerFencedError: another gateway has taken over.
            TidemillError: the producer can't be used any more.
        """
        try:
            while True:
                self._wake.clear()
                if batch := self._next_batch():
                    await self._write(producer, batch)
                elif self._is_stopping:
                    return
                else:
                    await self._wake.wait()
        finally:
            await _in_thread(producer.close)

    async def _write(self, producer: Producer, batch: list[_Waiting]) -> None:
        """Store a batch in one transaction, and answer its requests.

        Raises:
            ProducerFencedError: another gateway has taken over.
            TidemillError: it is not known whether the batch is stored. Its records wait until the
                ids are read again.
        """
        began = time.monotonic()
        try:
            await _in_thread(lambda: self._commit(producer, [each.record for each in batch]))
        except Exception as error:
            if isinstance(error, RecordTooLargeError | RecordRefusedError):
                if len(batch) == 1:
                    _fail(batch.pop(), error)
                # One by one, a record that the broker refuses fails alone.
                self._alone += len(batch)
            self._return(batch)
            # A broker that ends a transaction because it is too old answers in the same way.
            is_old = time.monotonic() - began >= TRANSACTION_S
            if isinstance(error, ProducerFencedError) and is_old:
                raise self._unavailable("the transaction took too long") from None
            raise
        self._failures = 0
        self._alone = max(self._alone - len(batch), 0)
        for each in batch:
            if not each.future.done():
                each.future.set_result(_NEW)

    def _next_batch(self) -> list[_Waiting]:
        """Return records for one transaction, without those that are in the topic."""
        batch: list[_Waiting] = []
        size, most = 0, 1 if self._alone else MAX_BATCH
        while self._queue and len(batch) < most and size < MAX_BATCH_BYTES:
            waiting = self._queue.popleft()
            self._bytes -= waiting.record.size
            # The outcome of an earlier attempt is known since the ids were read again.
            if stored := self._find(waiting.record):
                if not waiting.future.done():
                    waiting.future.set_result(_NEW if waiting.is_attempted else stored)
            elif not waiting.future.done():  # or the request was cancelled
                batch.append(waiting)
                size += waiting.record.size
        return batch

    def _find(self, record: Record) -> Stored | None:
        if record.id is None:
            return None
        return self._once.window.find(record.id, self._clock.now_ms())

    def _return(self, batch: list[_Waiting]) -> None:
        """Let a batch wait whose outcome is not known. Without an id, it stays unknown."""
        for each in batch:
            each.is_attempted = True
            if each.record.id is None:
                _fail(each, self._unavailable("the outcome is not known"))
        kept = [each for each in batch if each.record.id is not None]
        self._queue.extendleft(reversed(kept))
        self._bytes += sum(each.record.size for each in kept)

    def _fail_waiting(self, error: TidemillError) -> None:
        for waiting in self._queue:
            _fail(waiting, error)
        self._queue.clear()
        self._bytes = 0

    def _fence(self) -> None:
        self.is_fenced = True
        log.error(
            "hook.fenced",
            hook=self._entry.name,
            hint="Another gateway has the hook. Send its requests there, or stop that gateway and "
            "restart this one.",
        )

    def _fenced(self) -> HookFencedError:
        return HookFencedError(f"another gateway has taken over hook {self._entry.name}")

    def _unavailable(self, why: str) -> HookUnavailableError:
        return HookUnavailableError(f"hook {self._entry.name} can't store the request: {why}")

    # --- in a thread -----------------------------------------------------------------------------

    def _open(self) -> tuple[Producer, Window, int]:
        """Fence other gateways, then read the ids in the topic. It blocks.

        Returns:
            The producer, the ids that are in the topic, and the largest batch that it takes.
        """
        # Imported here, as a gateway without hooks does not need the codecs of batches: 2.5 MB.
        from tidemill.connect.base.producer import open_producer

        entry, kafka = self._entry, self._kafka
        kafka.create_topics(_CLIENT, {entry.topic: (entry.partitions, {})})
        most_bytes = int(kafka.topic_configs(_CLIENT, entry.topic)["max.message.bytes"])
        properties = {
            **kafka.properties,
            "transaction.timeout.ms": str(TRANSACTION_S * 1000),
            "message.timeout.ms": str(TRANSACTION_S * 1000),
            "batch.size": str(min(1_000_000, most_bytes)),
        }
        producer = open_producer(
            replace(kafka, properties=properties), f"tidemill-hook-{entry.name}"
        )
        window = self._new_window()
        try:
            if entry.dedupe:
                rebuild(window, kafka, entry.topic, ID_HEADER, now_ms=self._clock.now_ms())
        except BaseException:
            producer.close()
            raise
        return producer, window, most_bytes

    def _commit(self, producer: Producer, records: list[Record]) -> None:
        for record in records:
            headers: list[tuple[str, bytes | None]] = [*record.headers]
            if record.id is not None:
                headers.insert(0, (ID_HEADER, record.id))
            producer.send(self._entry.topic, record.key, record.value, headers=headers)
        producer.commit()

    def _new_window(self) -> Window:
        return Window(self._entry.dedupe_ids, self._entry.dedupe_hours * 3_600_000)


def _fail(waiting: _Waiting, error: TidemillError) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(error)


async def _in_thread(work: Callable[[], Result]) -> Result:
    """Run work that blocks in a thread that does not hold back the end of the process."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()  # what waits for it can be cancelled, and the work can't

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="hook", daemon=True).start()
    return await asyncio.wrap_future(future)
