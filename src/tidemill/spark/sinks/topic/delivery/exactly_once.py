"""Writes Arrow rows to topics exactly once: rows and their marker in one transaction.

Spark runs a task again after a crash, and a whole batch again after a restart, with the same rows.
So each task's part of a batch (a share) is written in one Kafka transaction that also commits an
offset, the marker: position ``(topic, 0)`` of the consumer group ``<sink>-<task>`` becomes the
number of the batch plus one. Either both rows and marker are committed or neither, and a task that
finds its marker writes nothing. An earlier attempt that still runs can't commit any more, because
the new producer has the same transactional id and fences it.

A process keeps its producers for the next batches of the same run. A producer that is not fenced
has written the last marker of its task, because a marker is only written by a producer with the
task's transactional id, and each new one fences those before. So a kept producer need not read the
marker again, however many batches had no rows. It writes its marker first: if a worker of another
process has taken over meanwhile, the broker says so before a row is sent, and a new producer takes
over in turn.

Must not know: Spark, options' names, queries. Sources: KIP-98, KIP-129 (the idea in Kafka Streams),
KIP-447.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

import pyarrow as pa
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tidemill.errors import UnreachableError
from tidemill.spark.base.clients import RAISED, RETRIABLE, ClientPool, LastError, make_client
from tidemill.spark.errors import CheckpointRestoredError, DeliveryError, with_note
from tidemill.spark.sinks.topic.delivery.at_least_once import (
    Outcome,
    Sender,
    make_producer,
    producer_settings,
)

TRANSACTION_TIMEOUT_MS = 120_000
"""The broker aborts the transaction of a dead task after this time, and readers continue. The next
attempt of the task aborts it immediately."""
# Errors of a coordinator that is starting, or that is still writing the offset.
_NOT_YET = RETRIABLE | {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
}
_REQUEST_S = 30.0
_POOLED = 32
"""Most producers that a process keeps. Each costs four threads, eight file descriptors and half a
megabyte."""
_PAUSE_S = 0.05

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a batch that one task writes.

    Attributes:
        sink_id: Name of the output of one query. Two checkpoints must not share it.
        task: Number of the task within the batch, from 0.
        batch_id: Number of the batch. A later batch has a greater number.
        owner: Id of the query, which its checkpoint keeps; empty if there is none.
        run: Identifies the run of the query and the attempt of the task. A batch may have been
            tried before in another run or attempt.
        fingerprint: Fingerprint of what the batch reads; empty if it is not known.
    """

    sink_id: str
    task: int
    batch_id: int
    owner: str = ""
    run: str = ""
    fingerprint: str = ""

    @property
    def name(self) -> str:
        """Transactional id and consumer group of all shares with this task number."""
        return f"{self.sink_id}-{self.task}"


def write_share(
    batches: Iterable[pa.RecordBatch],
    topic: str | None,
    kafka: Mapping[str, str],
    share: Share,
    *,
    marker_topic: str,
) -> int:
    """Write the rows of a share, all of them or none, unless they were written before.

    Args:
        batches: Rows with the columns of ``at_least_once.write_rows``.
        topic: Topic for all rows; None for the topic in each row.
        kafka: The user's settings of librdkafka.
        share: Identifies the rows.
        marker_topic: Topic that the committed offset names. It must exist and must not change.

    Returns:
        The number of rows written: 0 if the share was written before.

    Raises:
        DeliveryError: Readers of committed records see no row of the share, for example because it
            took longer than ``transaction.timeout.ms``. Or the response to a commit was lost, and
            they see either all rows or none.
        UnreachableError: The brokers did not answer in time.
        OptionError: librdkafka does not know a setting.
    """
    rest = iter(batches)
    first = next((batch for batch in rest if batch.num_rows), None)
    if first is None:
        return 0
    settings = transactional_settings(kafka, share.name)
    writer = _begin(settings, share, marker_topic)
    if writer is None:
        return 0
    try:
        rows = _write(writer, itertools.chain([first], rest), topic, share)
    except BaseException as error:
        _pool.drop(writer)  # aborts the transaction if the broker can be reached
        timeout_s = int(settings["transaction.timeout.ms"]) / 1000
        if isinstance(error, DeliveryError) and time.monotonic() - writer.began >= timeout_s:
            raise _timed_out(share, timeout_s) from error
        raise
    writer.next_batch = share.batch_id + 1
    _pool.give(settings, writer)
    return rows


