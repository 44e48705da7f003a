"""``tidemill topic consume``: prints the records of a topic, as JSON lines or bare values.

With a group it commits the offsets of printed records, in this order: write, flush, commit. So a
record is possibly printed twice after a crash, and none is skipped. ``readers`` reads the records.
"""

from __future__ import annotations

import enum
import os
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.client import Cluster, TopicPartitionKey
from tidemill.cli.group.lag import held_back, note_held_back
from tidemill.cli.options import LOCAL, Brokers, OnlyPartition, TopicName
from tidemill.cli.positions import parse
from tidemill.cli.topic.readers import GroupReader, PartitionReader
from tidemill.errors import TidemillError
from tidemill.positions import FORMS, Kind, Position
from tidemill.record_json import to_line

if TYPE_CHECKING:
    from confluent_kafka import Message

ISOLATION = "isolation.level"


class OutputFormat(enum.StrEnum):
    """The format in which records are printed."""

    JSON = "json"
    VALUES = "values"


From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="POSITION",
        help=f"Where to start: {FORMS} Default: end; with --group the committed offset.",
        show_default=False,
    ),
]
Count = Annotated[
    int | None,
    typer.Option("--count", "-n", metavar="N", min=1, help="Stop after N records."),
]
Group = Annotated[
    str | None,
    typer.Option("--group", "-g", metavar="GROUP", help="Read as a member of a group and commit."),
]
UntilEnd = Annotated[
    bool, typer.Option("--until-end", "--no-follow", help="Stop at the end of the topic.")
]
Format = Annotated[
    OutputFormat,
    typer.Option("--format", help="json: an object per line; values: a value per line."),
]


def consume(
    topic: TopicName,
    from_: From = None,
    count: Count = None,
    group: Group = None,
    partition: OnlyPartition = None,
    until_end: UntilEnd = False,
    output_format: Format = OutputFormat.JSON,
    brokers: Brokers = LOCAL,
) -> None:
    """Print records and follow the topic, until Ctrl-C, --count or --until-end."""
    start = parse(from_, "--from") if from_ else None
    _check_group_options(group, partition, start)
    cluster = Cluster.at(brokers)
    printer = _Printer(output_format, count)
    reader: PartitionReader | GroupReader
    if group:
        reader = GroupReader(cluster, topic, group, start, until_end=until_end)
    else:
        reader = PartitionReader(
            cluster, topic, partition, start or Position(Kind.END), until_end=until_end
        )
    if start is None and not until_end and not group:
        output.note("Waiting for new records. To read from the start, use --from beginning.")
    with _stop_requests() as stop, closing(reader):
        _print_records(reader, printer, stop)
        held = until_end and reader.at_end and _is_held_back(cluster, reader.keys)
    output.note(output.plural(printer.count, "record"))
    if held:
        note_held_back([topic])


def _check_group_options(
    group: str | None, partition: list[int] | None, start: Position | None
) -> None:
    """Check the options that mean something else with ``--group``."""
    if group and partition:
        raise output.UsageError(
            "--partition can't be used with --group: the group assigns the partitions"
        )
    if group and start and start.kind not in (Kind.BEGINNING, Kind.END):
        raise output.UsageError(
            "--from must be beginning or end with --group, and applies only to partitions without "
            "a committed offset",
            hint="Move a group with: tidemill group seek",
        )


def _print_records(reader: PartitionReader | GroupReader, printer: _Printer, stop: _Stop) -> None:
    while not (stop.requested or printer.full or reader.at_end):
        for message in reader.poll():
            if not printer.full:
                printer.write(message)
                reader.printed(message)
        printer.flush()
        reader.flushed()


def _is_held_back(cluster: Cluster, keys: Sequence[TopicPartitionKey]) -> bool:
    """Return whether an open transaction hides records at the end. It is only used for a note."""
    if not sys.stderr.isatty() or cluster.properties.get(ISOLATION) == "read_uncommitted":
        return False
    try:
        return held_back(cluster, keys)
    except TidemillError:  # the records were read, so the command has succeeded
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
        """Whether it has written as many records as ``--count`` says."""
        return self.count == self._limit

    def write(self, message: Message) -> None:
        self._out.write(self._line(message))
        self.count += 1

    def _line(self, message: Message) -> bytes:
        from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

        from tidemill.confluent.reading import headers_of

        value: Any = message.value()
        if self._format is OutputFormat.VALUES:
            return bytes(value or b"") + b"\n"
        kind, timestamp = message.timestamp()
        key: Any = message.key()
        return to_line(
            topic=str(message.topic()),
            partition=int(message.partition() or 0),
            offset=int(message.offset() or 0),
            timestamp_ms=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
            key=key,
            value=value,
            headers=headers_of(message),
        )

    def flush(self) -> None:
        """Flush stdout.

        Raises:
            BrokenPipeError: the reader of stdout is gone, also if there was nothing to write.
        """
        self._out.flush()
        if _is_stdout_closed():
            raise BrokenPipeError(32, "stdout was closed")


def _is_stdout_closed() -> bool:
    try:
        poller = select.poll()
        poller.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poller.poll(0))
    except (OSError, ValueError):  # no file descriptor: stdout was replaced
        return False


class _Stop:
    """Whether a signal has requested a stop."""

    requested = False

    def on_signal(self, number: int, _frame: object) -> None:
        if self.requested:
            os._exit(128 + number)
        self.requested = True


@contextmanager
def _stop_requests() -> Iterator[_Stop]:
    """Handle signals: the first SIGINT or SIGTERM requests a stop, the second one ends the process.

    The old handlers are restored at the end.
    """
    stop = _Stop()
    before = {n: signal.signal(n, stop.on_signal) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
