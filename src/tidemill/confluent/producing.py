"""Write records with librdkafka, alone and in transactions.

It understands all settings, and makes an object of each record: the edition for what
``kafka_client.producing`` does not understand (Kerberos, tokens of an issuer). Must not know:
connectors, Spark, what the records mean. Sources: KIP-98, KIP-360, KIP-447, KIP-890.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tidemill.confluent.errors import RAISED, RETRIABLE, LastError, error_in
from tidemill.kafka_client.producing import failures
from tidemill.kafka_client.producing.failures import ErrorFactory
from tidemill.kafka_client.producing.transactional import ABORT_S, Marker

REQUEST_S = 30.0
"""Seconds to wait for one response."""
_SLICE_S = 1.0
"""How long one call to end a transaction waits. While it waits, it does not report that the
transaction has failed, and that it holds back what is left of it."""
_PAUSE_S = 0.02
"""Seconds between a temporary failure and the next attempt."""
_FLUSH_S = 0.5
# Success is not reported, so a longer wait would not end when the queue has space again.
_FULL_S = 0.002

_NOT_YET = RETRIABLE | {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
}
"""Errors of a coordinator that is starting, or that is still writing the offset."""
_CODES = {
    KafkaError._FENCED: KafkaError.PRODUCER_FENCED,
    KafkaError.RECORD_LIST_TOO_LARGE: failures.TOO_LARGE,
}
"""The code of a broker for one of librdkafka's."""

Make = Callable[[Any, Mapping[str, Any], LastError], Any]
"""Makes a client of a class, with settings; the client reports errors to the third argument."""
Headers = Sequence[tuple[str, bytes | None]]
Answer = TypeVar("Answer")


class _Outcome:
    """Counts the records that a producer could not deliver.

    Attributes:
        failures: Number of these records.
        first: Error of the first of them, or None.
        topic: Topic of the first of them.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start counting again."""
        self.failures = 0
        self.first: KafkaError | None = None
        self.topic = ""

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        self.failures += 1
        if self.first is None:
            self.first = error
            self.topic = str(message.topic())