def transactional_settings(kafka: Mapping[str, str], transactional_id: str) -> dict[str, str]:
    """Return the settings of a transactional producer: the user's, then the defaults."""
    timeout = kafka.get("transaction.timeout.ms", str(TRANSACTION_TIMEOUT_MS))
    # By default librdkafka 2.16 forgets its brokers when none answers. It may then never send the
    # offsets of a transaction, although the broker is back.
    settings = {
        "metadata.recovery.strategy": "none",
        **producer_settings(kafka),
        "transaction.timeout.ms": timeout,
    }
    if int(settings["message.timeout.ms"]) > int(timeout):
        settings["message.timeout.ms"] = timeout  # librdkafka requires it
    return {**settings, "transactional.id": transactional_id}


def close_idle_writers() -> None:
    """Close the transactional producers that this process keeps for its next task."""
    _pool.clear()


@dataclass(slots=True)
class _Writer:
    """A transactional producer that has fenced all others with its transactional id.

    Attributes:
        producer: The client.
        outcome: Counts its failed records.
        last_error: Its last error.
        group: Metadata of the consumer group, as the client needs it.
        next_batch: First batch whose share is not written to ``marker_topic``, unless another
            producer has fenced this one.
        run: The run of the share that it was created for.
        owner: The query of the share that it was created for.
        marker_topic: The topic of the marker that it has read.
        servers: Addresses of the brokers, for messages.
        began: When its last transaction began, on the monotonic clock in seconds.
    """

    producer: Producer
    outcome: Outcome
    last_error: LastError
    group: object
    next_batch: int
    run: str
    owner: str
    marker_topic: str
    servers: str
    began: float = 0.0

    def can_continue_with(self, share: Share, marker_topic: str) -> bool:
        """Whether the marker that it knows was checked for this share's query and run."""
        known = (self.run, self.owner, self.marker_topic)
        is_same = known == (share.run, share.owner, marker_topic)
        # Spark runs only its last batch again, so an earlier one is another query's.
        return is_same and share.batch_id >= self.next_batch - 1


def _close(writer: _Writer | None) -> None:
    if writer is None:
        return
    writer.producer.purge()
    try:
        writer.producer.abort_transaction(_REQUEST_S)
    except RAISED:
        # None was open, or another producer has taken over.
        with contextlib.suppress(*RAISED):
            writer.producer.flush(1.0)


_pool: ClientPool[_Writer | None] = ClientPool(_close, limit=_POOLED)


def _begin(settings: Mapping[str, str], share: Share, marker_topic: str) -> _Writer | None:
    """Return a writer whose open transaction contains the marker; None if the share is written.

    It is the writer of an earlier batch in the same run, or a new one. No row has been sent yet.
    """
    pooled = _pool.take(settings, lambda: None)
    if pooled is not None:
        if pooled.can_continue_with(share, marker_topic):
            # Another process may have fenced it, or the broker may have forgotten its producer id.
            with contextlib.suppress(DeliveryError):
                return _begin_with(pooled, settings, share)
        else:
            _pool.drop(pooled)
    return _begin_with(_connect(settings, share, marker_topic), settings, share)


def _begin_with(writer: _Writer, settings: Mapping[str, str], share: Share) -> _Writer | None:
    if writer.next_batch > share.batch_id:
        _pool.give(settings, writer)
        return None
    try:
        _add_marker(writer, share)
    except BaseException:
        _pool.drop(writer)
        raise
    return writer


