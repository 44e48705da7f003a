"""Write what a bridge brings in to topics, in bounded memory.

Must not know: a kind of bridge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from tidemill.connect.base.errors import MAX_RECORD_BYTES
from tidemill.connect.direct.contract import Place
from tidemill.connect.direct.errors import BridgeError

_POLL_S = 0.005
_QUEUE_KB = 256 << 10
_SLICE = 500
"""So many records are written before other bridges have their turn."""


class Writer:
    """Writes records with ``acks=all``, each once. While no broker answers, it waits.

    Use it on the event loop.

    Attributes:
        given: records that the producer has taken.
        pending: those of them that are neither on disk nor refused yet.
        written: records that are on disk.
        refused: records that the broker refuses, for example because they are too large.
        last_refusal: its words about the last of them.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self.given = self.written = self.refused = self.pending = 0
        self.last_refusal = ""
        self._fatal: KafkaError | None = None
        self._producer: Any = place.kafka.producer(
            place.client,
            linger_ms=5,
            enable_idempotence=True,
            compression_type="lz4",
            message_max_bytes=MAX_RECORD_BYTES,
            message_timeout_ms=0,
            queue_buffering_max_kbytes=_QUEUE_KB,
            queue_buffering_max_messages=1_000_000,
        )

    async def put(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Give a record to the producer. It waits while the producer has too many.

        If this is cancelled, the producer does not have the record.

        Raises:
            BridgeError: the producer can't continue.
        """
        if self.given % _SLICE == 0:
            await asyncio.sleep(0)
        while True:
            self._check()
            try:
                self._producer.produce(
                    topic,
                    value,
                    key,
                    timestamp=timestamp_ms,
                    headers=list(headers),
                    on_delivery=self._report,
                )
            except BufferError:
                await asyncio.sleep(_POLL_S)
                self._producer.poll(0)
                continue
            except KafkaException as error:  # for example, larger than the producer allows
                self._failed(error.args[0])
                self._check()
                return
            self.given += 1
            self.pending += 1
            return

    async def drain(self) -> None:
        """Wait until all records are on disk, or refused.

        Raises:
            BridgeError: the producer can't continue.
        """
        while self.pending:
            self._producer.poll(0)
            self._check()
            if self.pending:
                await asyncio.sleep(_POLL_S)

    def poll(self) -> None:
        """Take reports of records, without waiting."""
        self._producer.poll(0)

    async def close(self, timeout_s: float) -> int:
        """Wait for records for some time, and return how many are not on disk."""
        left: int = await asyncio.to_thread(self._producer.flush, timeout_s)
        return left

    def _report(self, error: KafkaError | None, message: Message) -> None:
        self.pending -= 1
        if error is None:
            self.written += 1
        else:
            self._failed(error)

    def _failed(self, error: KafkaError) -> None:
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._fatal = error
        else:
            self.refused += 1
            self.last_refusal = error.str()

    def _check(self) -> None:
        if self._fatal is not None:
            raise BridgeError(f"can't write for bridge {self._place.name}: {self._fatal.str()}")
