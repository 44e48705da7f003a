"""Writes records with one idempotent producer that all requests share.

A record counts as stored when all in-sync replicas have it (``acks=all``): on tidemill's broker it
is on disk then. What is under way is bounded. Must not know: HTTP, JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError, Message, Producer

from tidemill.confluent.clients import Kafka
from tidemill.confluent.errors import FAILURES, error_in
from tidemill.gateway.dedup import Stored
from tidemill.gateway.errors import HttpError, busy, from_kafka, unavailable
from tidemill.gateway.guard import Budget
from tidemill.record_json import InputRecord

DELIVERY_MS = 10_000
"""How long a record can take, with retries. Then the request is answered with an error."""
RECORDS = 100_000
"""The most records under way."""
_OVERHEAD = 200
_HEADER_OVERHEAD = 100
"""Bytes that a record and a header of it take besides their content."""
_LARGEST_RECORD = 1_000_000_000
"""The largest limit of librdkafka, so that the limit of the topic applies."""
_CLOSE_S = 5.0

log = structlog.get_logger("tidemill.gateway")

_Done = tuple[Producer, "asyncio.Future[Stored]", int, KafkaError | None, Stored | None, str]


def new_producer(kafka: Kafka) -> Producer:
    """Return an idempotent producer as the gateway needs it."""
    return kafka.producer(
        "tidemill-gateway",
        acks="all",
        enable_idempotence=True,
        partitioner="murmur2_random",
        allow_auto_create_topics=False,
        linger_ms=0,
        # How long a topic that was there can be unknown before it counts as deleted.
        topic_metadata_propagation_max_ms=1000,
        topic_metadata_refresh_interval_ms=5000,  # partitions that were added
        message_timeout_ms=DELIVERY_MS,
        message_max_bytes=_LARGEST_RECORD,
        queue_buffering_max_messages=2 * RECORDS,
        queue_buffering_max_kbytes=2_097_151,
    )


class Writer:
    """Writes records. It belongs to one event loop, and has a thread for acknowledgements.

    Args:
        budget: The memory that records can take until they are acknowledged.
        producer: A new one of ``new_producer``; by default it is made here.
    """

    def __init__(self, kafka: Kafka, budget: Budget, producer: Producer | None = None) -> None:
        self._kafka = kafka
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self._producers = [new_producer(kafka) if producer is None else producer]
        self._count = 0
        self._room = asyncio.Event()
        self._room.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._done: deque[_Done] = deque()
        self._is_told = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="acknowledgements", daemon=True)
        self._thread.start()

    def take(self, record: InputRecord) -> int:
        """Take the memory of a record from the budget; return its bytes.

        Raises:
            HttpError: too many are taken (503), or it has more than the budget (413).
        """
        size = len(record.key or b"") + len(record.value or b"") + _OVERHEAD
        for name, value in record.headers:
            size += len(name) + len(value or b"") + _HEADER_OVERHEAD
        if size > self._budget.most:
            raise HttpError(
                413,
                "record_too_large",
                f"the record takes {size} bytes of memory with its headers",
                hint=f"gateway.inflight_bytes is {self._budget.most}.",
            )
        self._budget.take(size)
        return size

    def send(
        self, topic: str, record: InputRecord, *, is_taken: bool = False
    ) -> asyncio.Future[Stored]:
        """Send a record to a topic that exists; the result is its place.

        Args:
            is_taken: whether the caller has taken the memory of the record, and gives it back.

        Raises:
            HttpError: too much is under way, or the partition is new (503); the record is too large
                (413). Nothing was sent.
        """
        if self._count >= RECORDS:
            raise busy("too many records are under way")
        size = 0 if is_taken else self.take(record)
        done: asyncio.Future[Stored] = self._loop.create_future()
        more: dict[str, Any] = {}
        if record.partition is not None:
            more["partition"] = record.partition
        if record.timestamp_ms is not None:
            more["timestamp"] = record.timestamp_ms
        producer = self._producers[-1]
        try:
            producer.produce(
                topic,
                record.value,
                record.key,
                headers=[*record.headers] or None,
                on_delivery=partial(self._delivered, producer, done, size, topic),
                **more,
            )
        except BaseException as error:  # also a bare KafkaError
            self._budget.give(size)
            if isinstance(error, BufferError):
                raise busy("too many records are under way") from error
            found = error_in(error)
            if found is None:
                raise
            if found.code() == KafkaError._UNKNOWN_PARTITION:
                raise unavailable(f"topic {topic} has just got this partition") from error
            done.set_exception(from_kafka(found, f"topic {topic}"))
            self._replace_if_fatal(producer, found)
            return done
        self._count += 1
        self._idle.clear()
        if self._count >= RECORDS // 2:
            self._room.clear()
        return done

    async def room(self) -> None:
        """Wait until more can be sent."""
        await self._room.wait()

    async def close(self) -> None:
        """Wait for what is under way, for a few seconds, and end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._idle.wait()
        self._is_closed = True
        await asyncio.to_thread(self._thread.join)

    # --- in the thread ---------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._is_closed:
            # One that was replaced is polled until the fate of its last record is known.
            for producer in [*self._producers]:
                is_last = producer is self._producers[-1]
                try:
                    producer.poll(0.1 if is_last else 0.0)
                except FAILURES as error:  # without the thread, no request is answered
                    found = error_in(error)
                    hint = {}
                    if found is not None and "AUTHORIZATION_FAILED" in found.name():
                        hint["hint"] = "`tidemill user create --for gateway` makes its rules."
                    log.warning("gateway.producer_failed", error=str(found or error), **hint)
                if not is_last and not len(producer):
                    self._producers.remove(producer)

    def _delivered(
        self,
        producer: Producer,
        done: asyncio.Future[Stored],
        size: int,
        topic: str,
        error: KafkaError | None,
        message: Message,
    ) -> None:
        stored = None
        if error is None:
            stored = Stored(
                int(message.partition() or 0), int(message.offset() or 0), message.timestamp()[1]
            )
        self._done.append((producer, done, size, error, stored, topic))
        if not self._is_told:
            self._is_told = True
            self._loop.call_soon_threadsafe(self._tell)

    # --- in the event loop -----------------------------------------------------------------------

    def _tell(self) -> None:
        self._is_told = False
        while self._done:
            producer, done, size, error, stored, topic = self._done.popleft()
            self._budget.give(size)
            self._count -= 1
            if stored is not None:
                if not done.done():
                    done.set_result(stored)
            elif error is not None:
                if not done.done():
                    done.set_exception(from_kafka(error, f"topic {topic}"))
                    done.exception()  # its request may have gone
                self._replace_if_fatal(producer, error)
        if self._count < RECORDS // 2:
            self._room.set()
        if not self._count:
            self._idle.set()

    def _replace_if_fatal(self, producer: Producer, error: KafkaError) -> None:
        """Make another producer if librdkafka has given up the present one."""
        is_fatal = error.fatal() or error.code() == KafkaError._FATAL
        if is_fatal and producer is self._producers[-1]:
            log.warning("gateway.producer_replaced", error=error.str())
            self._producers.append(new_producer(self._kafka))
