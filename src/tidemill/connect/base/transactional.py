"""Write records in Kafka transactions, one after the other, and notice when fenced.

Sources: KIP-98 (transactions), KIP-360 and KIP-890 (what can be aborted). Must not know: what the
records mean.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException

from tidemill.connect.base.clients import Kafka
from tidemill.connect.base.errors import MAX_RECORD_BYTES, DeliveryError, fenced, too_large

INIT_S = 60.0
"""How long a new producer can wait for the transaction of its predecessor to end."""
COMMIT_S = 60.0
_SLICE_S = 1.0
"""How long one call of librdkafka waits. While it waits, it does not report that the transaction
has failed, and that it holds back what is left of it."""
TRANSACTION_TIMEOUT_MS = 300_000

_FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    }
)
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
# After a fatal error a client raises a bare KafkaError, which does not derive from Exception.
_RAISED = cast("tuple[type[BaseException], ...]", (KafkaException, KafkaError, SystemError))


class TransactionalProducer:
    """A producer whose records appear together when ``commit`` returns.

    A new one with the same id fences this one and aborts its open transaction. After an error it
    can't be used any more: close it and make a new one.

    Args:
        kafka: the cluster.
        transactional_id: the identity that survives restarts.

    Raises:
        UnreachableError: no broker answers.
    """

    def __init__(self, kafka: Kafka, transactional_id: str) -> None:
        self._kafka = kafka
        self._id = transactional_id
        self._open = False
        self._producer: Any = kafka.producer(
            transactional_id,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            linger_ms=1,
            compression_type="lz4",
            partitioner="murmur2_random",
            message_max_bytes=MAX_RECORD_BYTES,
            queue_buffering_max_messages=500_000,
            queue_buffering_max_kbytes=128 << 10,
        )
        self._produce: Any = self._producer.produce
        self._try("start a transactional producer", self._producer.init_transactions, INIT_S)

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun."""
        return self._open

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        ts_ms: int = 0,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        """Add a record to the transaction, which begins if none is open.

        Raises:
            RecordTooLargeError: the record is too large.
            DeliveryError: the transaction failed.
            ProducerFencedError: another producer has this id.
        """
        if not self._open:
            self._try("begin a transaction", self._producer.begin_transaction)
            self._open = True
        while True:
            try:
                try:
                    if headers:
                        self._produce(topic, value, key, timestamp=ts_ms, headers=headers)
                    else:
                        self._produce(topic, value, key, timestamp=ts_ms)
                    return
                except BufferError:
                    self._producer.poll(0.1)
            except _RAISED as error:
                size = len(value or b"") + len(key or b"")
                raise self._error(error, f"write {size:,} bytes to topic {topic}") from error

    def post(self) -> None:
        """Do nothing: librdkafka sends in its own thread."""

    def commit(self) -> None:
        """Commit the transaction. When it returns, the records are durable and visible.

        Raises:
            DeliveryError: the transaction failed; none of its records is visible.
            ProducerFencedError: another producer has this id.
        """
        if not self._open:
            return
        deadline = time.monotonic() + COMMIT_S
        while True:
            try:
                self._producer.commit_transaction(_SLICE_S)
                break
            except _RAISED as error:
                inner = _inner(error)
                if inner is None or not inner.retriable() or time.monotonic() > deadline:
                    raise self._error(error, "commit a transaction") from error
        self._open = False

    def close(self) -> None:
        """Abort an open transaction, and close the client."""
        if self._open:
            with contextlib.suppress(*_RAISED):
                self._producer.purge()
                self._producer.abort_transaction(5.0)
        self._open = False
        self._producer = self._produce = None

    def _try(self, what: str, call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except _RAISED as error:
            raise self._error(error, what) from error

    def _error(self, error: BaseException, what: str) -> Exception:
        inner = _inner(error)
        if inner is None or inner.code() == KafkaError._FATAL:
            inner = self._fatal_error() or inner
        if inner is None:
            return DeliveryError(f"can't {what}: {error}")
        if inner.code() in _FENCED:
            return fenced(self._id)
        if inner.code() in _TOO_LARGE:
            return too_large(what, inner.str())
        if inner.txn_requires_abort() or self._open:
            return DeliveryError(f"can't {what}: {inner.str()}")
        return self._kafka.translate(inner, what)

    def _fatal_error(self) -> KafkaError | None:
        """Return why librdkafka has given up this producer; None if it does not say.

        A call that only queues something reports _FATAL without the reason.
        """
        # librdkafka records the reason a moment before it stops the transaction and reports it.
        begin = self._producer.begin_transaction
        for call, arguments in ((begin, ()), (self._producer.poll, (1.0,)), (begin, ())):
            try:
                call(*arguments)
            except _RAISED as error:
                inner = _inner(error)
                if inner is not None and inner.fatal():
                    return inner
        return None


def _inner(error: BaseException) -> KafkaError | None:
    if isinstance(error, KafkaError):
        return error
    found = error.args[0] if error.args else None
    return found if isinstance(found, KafkaError) else None