def _connect(settings: Mapping[str, str], share: Share, marker_topic: str) -> _Writer:
    last = LastError()
    producer, outcome = make_producer(settings, last)
    servers = settings["bootstrap.servers"]
    # Without these requests librdkafka takes half a second to ask for its producer id: it looks for
    # the coordinator before it is connected, and after that only every 500 ms. The first answer
    # comes from a bootstrap server, whose connection librdkafka then closes; the second one comes
    # from a broker. A broker that creates topics by itself does so now: the marker is written
    # before the rows, and a marker for a topic that does not exist is refused.
    with contextlib.suppress(KafkaException):  # a real error occurs again below
        producer.list_topics(marker_topic, timeout=_REQUEST_S)
        producer.list_topics(marker_topic, timeout=_REQUEST_S)
    # Fence an earlier attempt and end its open transaction before the marker is read.
    _retry(lambda: producer.init_transactions(_REQUEST_S), "start a producer", servers, last)
    marker = _read_marker(settings, share, marker_topic)
    _check_marker(marker, share, marker_topic)
    group = _group_metadata(settings, share)
    return _Writer(
        producer=producer,
        outcome=outcome,
        last_error=last,
        group=group,
        next_batch=max(marker.offset, 0),
        run=share.run,
        owner=share.owner,
        marker_topic=marker_topic,
        servers=servers,
    )


def _group_metadata(settings: Mapping[str, str], share: Share) -> object:
    """Return the metadata of the consumer group. Only a consumer has it; no request is sent."""
    consumer = make_client(Consumer, {**_client(settings), "group.id": share.name}, LastError())
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


def _read_marker(settings: Mapping[str, str], share: Share, marker_topic: str) -> TopicPartition:
    """Return the committed offset of the group with its metadata; below 0 if there is none."""
    last, servers = LastError(), settings["bootstrap.servers"]
    # A consumer would take half a second to find its coordinator.
    admin = make_client(AdminClient, _client(settings), last)
    wanted = ConsumerGroupTopicPartitions(share.name, [TopicPartition(marker_topic, 0)])

    def ask() -> TopicPartition:
        answers = admin.list_consumer_group_offsets(
            [wanted], require_stable=True, request_timeout=_REQUEST_S
        )
        (answer,) = answers[share.name].result(2 * _REQUEST_S).topic_partitions
        if answer.error is not None:
            raise KafkaException(answer.error)
        return cast(TopicPartition, answer)

    what = f"read whether batch {share.batch_id} was written by {share.name}"
    return _retry(ask, what, servers, last, also=_NOT_YET)


