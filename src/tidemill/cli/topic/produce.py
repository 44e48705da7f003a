"""``tidemill topic produce``: writes records from stdin to a topic."""

from __future__ import annotations

import enum
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import output
from tidemill.cli.client import REQUEST_SECONDS, Cluster, error_text
from tidemill.cli.options import LOCAL, Brokers, Json, TopicName, pair_list
from tidemill.cli.outage import Outage
from tidemill.errors import TidemillError, UnknownTopicOrPartitionError
from tidemill.record_json import InputRecord, from_line

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

SHOWN_FAILURES = 10
DELIVERY_SECONDS = 30
LARGEST_RECORD = 1_000_000_000
"""The largest possible limit of librdkafka, so that the limit of the topic applies."""


class InputFormat(enum.StrEnum):
    """The format of the records on stdin."""

    LINES = "lines"
    JSON = "json"


class AcksChoice(enum.StrEnum):
    """The acknowledgement that the producer waits for."""

    ALL = "all"
    ONE = "1"
    NONE = "0"


class Compression(enum.StrEnum):
    """The compression of record batches."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


Format = Annotated[
    InputFormat,
    typer.Option(
        "--format",
        help="lines: a value per line, which ends with LF or CR LF; json: an object per line, "
        "with value, key, headers, partition, timestamp.",
    ),
]
Key = Annotated[
    str | None, typer.Option("--key", "-k", metavar="TEXT", help="Key of every record.")
]
KeySeparator = Annotated[
    str | None,
    typer.Option(
        "--key-separator", metavar="TEXT", help="Separator between key and value on a line."
    ),
]
Header = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="KEY=VALUE", help="Header of every record."),
]
Partition = Annotated[
    int | None,
    typer.Option(
        "--partition",
        metavar="N",
        min=0,
        help="Partition; default: by key, or spread if there is no key.",
    ),
]
Acks = Annotated[
    AcksChoice,
    typer.Option(
        "--acks", help="Wait until records are on disk (all), are written (1), or don't wait (0)."
    ),
]
Codec = Annotated[
    Compression, typer.Option("--compression", help="Compression of the record batches.")
]


def produce(
    topic: TopicName,
    input_format: Format = InputFormat.LINES,
    key: Key = None,
    key_separator: KeySeparator = None,
    header: Header = None,
    partition: Partition = None,
    acks: Acks = AcksChoice.ALL,
    compression: Codec = Compression.NONE,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Produce records from stdin.

    Lines that fail are listed, and the exit code is 1. If the topic does not exist, the broker
    creates it with the first record, if its settings allow that.
    """
    if key_separator is not None and (key is not None or input_format is InputFormat.JSON):
        raise output.UsageError("--key-separator can't be used with --key or --format json")
    headers = [(name, value.encode()) for name, value in pair_list(header, "--header")]
    cluster = Cluster.at(brokers)
    outage = Outage(cluster)
    producer = cluster.producer(
        outage.on_error,
        acks=acks.value,
        enable_idempotence=acks is AcksChoice.ALL,
        compression_type=compression.value,
        linger_ms=5,
        message_max_bytes=LARGEST_RECORD,
        message_timeout_ms=DELIVERY_SECONDS * 1000,
    )
    if sys.stdin.isatty():
        output.note("Enter one record per line. Ctrl-D ends.")
    lines = _lines_for(cluster, producer, topic)
    sending = _Sending(cluster, producer, topic, outage)
    started = time.monotonic()
    for number, line in enumerate(lines, 1):
        try:
            record = _record(line, input_format, key_separator)
        except ValueError as error:
            sending.failed(number, str(error))
            continue
        if key is not None and record.key is None:
            record.key = key.encode()
        record.headers = [*headers, *record.headers]
        if record.partition is None:
            record.partition = partition
        sending.send(number, record)
    sending.finish()
    sending.report(topic, time.monotonic() - started, as_json=as_json)


def _lines() -> Iterator[bytes]:
    """Yield the lines of stdin without their ends: LF, or CR LF as in files of Windows."""
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line


def _lines_for(cluster: Cluster, producer: Producer, topic: str) -> Iterator[bytes]:
    """Return the lines of stdin after the topic is there."""
    lines = _lines()
    try:
        cluster.describe_topic(topic)  # unlike a producer's metadata request, it creates nothing
    except UnknownTopicOrPartitionError:
        first = next(lines, None)
        if first is None:
            raise
        _wait_for_topic(cluster, producer, topic)
        output.note(f"Topic {topic} did not exist: the broker has created it.")
        return chain([first], lines)
    _wait_for_topic(cluster, producer, topic)
    return lines


