"""``tidemill topic consume``: records of a topic to stdout, as JSON lines or bare values.

Without a group it reads by itself and commits nothing. With a group it shares the partitions with
the group's other members and commits what was printed, in this order: write, flush, commit. So a
record may be printed twice after a crash, and none is skipped.
"""

from __future__ import annotations

import enum
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.client import (
    BOOTSTRAP_DEFAULT,
    REQUEST_SECONDS,
    Bootstrap,
    Cluster,
    Property,
    TopicPartitionKey,
    raise_if_failed,
)
from tidemill.cli.lag import held_back, note_held_back
from tidemill.cli.positions import HELP, Kind, Position, parse, resolve
from tidemill.cli.record_json import to_line
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

POLL_SECONDS = 0.2
BATCH_RECORDS = 1000
COMMIT_SECONDS = 1.0
OFFSET_END = -1
ISOLATION = "isolation.level"
ASSIGNMENT = "partition.assignment.strategy"
_REBALANCED = {"REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID"}


class OutputFormat(enum.StrEnum):
    """How records are printed."""

    JSON = "json"
    VALUES = "values"


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help=f"Where to start: {HELP} Default: end; with --group the committed offset.",
            show_default=False,
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", metavar="N", min=1, help="Stop after so many records."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", metavar="GROUP", help="Read as a member of a group and commit."
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", metavar="N", min=0, help="Only this partition."),
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", "--no-follow", help="Stop at the end of the topic.")
    ] = False,
    output_format: Annotated[
        OutputFormat,
        typer.Option("--format", help="json: an object a line; values: the value and a line feed."),
    ] = OutputFormat.JSON,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Print records and follow the topic, until Ctrl-C, --count or --until-end."""
    start = parse(from_, "--from") if from_ else None
    if group and partition:
        raise output.UsageError("--partition does not go with --group: the group assigns them")
    if group and start and start.kind not in (Kind.BEGINNING, Kind.END):
        raise output.UsageError(
            "--from is beginning or end with --group, and only for partitions without a commit",
            hint="Move a group with: tidemill group seek",
        )
    cluster = Cluster.at(servers, properties)
    printer = _Printer(output_format, count)
    reader: _Alone | _Member
    if group:
        reader = _Member(cluster, topic, group, start, until_end=until_end)
    else:
        reader = _Alone(cluster, topic, partition, start or Position(Kind.END), until_end=until_end)
    if start is None and not until_end:
        output.note("Waiting for new records; --from beginning shows those that are there.")
    with _stop_requests() as stop, reader:
        while not (stop.asked or printer.full or reader.at_end):
            for message in reader.poll():
                if not printer.full:
                    printer.write(message)
                    reader.printed(message)
            printer.flush()
            reader.flushed()
        held = until_end and reader.at_end and _is_held_back(cluster, reader.keys)
    output.note(output.plural(printer.count, "record"))
    if held:
        note_held_back([topic])


def _is_held_back(cluster: Cluster, keys: Sequence[TopicPartitionKey]) -> bool:
    """Whether an open transaction ended our reading. Only a note says so: nobody else is asked."""
    if not sys.stderr.isatty() or cluster.properties.get(ISOLATION) == "read_uncommitted":
        return False
    try:
        return held_back(cluster, keys)
    except TidemillError:  # all was read, and that is what the exit code says
        return False


class _Printer:
    """Writes records to stdout and counts them."""

    def __init__(self, output_format: OutputFormat, limit: int | None) -> None:
        self._format = output_format
        self._limit = limit
        self._out = sys.stdout.buffer
        self.count = 0

    @property
    def full(self) -> bool:
        return self.count == self._limit

    def write(self, message: Message) -> None:
        self._out.write(self._line(message))
        self.count += 1

    def _line(self, message: Message) -> bytes:
        from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

        value: Any = message.value()
        if self._format is OutputFormat.VALUES:
            return bytes(value or b"") + b"\n"
        kind, timestamp = message.timestamp()
        headers: Any = message.headers() or []
        key: Any = message.key()
        return to_line(
            topic=str(message.topic()),
            partition=int(message.partition() or 0),
            offset=int(message.offset() or 0),
            timestamp_ms=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
            key=key,
            value=value,
            headers=headers,
        )

    def flush(self) -> None:
        """Hand over what was written.

        Raises:
            BrokenPipeError: the reader of stdout is gone, also when there was nothing to write.
        """
        self._out.flush()
        if _reader_is_gone():
            raise BrokenPipeError(32, "stdout was closed")


def _reader_is_gone() -> bool:
    try:
        poller = select.poll()
        poller.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poller.poll(0))
    except (OSError, ValueError):  # no descriptor: stdout was replaced
        return False


class _Reader:
    """A consumer with what both ways of reading share."""

    def __init__(self, cluster: Cluster, topic: str, consumer: Consumer) -> None:
        self._cluster = cluster
        self._topic = topic
        self._consumer = consumer

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def _messages(self) -> Iterator[Message]:
        """What has come; waits for the first message only, so that none is held back."""
        first = self._consumer.poll(POLL_SECONDS)
        if first is None:
            return
        yield first
        yield from self._consumer.consume(BATCH_RECORDS, 0)

    def _records(self) -> Iterator[tuple[Message, bool]]:
        """(message, whether it is a record rather than the end of its partition)."""
        from confluent_kafka import KafkaError

        for message in self._messages():
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                yield message, False
            else:
                raise_if_failed(self._cluster, message, f"topic {self._topic}")
                yield message, True


def _key(message: Message) -> TopicPartitionKey:
    return str(message.topic()), int(message.partition() or 0)


class _Alone(_Reader):
    """Reads given partitions from given offsets and commits nothing."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        only: list[int] | None,
        start: Position,
        *,
        until_end: bool,
    ) -> None:
        from confluent_kafka import TopicPartition

        self.keys = keys = cluster.partitions(topic, only)
        starts = resolve(cluster, keys, start)
        # "error": records that retention removed while we read are not passed over in silence.
        consumer = cluster.consumer(auto_offset_reset="error", enable_partition_eof=True)
        super().__init__(cluster, topic, consumer)
        self._ends: dict[TopicPartitionKey, int] | None = None
        if until_end:
            ends = {key: held.end for key, held in cluster.offsets(keys).items()}
            self._ends = {key: end for key, end in ends.items() if starts[key] < end}
        consumer.assign([TopicPartition(*key, starts[key]) for key in keys])

    @property
    def at_end(self) -> bool:
        """Whether all that was there at the start has been read."""
        return self._ends is not None and not self._ends

    def poll(self) -> Iterator[Message]:
        for message, is_record in self._records():
            if self._ends is None:
                if is_record:
                    yield message
                continue
            key, offset = _key(message), int(message.offset() or 0)
            end = self._ends.get(key)
            if end is None:
                continue
            if not is_record or offset >= end - 1:
                del self._ends[key]
            if is_record and offset < end:
                yield message

    def printed(self, message: Message) -> None:
        pass

    def flushed(self) -> None:
        pass