def _client(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings without those of transactions."""
    return {key: settings[key] for key in settings if not key.startswith("transaction")}


def _check_marker(marker: TopicPartition, share: Share, marker_topic: str) -> None:
    """Check that a marker was written by this query, because its rows would be skipped otherwise.

    Spark runs only the last batch of a checkpoint again, so a marker of a later batch is foreign.
    A marker of the same batch is foreign if the fingerprint differs: the checkpoint was restored
    from a backup and planned the batch again.

    Raises:
        DeliveryError: Another query or checkpoint wrote the marker.
        CheckpointRestoredError: The marker has another fingerprint.
    """
    content = _content_of(marker)
    owner, fingerprint = content.get("query", ""), content.get("plan", "")
    of_another = bool(owner and share.owner and owner != share.owner)
    if of_another or marker.offset > share.batch_id + 1:
        raise with_note(
            DeliveryError(
                f"the query of another checkpoint wrote batch {marker.offset - 1} to "
                f"{marker_topic} with sink id {share.sink_id!r}, and batch {share.batch_id} would "
                "be skipped",
                hint="Use a new sinkId for a new checkpoint.",
            )
        )
    is_same_batch = marker.offset == share.batch_id + 1
    if is_same_batch and fingerprint and share.fingerprint not in ("", fingerprint):
        raise with_note(
            CheckpointRestoredError(
                f"batch {share.batch_id} was already written to {marker_topic} with sink id "
                f"{share.sink_id!r}, and the checkpoint has planned it again: it was restored from "
                "a backup, or copied",
                hint="Start the query with a new checkpoint (tidemill pipeline reset) and a new "
                "sinkId.",
            )
        )


def _content_of(marker: TopicPartition) -> dict[str, str]:
    """Return the metadata of a marker: who wrote it, and the fingerprint of the batch."""
    try:
        content = json.loads(marker.metadata or "{}")
    except ValueError:
        return {}
    return {key: str(content[key]) for key in content} if isinstance(content, dict) else {}


def _add_marker(writer: _Writer, share: Share) -> None:
    """Begin a transaction, and add the marker to it.

    Raises:
        DeliveryError: The producer is fenced, or can't begin a transaction for another reason.
        UnreachableError: The brokers did not answer in time.
    """
    content = {"sink": share.sink_id, "task": share.task, "batch": share.batch_id}
    plan = {"plan": share.fingerprint} if share.fingerprint else {}
    text = json.dumps({**content, "query": share.owner, **plan})
    offset = TopicPartition(writer.marker_topic, 0, share.batch_id + 1, text)

    def add() -> None:
        writer.producer.send_offsets_to_transaction([offset], writer.group, _REQUEST_S)

    what = f"begin the transaction of batch {share.batch_id}"
    writer.began = time.monotonic()
    _retry(writer.producer.begin_transaction, what, writer.servers, writer.last_error)
    _retry(add, what, writer.servers, writer.last_error)


def _timed_out(share: Share, timeout_s: float) -> DeliveryError:
    """Return the error for a transaction that the broker aborted because it was open too long."""
    return with_note(
        DeliveryError(
            f"task {share.task} of batch {share.batch_id} took longer than the transaction timeout "
            f"of {timeout_s:g} s, so the broker aborted its transaction",
            hint="A restart runs the same batch again: set kafka.transaction.timeout.ms to more, "
            "900000 at most by default. Set maxOffsetsPerTrigger (max_offsets_per_trigger of a "
            "stream) so that later batches are smaller.",
        )
    )


def _write(
    writer: _Writer, batches: Iterator[pa.RecordBatch], topic: str | None, share: Share
) -> int:
    """Send the rows in the open transaction, and commit it. Return the number of rows."""
    servers = writer.servers
    sender = Sender(writer.producer, writer.outcome, writer.last_error, servers)
    rows = 0
    for batch in batches:
        sender.send(batch, topic)
        rows += batch.num_rows
    sender.flush()
    what = f"commit batch {share.batch_id}"
    _retry(lambda: writer.producer.commit_transaction(_REQUEST_S), what, servers, writer.last_error)
    return rows


def _retry(
    ask: Callable[[], Answer],
    what: str,
    servers: str,
    last: LastError,
    *,
    also: frozenset[int] = frozenset(),
) -> Answer:
    """Repeat a request until it succeeds or fails with a permanent error.

    Args:
        ask: Sends the request.
        what: What the request does, for messages.
        servers: Addresses of the brokers, for messages.
        last: The last error of the client.
        also: Codes of temporary errors, besides those that the client marks as retriable.

    Raises:
        DeliveryError: The transaction can't continue, or another producer has fenced this one.
        UnreachableError: There was no answer within the timeout of the transaction.
    """
    deadline = time.monotonic() + TRANSACTION_TIMEOUT_MS / 1000
    while True:
        try:
            return ask()
        except KafkaException as error:
            reason = error.args[0]
            last.raise_if_permanent(servers)
            if not reason.retriable() and reason.code() not in also:
                raise with_note(
                    DeliveryError(
                        f"could not {what}: {reason.str()}{last.text}",
                        hint="Readers of committed records see all rows of the task or none. A "
                        "restart writes what is missing.",
                    )
                ) from error
            if time.monotonic() > deadline:
                raise with_note(
                    UnreachableError(f"the brokers did not answer in time to {what}{last.text}")
                ) from error
        time.sleep(_PAUSE_S)
