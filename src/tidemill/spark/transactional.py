"""Rows to topics exactly once: a task's rows, and the note that it wrote them, in one transaction.

Spark runs a task again after a crash, and a whole batch again after a restart, with the same rows.
So each share of a batch is written in one Kafka transaction that also commits an offset: position
``(topic, 0)`` of the consumer group ``<sink>-<task>`` moves to the batch's number plus one. Rows
and note are there both or neither, and whoever finds the note writes nothing. An earlier attempt
that still runs can't commit any more: the transactional id is the same, and a new producer fences
it.

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

from tidemill.errors import CheckpointRestoredError, DeliveryError, UnreachableError
from tidemill.spark.clients import RAISED, RETRIABLE, ClientPool, LastError, make_client
from tidemill.spark.deliver import Outcome, Sender, make_producer, producer_settings
from tidemill.spark.options import noted

TRANSACTION_TIMEOUT_MS = 120_000
"""A transaction whose task died is aborted after it at the latest, and readers go on; the next
attempt of the task aborts it at once."""
# An offset is asked of a coordinator that may just be starting, or writing it.
_NOT_YET = RETRIABLE | {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
}
_REQUEST_S = 30.0
_POOLED = 8
_PAUSE_S = 0.05

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Share:
    """One task's share of one batch.

    Attributes:
        sink_id: of one query's output: no two checkpoints may share it.
        task: number of the task within the batch, from 0.
        batch_id: number of the batch; a later batch has a higher one.
        owner: of the sink: its query's id, which its checkpoint keeps; empty where there is none.
        run: differs where this batch may have been tried before: by an earlier start of the query,
            or by an earlier attempt of the task.
        plan: of the batch: differs where other records are meant by its number; empty where it is
            not known.
    """

    sink_id: str
    task: int
    batch_id: int
    owner: str = ""
    run: str = ""
    plan: str = ""

    @property
    def name(self) -> str:
        """Transactional id and consumer group of all batches' shares with this task number."""
        return f"{self.sink_id}-{self.task}"


def write_share(
    batches: Iterable[pa.RecordBatch],
    topic: str | None,
    kafka: Mapping[str, str],
    share: Share,
    *,
    marker_topic: str,
) -> int:
    """Write a share's rows, unless that has been done; all of them or none.

    Args:
        batches: columns as of ``deliver.write_rows``.
        topic: for all rows; None takes each row's.
        kafka: the user's librdkafka settings.
        share: which rows these are.
        marker_topic: topic that the committed offset names; it must exist, and stay the same.

    Returns:
        The number of rows written: 0 where the share was written before.

    Raises:
        DeliveryError: nothing of the share is in the topic for readers of committed records, or a
            commit's answer was lost: then either all is there or nothing.
        UnreachableError: the brokers did not answer in time.
        OptionError: librdkafka does not know a setting.
    """
    rest = iter(batches)
    first = next((batch for batch in rest if batch.num_rows), None)
    if first is None:
        return 0
    settings = transactional_settings(kafka, share.name)
    writer = _take(settings, share, marker_topic)
    if writer.next_batch > share.batch_id:
        _pool.give(settings, writer)
        return 0
    try:
        rows = _write(writer, itertools.chain([first], rest), topic, share, marker_topic)
    except BaseException:
        _pool.drop(writer)  # ends the transaction, as far as the broker can be reached
        raise
    writer.next_batch = share.batch_id + 1
    _pool.give(settings, writer)
    return rows


def transactional_settings(kafka: Mapping[str, str], transactional_id: str) -> dict[str, str]:
    """The user's settings over the defaults, for a transactional producer."""
    timeout = kafka.get("transaction.timeout.ms", str(TRANSACTION_TIMEOUT_MS))
    # By default librdkafka 2.16 forgets its brokers when none answers, and may then never send the
    # offsets of a transaction again, though the broker is back.
    settings = {
        "metadata.recovery.strategy": "none",
        **producer_settings(kafka),
        "transaction.timeout.ms": timeout,
    }
    if int(settings["message.timeout.ms"]) > int(timeout):
        settings["message.timeout.ms"] = timeout  # librdkafka insists on it
    return {**settings, "transactional.id": transactional_id}


def close_idle_writers() -> None:
    """Close the transactional producers that this process keeps for its next task."""
    _pool.clear()


@dataclass(slots=True)
class _Writer:
    """A transactional producer that has fenced all others of its name.

    Attributes:
        group: the consumer group's metadata, as the client wants it.
        next_batch: first batch whose share is not written to ``marker_topic``, as far as this
            process knows.
        run: of the share that it was made for.
        marker_topic: whose notes it has read.
    """

    producer: Producer
    outcome: Outcome
    last_error: LastError
    group: object
    next_batch: int
    run: str
    marker_topic: str
    servers: str

    def goes_on_with(self, share: Share, marker_topic: str) -> bool:
        """Whether nobody else can have written in between, so that its knowledge holds."""
        same = (self.run, self.marker_topic) == (share.run, marker_topic)
        return same and self.next_batch >= share.batch_id


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


def _take(settings: Mapping[str, str], share: Share, marker_topic: str) -> _Writer:
    """A writer of this process that wrote the batch before in the same run, or a new one.

    Only then has nobody else written in between: with any other, the first thing that the broker
    said would be that it is fenced, when the rows have been taken from Spark.
    """
    pooled = _pool.take(settings, lambda: None)
    if pooled is not None and pooled.goes_on_with(share, marker_topic):
        return pooled
    if pooled is not None:
        _pool.drop(pooled)
    return _connect(settings, share, marker_topic)