class _Member(_Reader):
    """Reads as a member of a group and commits what was printed."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        group: str,
        start: Position | None,
        *,
        until_end: bool,
    ) -> None:
        cluster.describe_topic(topic)
        # Where a committed offset is no longer there, what is left is read: "latest" would pass it
        # over in silence. A start at the end is therefore set when partitions are assigned.
        consumer = cluster.consumer(group, auto_offset_reset="earliest", enable_partition_eof=True)
        super().__init__(cluster, topic, consumer)
        self._start_at_end = start is None or start.kind is Kind.END
        self._until_end = until_end
        self._assigned: set[TopicPartitionKey] = set()
        self._open: set[TopicPartitionKey] | None = None
        self._positions: dict[TopicPartitionKey, int] = {}
        self._uncommitted: dict[TopicPartitionKey, int] = {}
        self._last_commit = time.monotonic()
        consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def __exit__(self, *_: object) -> None:
        try:
            self._commit()
        finally:
            self._consumer.close()

    @property
    def keys(self) -> list[TopicPartitionKey]:
        """What we read now."""
        return sorted(self._assigned)

    @property
    def at_end(self) -> bool:
        """Whether the ends of all partitions assigned to us have been seen."""
        return self._until_end and self._open is not None and not self._open

    def poll(self) -> Iterator[Message]:
        for message, is_record in self._records():
            if is_record:
                yield message
            elif self._open is not None:
                self._open.discard(_key(message))

    def printed(self, message: Message) -> None:
        self._positions[_key(message)] = int(message.offset() or 0) + 1

    def flushed(self) -> None:
        self._uncommitted.update(self._positions)
        self._positions.clear()
        if time.monotonic() - self._last_commit >= COMMIT_SECONDS:
            self._commit()

    def _commit(self) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        self._last_commit = time.monotonic()
        offsets = [
            TopicPartition(*key, offset)
            for key, offset in self._uncommitted.items()
            if key in self._assigned  # another member may have moved on where ours was taken
        ]
        self._uncommitted = {}
        if not offsets:
            return
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            if error.args[0].name() not in _REBALANCED:
                raise self._cluster.translate(error.args[0], "commit") from error
            output.note("The group rebalanced before a commit: some records will come again.")

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        added = {(tp.topic, tp.partition) for tp in partitions}
        self._assigned |= added
        self._open = (self._open or set()) | added
        if self._start_at_end and partitions:
            starts = consumer.committed(partitions, timeout=REQUEST_SECONDS)
            for start in starts:
                if start.offset < 0:
                    start.offset = OFFSET_END
            if "cooperative" in self._cluster.properties.get(ASSIGNMENT, ""):
                consumer.incremental_assign(starts)
            else:
                consumer.assign(starts)

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit()
        self._assigned -= {(tp.topic, tp.partition) for tp in partitions}
        # None: until the next assignment nobody knows what there is to read.
        self._open = (self._open or set()) & self._assigned or None

    def _on_lost(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._assigned = set()
        self._open = None


class _Stop:
    """Whether somebody asked us to stop."""

    asked = False

    def on_signal(self, number: int, _frame: object) -> None:
        if self.asked:
            os._exit(128 + number)
        self.asked = True


@contextmanager
def _stop_requests() -> Iterator[_Stop]:
    """Within it, the first SIGINT or SIGTERM asks to stop and the second ends the process."""
    stop = _Stop()
    before = {n: signal.signal(n, stop.on_signal) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