def _record(line: bytes, input_format: InputFormat, key_separator: str | None) -> InputRecord:
    """Return the record in a line of stdin."""
    if input_format is InputFormat.JSON:
        return from_line(line)
    if key_separator is None:
        return InputRecord(None, line)
    key, separator, value = line.partition(key_separator.encode())
    if not separator:
        raise ValueError(f"key separator {key_separator!r} not found")
    return InputRecord(key, value)


def _wait_for_topic(cluster: Cluster, producer: Producer, topic: str) -> None:
    """Wait until the topic is there. The broker creates it, if its settings allow that."""
    from confluent_kafka import KafkaError

    deadline = time.monotonic() + REQUEST_SECONDS
    while True:
        metadata = cluster.ask(
            f"topic {topic}", lambda: producer.list_topics(topic, timeout=REQUEST_SECONDS)
        )
        error: KafkaError | None = metadata.topics[topic].error
        if error is None:
            return
        creating = error.code() in (
            KafkaError.LEADER_NOT_AVAILABLE,
            KafkaError.UNKNOWN_TOPIC_OR_PART,
        )
        if not creating or time.monotonic() > deadline - REQUEST_SECONDS * 0.8:
            failure = cluster.translate(error, f"topic {topic}")
            if isinstance(failure, UnknownTopicOrPartitionError):
                failure.hint = f"Create it: tidemill topic create {topic}"
            raise failure
        time.sleep(0.1)


def _delivery_seconds(cluster: Cluster) -> float:
    """Return how long librdkafka tries to deliver a record."""
    names = ("message.timeout.ms", "delivery.timeout.ms")  # two names of one property
    given = next((cluster.properties[name] for name in names if name in cluster.properties), None)
    return DELIVERY_SECONDS if given is None else float(given) / 1000


class _Sending:
    """Sends records, and counts those that were delivered and those that failed."""

    def __init__(self, cluster: Cluster, producer: Producer, topic: str, outage: Outage) -> None:
        self._outage = outage
        self._cluster = cluster
        self._producer = producer
        self._topic = topic
        self._failures: list[tuple[int, str]] = []
        self._hint = ""
        self._failed_count = 0
        self._delivered_count = 0

    def send(self, number: int, record: InputRecord) -> None:
        """Queue the record of line ``number``. This waits while the client's queue is full."""
        from confluent_kafka import KafkaException

        options = {}
        if record.partition is not None:
            options["partition"] = record.partition
        if record.timestamp_ms is not None:
            options["timestamp"] = record.timestamp_ms
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    record.value,
                    record.key,
                    headers=[*record.headers] or None,
                    on_delivery=partial(self._delivered, number),
                    **options,  # type: ignore[arg-type]
                )
            except BufferError:
                self._producer.poll(0.1)
                self._outage.check()
            except KafkaException as error:
                self._refused(number, error.args[0])
                return
            else:
                self._producer.poll(0)
                return

    def _delivered(self, number: int, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._delivered_count += 1
        else:
            self._refused(number, error)

    def _refused(self, number: int, error: KafkaError) -> None:
        from confluent_kafka import KafkaError

        reason = error_text(error)
        if error.code() == KafkaError._UNKNOWN_PARTITION:
            reason = f"topic {self._topic} has no such partition"
        elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._hint = (
                "Increase the limit: tidemill topic alter "
                f"{self._topic} --set max.message.bytes=N; or try --compression zstd."
            )
        elif error.code() == KafkaError._MSG_TIMED_OUT:
            self._hint = (
                f"The broker did not accept them within {_delivery_seconds(self._cluster):g} s. "
                "See its log, which may report a full disk, and: tidemill doctor"
            )
        self.failed(number, reason)

    def failed(self, number: int, reason: str) -> None:
        """Note that line ``number`` was not written."""
        self._failed_count += 1
        self._failures.append((number, reason))
        self._failures = sorted(self._failures)[:SHOWN_FAILURES]

    def finish(self) -> None:
        """Wait until each record was delivered or has failed."""
        while self._producer.flush(1.0):
            self._outage.check()

    def report(self, topic: str, seconds: float, *, as_json: bool) -> None:
        """Print the result."""
        if as_json:
            output.emit_json(
                {
                    "topic": topic,
                    "delivered": self._delivered_count,
                    "failed": self._failed_count,
                    "failures": [{"line": n, "reason": reason} for n, reason in self._failures],
                }
            )
        else:
            records = output.plural(self._delivered_count, "record")
            output.note(f"{records} to {topic} in {seconds:.1f} s")
        if not self._failed_count:
            return
        for number, reason in self._failures:
            output.error(f"line {number}: {reason}")
        hidden = self._failed_count - len(self._failures)
        more = f" (the first {len(self._failures)} are listed)" if hidden else ""
        total = self._failed_count + self._delivered_count
        raise TidemillError(
            f"{self._failed_count:,} of {output.plural(total, 'record')} "
            f"{'was' if self._failed_count == 1 else 'were'} not written to {topic}{more}",
            hint=self._hint,
        )