def _connect(settings: Mapping[str, str], share: Share, marker_topic: str) -> _Writer:
    last = LastError()
    producer, outcome = make_producer(settings, last)
    servers = settings["bootstrap.servers"]
    # Left to itself, librdkafka often takes half a second until it asks for its producer id: it
    # looks for the coordinator before it is connected, and then only every 500 ms.
    with contextlib.suppress(KafkaException):  # it will say so again
        producer.list_topics(timeout=_REQUEST_S)
    # Fences an earlier attempt, and ends what it left open: only then does the note tell the truth.
    _patiently(lambda: producer.init_transactions(_REQUEST_S), "start a producer", servers, last)
    note = _read_note(settings, share, marker_topic)
    _check_note(note, share, marker_topic)
    group = _group_metadata(settings, share)
    next_batch = max(note.offset, 0)
    return _Writer(producer, outcome, last, group, next_batch, share.run, marker_topic, servers)


def _group_metadata(settings: Mapping[str, str], share: Share) -> object:
    """The consumer group's metadata, which only a consumer can make; it asks nobody for it."""
    consumer = make_client(Consumer, {**_client(settings), "group.id": share.name}, LastError())
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


def _read_note(settings: Mapping[str, str], share: Share, marker_topic: str) -> TopicPartition:
    """The group's committed offset, with its text; below 0 where there is none."""
    last, servers = LastError(), settings["bootstrap.servers"]
    # Not by a consumer: it takes half a second to find its coordinator.
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
    return _patiently(ask, what, servers, last, also=_NOT_YET)


def _client(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings for a client that does not produce in a transaction."""
    return {key: settings[key] for key in settings if not key.startswith("transaction")}


def _check_note(note: TopicPartition, share: Share, marker_topic: str) -> None:
    """Whether a note is this sink's own: another's would have rows dropped in silence.

    Only the last batch of a checkpoint is ever run again, so a note of a later one is foreign, too.
    And so is one of this batch as it was planned before the checkpoint was put back from a backup:
    it may read other records now.

    Raises:
        DeliveryError: it is another's.
        CheckpointRestoredError: it is of another plan.
    """
    content = _content_of(note)
    owner, plan = content.get("query", ""), content.get("plan", "")
    of_another = bool(owner and share.owner and owner != share.owner)
    if of_another or note.offset > share.batch_id + 1:
        raise noted(
            DeliveryError(
                f"sink id {share.sink_id!r} has written batch {note.offset - 1} to {marker_topic}, "
                f"and batch {share.batch_id} comes now: that was another checkpoint's query",
                hint="Choose a new sinkId for a new checkpoint.",
            )
        )
    if note.offset == share.batch_id + 1 and plan and share.plan and plan != share.plan:
        raise noted(
            CheckpointRestoredError(
                f"sink id {share.sink_id!r} has written batch {share.batch_id} to {marker_topic}, "
                "and its checkpoint has planned it anew: it was put back from a backup, or copied",
                hint="Start the query afresh, with a new checkpoint (tidemill pipeline reset) and "
                "a new sinkId.",
            )
        )


def _content_of(note: TopicPartition) -> dict[str, str]:
    """What a note says: who wrote it, and of which plan, as far as it does."""
    try:
        content = json.loads(note.metadata or "{}")
    except ValueError:
        return {}
    return {key: str(content[key]) for key in content} if isinstance(content, dict) else {}


def _write(
    writer: _Writer,
    batches: Iterator[pa.RecordBatch],
    topic: str | None,
    share: Share,
    marker_topic: str,
) -> int:
    servers = writer.servers
    sender = Sender(writer.producer, writer.outcome, writer.last_error, servers)
    writer.producer.begin_transaction()
    rows = 0
    for batch in batches:
        sender.send(batch, topic)
        rows += batch.num_rows
    sender.flush()
    note = {"sink": share.sink_id, "task": share.task, "batch": share.batch_id}
    plan = {"plan": share.plan} if share.plan else {}
    text = json.dumps({**note, "query": share.owner, **plan})
    offset = TopicPartition(marker_topic, 0, share.batch_id + 1, text)
    what = f"commit batch {share.batch_id}"

    def add_note() -> None:
        writer.producer.send_offsets_to_transaction([offset], writer.group, _REQUEST_S)

    _patiently(add_note, what, servers, writer.last_error)
    _patiently(
        lambda: writer.producer.commit_transaction(_REQUEST_S), what, servers, writer.last_error
    )
    return rows


def _patiently(
    ask: Callable[[], Answer],
    what: str,
    servers: str,
    last: LastError,
    *,
    also: frozenset[int] = frozenset(),
) -> Answer:
    """Ask until the answer is no passing error.

    Args:
        also: codes of errors that pass, besides those that the client says so of.

    Raises:
        DeliveryError: the transaction can't go on, or another producer has taken over.
        UnreachableError: no answer within the transaction's time.
    """
    deadline = time.monotonic() + TRANSACTION_TIMEOUT_MS / 1000
    while True:
        try:
            return ask()
        except KafkaException as error:
            reason = error.args[0]
            last.raise_if_hopeless(servers)
            if not reason.retriable() and reason.code() not in also:
                raise noted(
                    DeliveryError(
                        f"could not {what}: {reason.str()}{last.text}",
                        hint="Readers of committed records see the whole share or nothing; a "
                        "restart writes what is missing.",
                    )
                ) from error
            if time.monotonic() > deadline:
                raise noted(
                    UnreachableError(f"the brokers did not answer in time to {what}{last.text}")
                ) from error
        time.sleep(_PAUSE_S)