class RecordProducer:
    """Queues records, and reports those that a broker rejected.

    Args:
        settings: Settings of librdkafka.
        errors: Makes the errors.
        make: Makes the client, and words the error of an invalid setting.

    Attributes:
        last: The last error that is about no record.
    """

    def __init__(self, settings: Mapping[str, Any], errors: ErrorFactory, make: Make) -> None:
        self._errors = errors
        self._servers = str(settings["bootstrap.servers"])
        self._is_transactional = "transactional.id" in settings
        self._outcome = _Outcome()
        self.last = LastError()
        # A Python callback for each record would halve the speed, so only failures are reported.
        config = {**settings, "on_delivery": self._outcome, "delivery.report.only.error": True}
        self.client: Any = make(Producer, config, self.last)
        self._produce: Any = self.client.produce

    def reset(self) -> None:
        """Forget the failures of earlier records."""
        self._outcome.reset()
        self.last.error = None

    def send(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        ts_ms: int | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> None:
        """Queue a record. Wait while the queue is full.

        Args:
            ts_ms: The time in ms since 1970; None for now. librdkafka can't write the time 0, and
                writes the present time in its place.

        Raises:
            TidemillError: By the error factory: the record can't be sent, or an earlier one was
                rejected.
        """
        extra: dict[str, Any] = {"timestamp": ts_ms} if ts_ms else {}
        if partition is not None:
            extra["partition"] = partition
        if headers:
            extra["headers"] = headers
        while True:
            try:
                try:
                    self._produce(topic, value, key, **extra)
                    return
                except BufferError:
                    self.check(_FULL_S)
            except RAISED as error:
                code, cause = self.explain(error)
                if code == failures.TOO_LARGE:
                    size = len(value or b"") + len(key or b"")
                    raise self._errors.too_large(topic, size, cause) from error
                if code in failures.FENCED:
                    raise self._errors.refused(f"write to topic {topic}", cause, code) from error
                raise self._errors.unsendable(topic, cause) from error

    def check(self, wait_s: float = 0) -> None:
        """Run the callbacks of the client.

        Raises:
            TidemillError: By the error factory: a record was rejected or not acknowledged in
                time, or the brokers reject the connection.
        """
        self._serve(self.client.poll, wait_s)
        if self.last.is_permanent:
            raise self._errors.rejected(self._servers, self.last.text.removeprefix(": "))
        if (first := self._outcome.first) is not None:
            code, cause = self.explain(first)
            number, topic = self._outcome.failures, self._outcome.topic
            raise self._errors.not_accepted(number, topic, f"{cause}{self.last.text}", code)

    def flush(self) -> None:
        """Wait until all records are acknowledged, at most ``message.timeout.ms``.

        Raises:
            TidemillError: As for ``check``.
        """
        while self._serve(self.client.flush, _FLUSH_S) > 0:
            self.check()
        self.check()

    def close(self) -> None:
        """Drop what is queued."""
        self.client.purge()
        self.client.flush(1.0)

    def explain(self, raised: BaseException | KafkaError) -> tuple[int, str]:
        """Return the code and the text of an error, or of what is behind it."""
        error = error_in(raised)
        if error is None or error.code() == KafkaError._FATAL:
            error = self._fatal_error() or error
        if error is None:
            return 0, str(raised)
        return _CODES.get(error.code(), error.code()), error.str()

    def _fatal_error(self) -> KafkaError | None:
        """Return why librdkafka has given up this producer; None if it does not say.

        A call that only queues something reports _FATAL without the reason.
        """
        if not self._is_transactional:
            return None
        # librdkafka records the reason a moment before it stops the transaction and reports it.
        begin = self.client.begin_transaction
        for call, arguments in ((begin, ()), (self.client.poll, (1.0,)), (begin, ())):
            try:
                call(*arguments)
            except RAISED as error:
                inner = error_in(error)
                if inner is not None and inner.fatal():
                    return inner
        return None

    def _serve(self, ask: Callable[[float], int], wait_s: float) -> int:
        """Call a method of the client that runs callbacks.

        A fatal error (this producer is fenced, or its sequence is broken) is raised from there, but
        not as a KafkaException; if two callbacks raise it, as a SystemError.
        """
        try:
            return ask(wait_s)
        except RAISED as error:
            # Not from the error itself, which might not derive from Exception.
            code, cause = self.explain(error)
        raise self._errors.refused("continue with the producer", cause, code)


class TransactionalProducer:
    """A producer whose records appear together when ``commit`` returns.

    It has the methods of ``kafka_client.producing.transactional.TransactionalProducer``, with the
    same arguments and errors, and keeps its connections while it rests.

    Args:
        settings: Settings of librdkafka, with a transactional id.
        patience_s: Seconds to wait for an answer.

    Attributes:
        is_open: Whether a transaction has begun.
        records: Takes records while a transaction is open.
    """

    def __init__(
        self, settings: Mapping[str, Any], errors: ErrorFactory, make: Make, *, patience_s: float
    ) -> None:
        self._settings = settings
        self._name = str(settings["transactional.id"])
        self._errors = errors
        self._make = make
        self._patience_s = patience_s
        self._request_s = min(REQUEST_S, patience_s)
        self._what = ""
        self.records = RecordProducer(settings, errors, make)
        self._group: object = None
        self.is_open = False

    @property
    def _client(self) -> Any:
        return self.records.client

    def start(self, what: str = "start a producer", topic: str | None = None) -> None:
        """Fence earlier producers, and end their transactions."""
        # Without these requests librdkafka takes half a second to ask for its producer id: it looks
        # for the coordinator before it is connected, and after that only every 500 ms. The first
        # answer comes from a bootstrap server, whose connection librdkafka then closes; the second
        # one comes from a broker.
        with contextlib.suppress(KafkaException):  # a real error occurs again below
            if topic is not None:
                self._client.list_topics(topic, timeout=self._request_s)
                self._client.list_topics(topic, timeout=self._request_s)
        self._retry(lambda: self._client.init_transactions(self._request_s), what)

    def marker(self, topic: str, what: str) -> Marker:
        """Return what the group has committed for partition 0 of a topic."""
        last = LastError()
        # A consumer would take half a second to find its coordinator.
        admin = self._make(AdminClient, self._plain_settings(), last)
        wanted = ConsumerGroupTopicPartitions(self._name, [TopicPartition(topic, 0)])

        def ask() -> TopicPartition:
            answers = admin.list_consumer_group_offsets(
                [wanted], require_stable=True, request_timeout=REQUEST_S
            )
            (answer,) = answers[self._name].result(2 * REQUEST_S).topic_partitions
            if answer.error is not None:
                raise KafkaException(answer.error)
            return cast(TopicPartition, answer)

        found = self._retry(ask, what, last, also=_NOT_YET)
        return Marker(found.offset, found.metadata or "")

    def begin(self, what: str = "begin a transaction") -> None:
        """Begin a transaction if none is open."""
        if not self.is_open:
            self.records.reset()
            self._what = what
            self._retry(self._client.begin_transaction, what)
            self.is_open = True

    def mark(self, topic: str, marker: Marker) -> None:
        """Add an offset of the group to the transaction."""
        if self._group is None:
            self._group = self._group_metadata()
        offset, group = TopicPartition(topic, 0, marker.offset, marker.metadata), self._group

        def add() -> None:
            self._client.send_offsets_to_transaction([offset], group, self._request_s)

        self._retry(add, self._what)

    def send(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        ts_ms: int | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> None:
        """Add a record to the transaction, which begins if none is open."""
        if not self.is_open:
            self.begin()
        self.records.send(topic, key, value, ts_ms, headers, partition)

    def post(self) -> None:
        """Report records that were rejected. librdkafka sends in its own thread."""
        self.records.check()

    def flush(self) -> None:
        """Wait until all records of the transaction so far are acknowledged."""
        self.records.flush()

    def commit(self, what: str = "commit a transaction") -> None:
        """Commit the transaction. When it returns, the records are durable and visible."""
        if not self.is_open:
            return
        self.records.flush()
        self._retry(lambda: self._client.commit_transaction(_SLICE_S), what)
        self.is_open = False

    def close(self) -> None:
        """Abort an open transaction if the broker can be reached."""
        with contextlib.suppress(*RAISED, RuntimeError):
            self._client.purge()
            try:
                if self.is_open:
                    self._client.abort_transaction(ABORT_S)
            except RAISED:  # another producer has taken over
                self._client.flush(1.0)
        self.is_open = False

    def _plain_settings(self) -> dict[str, Any]:
        """Return the settings without those of transactions."""
        given = self._settings
        return {key: given[key] for key in given if not key.startswith("transaction")}

    def _group_metadata(self) -> object:
        """Return the metadata of the group. Only a consumer has it; no request is sent."""
        settings = {**self._plain_settings(), "group.id": self._name}
        consumer = self._make(Consumer, settings, LastError())
        try:
            return consumer.consumer_group_metadata()
        finally:
            consumer.close()

    def _retry(
        self,
        ask: Callable[[], Answer],
        what: str,
        last: LastError | None = None,
        *,
        also: frozenset[int] = frozenset(),
    ) -> Answer:
        """Repeat a request until it succeeds or fails with a permanent error.

        Args:
            what: What the request does, for messages.
            also: Codes of temporary errors, besides those that the client marks as retriable.
        """
        last = last or self.records.last
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return ask()
            except RAISED as error:
                if last.is_permanent:
                    servers = str(self._settings["bootstrap.servers"])
                    cause = last.text.removeprefix(": ")
                    raise self._errors.rejected(servers, cause) from error
                reason = error_in(error)
                if reason is None or not (reason.retriable() or reason.code() in also):
                    code, cause = self.records.explain(error)
                    raise self._errors.refused(what, f"{cause}{last.text}", code) from error
                if time.monotonic() > deadline:
                    cause = last.text.removeprefix(": ") or reason.str()
                    raise self._errors.not_answered(what, cause) from error
            time.sleep(_PAUSE_S)
