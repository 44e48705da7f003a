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

The producer is our own, or librdkafka's for settings that ours does not understand. One of our own
is an id and a few numbers, and shares its connections with the next task.

Must not know: Spark, options' names, queries. Sources: KIP-98, KIP-129 (the idea in Kafka Streams),
KIP-447.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from tidemill.confluent.pooling import ClientPool
from tidemill.confluent.producing import TransactionalProducer as LibrdkafkaProducer
from tidemill.kafka_client.producing.transactional import TransactionalProducer
from tidemill.spark.errors import DeliveryError
from tidemill.spark.sinks.topic.delivery import librdkafka, own
from tidemill.spark.sinks.topic.delivery.at_least_once import producer_settings, use_own
from tidemill.spark.sinks.topic.delivery.share import (
    Share,
    check_marker,
    marker_of,
    timed_out,
)

__all__ = ["Share", "close_idle_writers", "transactional_settings", "write_share"]

TRANSACTION_TIMEOUT_MS = 120_000
"""The broker aborts the transaction of a dead task after this time, and readers continue. The next
attempt of the task aborts it immediately."""
_POOLED = 32
"""Most producers of librdkafka that a process keeps. Each costs four threads, eight file
descriptors and half a megabyte."""
_POOLED_OWN = 1024
"""Most producers of our own that a process keeps. They cost nothing but their sequence numbers."""


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
    rows = 0
    try:
        for batch in itertools.chain([first], rest):
            writer.send(batch, topic)
            rows += batch.num_rows
        writer.client.commit(f"commit batch {share.batch_id}")
    except BaseException as error:
        writer.client.close()
        timeout_s = int(settings["transaction.timeout.ms"]) / 1000
        if isinstance(error, DeliveryError) and time.monotonic() - writer.began >= timeout_s:
            raise timed_out(share, timeout_s) from error
        raise
    writer.next_batch = share.batch_id + 1
    _give(settings, writer)
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
    for pool in _pools.values():
        pool.clear()
    own.close_idle()


@dataclass(slots=True)
class _Writer:
    """A transactional producer that has fenced all others with its transactional id.

    Attributes:
        next_batch: First batch whose share is not written to ``marker_topic``, unless another
            producer has fenced this one.
        run: The run of the share that it was created for.
        owner: The query of the share that it was created for.
        began: When its last transaction began, on the monotonic clock in seconds.
    """

    client: TransactionalProducer | LibrdkafkaProducer
    next_batch: int
    run: str
    owner: str
    marker_topic: str
    began: float = 0.0

    def send(self, batch: pa.RecordBatch, topic: str | None) -> None:
        """Send rows, or keep them for a moment."""
        if isinstance(self.client, TransactionalProducer):
            own.send_rows(self.client, batch, topic)
        else:
            librdkafka.send_rows(self.client.records, batch, topic)

    def can_continue_with(self, share: Share, marker_topic: str) -> bool:
        """Whether the marker that it knows was checked for this share's query and run."""
        known = (self.run, self.owner, self.marker_topic)
        is_same = known == (share.run, share.owner, marker_topic)
        # Spark runs only its last batch again, so an earlier one is another query's.
        return is_same and share.batch_id >= self.next_batch - 1


def _close(writer: _Writer | None) -> None:
    if writer is not None:
        writer.client.close()


_pools: dict[bool, ClientPool[_Writer | None]] = {
    True: ClientPool(_close, limit=_POOLED_OWN),
    False: ClientPool(_close, limit=_POOLED),
}
"""The idle producers of this process, by whether they are our own."""


def _give(settings: Mapping[str, str], writer: _Writer) -> None:
    is_own = isinstance(writer.client, TransactionalProducer)
    if isinstance(writer.client, TransactionalProducer):
        own.rest(writer.client, settings)
    _pools[is_own].give(settings, writer)


def _begin(settings: Mapping[str, str], share: Share, marker_topic: str) -> _Writer | None:
    """Return a writer whose open transaction contains the marker; None if the share is written.

    It is the writer of an earlier batch in the same run, or a new one. No row has been sent yet.
    """
    pooled = _pools[True].take(settings, lambda: None) if use_own() else None
    pooled = pooled or _pools[False].take(settings, lambda: None)
    if pooled is not None:
        if pooled.can_continue_with(share, marker_topic):
            # Another process may have fenced it, or the broker may have forgotten its producer id.
            with contextlib.suppress(DeliveryError):
                return _begin_with(pooled, settings, share)
        else:
            pooled.client.close()
    return _begin_with(_connect(settings, share, marker_topic), settings, share)


def _begin_with(writer: _Writer, settings: Mapping[str, str], share: Share) -> _Writer | None:
    if writer.next_batch > share.batch_id:
        _give(settings, writer)
        return None
    try:
        writer.began = time.monotonic()
        writer.client.begin(f"begin the transaction of batch {share.batch_id}")
        writer.client.mark(writer.marker_topic, marker_of(share))
    except BaseException:
        writer.client.close()
        raise
    return writer


def _connect(settings: Mapping[str, str], share: Share, marker_topic: str) -> _Writer:
    client = (use_own() and own.transactional(settings)) or librdkafka.transactional(settings)
    try:
        client.start(topic=marker_topic)
        what = f"read whether batch {share.batch_id} was written by {share.name}"
        marker = client.marker(marker_topic, what)
        check_marker(marker, share, marker_topic)
    except BaseException:
        client.close()
        raise
    return _Writer(
        client=client,
        next_batch=max(marker.offset, 0),
        run=share.run,
        owner=share.owner,
        marker_topic=marker_topic,
    )
