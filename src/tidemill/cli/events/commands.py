"""``tidemill events``: reads and writes event stores, publishes, exports and imports them."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.client import Cluster
from tidemill.cli.options import LOCAL, Brokers, DryRun, Json, command_group
from tidemill.cli.stopping import until_signal
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.confluent.clients import Kafka
    from tidemill.eventstore.events import Query, StoredEvent, Version
    from tidemill.eventstore.store import Store

app = command_group("Read and write event stores; publish, export and import their events.")

StoreName = Annotated[str, typer.Argument(metavar="STORE", help="Topic of the store.")]
Stream = Annotated[str | None, typer.Argument(metavar="STREAM", help="Only this stream.")]
Types = Annotated[
    list[str] | None, typer.Option("--type", metavar="TYPE", help="Only events of these types.")
]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", metavar="TAG", help="Only events with all these tags.")
]
Category = Annotated[
    str | None,
    typer.Option("--category", metavar="NAME", help="Only streams whose names begin with NAME-."),
]
After = Annotated[
    int, typer.Option("--after", metavar="N", min=0, help="Begin behind this number.")
]
Count = Annotated[
    int | None, typer.Option("--count", "-n", metavar="N", min=1, help="Stop after N events.")
]
Target = Annotated[
    str,
    typer.Argument(metavar="MODULE:NAME", help="A function without arguments, in your program."),
]


def kafka_of(brokers: Brokers) -> Kafka:
    """Return the cluster that options name."""
    return Cluster.at(brokers).kafka


@contextmanager
def opened(name: str, brokers: Brokers, *, create: bool = False) -> Iterator[Store]:
    """Open a store for a command.

    Raises:
        NotFoundError: there is no topic with this name.
    """
    from tidemill.eventstore.store import Store

    kafka = kafka_of(brokers)
    if not create and not kafka.partitions("tidemill-cli", name):
        raise output.NotFoundError(
            f"store {name} does not exist", hint="The first append of a program creates it."
        )
    with Store(kafka, name, create=create) as store:
        yield store


def _queries(types: list[str] | None, tags: list[str] | None) -> tuple[Query, ...]:
    from tidemill.eventstore.events import Query

    if not types and not tags:
        return ()
    return (Query(frozenset(types or ()), frozenset(tags or ())),)


@app.command(short_help="List the streams of a store.")
def streams(
    store: StoreName,
    category: Category = None,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """List the streams of a store with their numbers of events and the times of the last."""
    from datetime import UTC, datetime

    last: dict[str, StoredEvent] = {}
    with opened(store, brokers) as found:
        for name in found.streams(category):
            for event in found.read(name, backwards=True, limit=1):
                last[name] = event
    rows = [
        {
            "stream": name,
            "events": event.version,
            "position": event.position,
            "last": datetime.fromtimestamp(event.time_ms / 1000, UTC).isoformat(" ", "seconds"),
        }
        for name, event in last.items()
    ]
    columns = output.titled("stream", "events", "position", "last")
    output.emit_columns(columns, rows, as_json=as_json)


@app.command(short_help="Print events of a store.")
def read(
    store: StoreName,
    stream: Stream = None,
    after: After = 0,
    to: Annotated[
        int | None, typer.Option("--to", metavar="N", min=0, help="End with this number.")
    ] = None,
    types: Types = None,
    tags: Tags = None,
    category: Category = None,
    backwards: Annotated[
        bool, typer.Option("--backwards", help="Print the last event first.")
    ] = False,
    count: Count = None,
    brokers: Brokers = LOCAL,
) -> None:
    """Print events as JSON lines: of a stream, by its versions, or of all, by positions."""
    if stream is not None and (types or tags or category):
        raise output.UsageError(
            "--type, --tag and --category can't be used with a stream",
            hint="Leave the stream out, or the options.",
        )
    with opened(store, brokers) as found:
        if stream is not None:
            events = found.read(stream, after=after, to=to, backwards=backwards, limit=count)
        else:
            events = found.read_all(
                after=after,
                to=to,
                queries=_queries(types, tags),
                category=category,
                backwards=backwards,
                limit=count,
            )
        number = _print(events)
    output.note(output.plural(number, "event"))


def _print(events: Iterable[StoredEvent], *, flush: bool = False) -> int:
    """Print events as JSON lines; return how many."""
    from tidemill.eventstore.event_json import to_line

    number = 0
    for number, event in enumerate(events, 1):  # noqa: B007
        sys.stdout.buffer.write(to_line(event, exact=False))
        if flush:
            sys.stdout.buffer.flush()
    sys.stdout.buffer.flush()
    return number


@app.command(short_help="Append an event to a stream.")
def append(
    store: StoreName,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")],
    event_type: Annotated[str, typer.Argument(metavar="TYPE", help="The event's type.")],
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", metavar="TEXT", help="The content; '-' reads stdin."),
    ] = None,
    metadata: Annotated[
        str, typer.Option("--metadata", metavar="TEXT", help="Metadata, usually JSON.")
    ] = "",
    tags: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="A tag of the event.")
    ] = None,
    schema: Annotated[
        int, typer.Option("--schema", metavar="N", min=1, help="Version of the content's schema.")
    ] = 1,
    expected: Annotated[
        str,
        typer.Option(
            "--expected", metavar="N", help="Version of the stream: a number, any, none or exists."
        ),
    ] = "any",
    event_id: Annotated[
        str | None,
        typer.Option("--id", metavar="UUID", help="Id, which makes a repetition harmless."),
    ] = None,
    brokers: Brokers = LOCAL,
) -> None:
    """Append an event to a stream, and print its version and position. It creates the store."""
    from tidemill.eventstore.events import NewEvent

    version = _expected(expected)
    try:
        id_ = uuid.uuid4() if event_id is None else uuid.UUID(event_id)
    except ValueError:
        raise output.UsageError(f"invalid --id {event_id!r}: use a UUID") from None
    content = sys.stdin.buffer.read() if data == "-" else (data or "").encode()
    event = NewEvent(event_type, content, id_, metadata.encode(), frozenset(tags or ()), schema)
    with opened(store, brokers, create=True) as found:
        done = found.append(stream, [event], expected=version)
    word = "was there already" if done.repeated else "appended"
    version, position = done.versions[stream], done.positions[0]
    print(f"{word}: version {version} of {output.cell(stream)}, position {position}")


def _expected(text: str) -> Version:
    from tidemill.eventstore.events import ANY, EXISTS, NONE

    words: dict[str, Version] = {"any": ANY, "none": NONE, "exists": EXISTS}
    if text in words:
        return words[text]
    if text.isdecimal() and text.isascii() and len(text) < 19:
        return int(text)
    raise output.UsageError(f"invalid --expected {text!r}: use a number, any, none or exists")


@app.command(short_help="Print events, and those that come.")
def subscribe(
    store: StoreName,
    after: Annotated[
        int | None,
        typer.Option(
            "--after", metavar="N", min=0, help="Begin behind this position; default: the end."
        ),
    ] = None,
    types: Types = None,
    tags: Tags = None,
    category: Category = None,
    count: Count = None,
    brokers: Brokers = LOCAL,
) -> None:
    """Print events behind a position as JSON lines, and those that come, until Ctrl-C."""
    with opened(store, brokers) as found:
        begin = found.position() if after is None else after

        def follow(stop: threading.Event) -> None:
            left = count
            position = begin
            while not stop.is_set() and left != 0:
                followed = found.follow(
                    after=position, queries=_queries(types, tags), category=category, wait_s=0.2
                )
                for event in followed:
                    _print([event], flush=True)
                    position = event.position
                    left = None if left is None else left - 1
                    if left == 0 or stop.is_set():
                        break

        until_signal(follow)


@app.command(short_help="Copy accepted events to a topic, exactly once.")
def publish(
    store: StoreName,
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Topic to copy to.")],
    partitions: Annotated[
        int,
        typer.Option("--partitions", metavar="N", min=1, help="Its partitions, if it is created."),
    ] = 1,
    after: Annotated[
        int | None,
        typer.Option(
            "--after",
            metavar="N",
            min=0,
            help="Begin behind this position, if the topic does not say where to continue.",
        ),
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop when all present events are copied.")
    ] = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Copy accepted events to a topic, one record each, exactly once, until Ctrl-C or SIGTERM.

    The key is the stream. Headers have position, id, type, version, schema, tags and metadata. It
    continues where it stopped; a second publisher of the same store and topic takes over.
    """
    from tidemill.confluent.metrics import MetricsPublisher
    from tidemill.eventstore.metrics import add_publisher
    from tidemill.eventstore.publishing import Publisher
    from tidemill.metrics.registry import Registry

    kafka = kafka_of(brokers)
    if to == store:
        raise output.UsageError("--to must be another topic than the store's")
    with opened(store, brokers) as found:
        publisher = Publisher(found, kafka, to, partitions, after)
        registry = Registry()
        add_publisher(registry, publisher)

        def run(stop: threading.Event) -> None:
            for position in publisher.run(stop, until_end=until_end):
                output.note(f"published up to position {position}")

        with MetricsPublisher(kafka, f"publish/{store}/{to}", registry):
            until_signal(run)
    if until_end:
        print(f"published {store} to {to}")


@app.command(short_help="Write all events to a file.")
def export(
    store: StoreName,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The new file; default: stdout.")
    ] = None,
    after: After = 0,
    brokers: Brokers = LOCAL,
) -> None:
    """Write all events to a file, as JSON lines in the order of their positions.

    The file has personal data as it was written: 'forget' can't reach it.
    """
    from tidemill.eventstore.event_json import to_line

    number = 0
    with opened(store, brokers) as found:
        out: Any = sys.stdout.buffer if file is None else file.open("xb")
        for number, event in enumerate(found.read_all(after=after, fresh=True), 1):  # noqa: B007
            out.write(to_line(event, exact=True))
        out.flush()
        if file is not None:
            out.close()
    output.note(output.plural(number, "event"))


@app.command("import", short_help="Append the events of a file.")
def import_(
    store: StoreName,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of 'events export'.")],
    dry_run: DryRun = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Append the events of a file with their ids and versions. It creates the store.

    What is there already is left out. Positions are counted again, and the time of the events is
    that of the import: the writers' times stay in the file.
    """
    from tidemill.eventstore.event_json import from_line
    from tidemill.eventstore.importing import import_events

    with file.open("rb") as lines:
        events = (from_line(line) for line in lines if line.strip())
        if dry_run:
            found = {each.stream for each in events}
            print(f"would import {output.plural(len(found), 'stream')} to {store}")
            return
        with opened(store, brokers, create=True) as target:
            done = import_events(target, events)
    print(f"imported {output.plural(done.stored, 'event')}, {done.known} were there already")


@app.command(short_help="Build the index of a store again.")
def rebuild(
    store: StoreName,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint", metavar="FILE", help="Begin with this file of an archive instead."
        ),
    ] = None,
    brokers: Brokers = LOCAL,
) -> None:
    """Delete the index of a store on this machine, and build it again from the log.

    No other process can use the store meanwhile on this machine.
    """
    from tidemill.eventstore.store import rebuild as build

    if checkpoint is not None:
        from tidemill.eventstore.archiving import begin_at

        head = begin_at(kafka_of(brokers), store, checkpoint)
    else:
        head = build(kafka_of(brokers), store)
    print(f"built the index of {store} again: {output.plural(head.position, 'event')}")


@app.command(short_help="Move the log to files, so that its space comes back.")
def archive(
    store: StoreName,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The archive.")],
    brokers: Brokers = LOCAL,
) -> None:
    """Move what is in the log of a store to files, with a checkpoint to begin from.

    Reading changes nothing: events stay in the index. A machine without an index needs the
    checkpoint: tidemill events rebuild STORE --checkpoint FILE
    """
    from tidemill.eventstore.archiving import archive as move

    done = move(kafka_of(brokers), store, folder)
    print(f"archived {output.plural(done.count, 'record')} of {store} in {folder}")
    print(f"checkpoint: {done.checkpoint} (position {done.head.position})")


@app.command(short_help="Fold the whole log again, and find what was changed.")
def verify(
    store: StoreName,
    head: Annotated[
        list[str] | None,
        typer.Option(
            "--head",
            metavar="POSITION:HASH",
            help="Compare with the head of an earlier run. Can be repeated.",
        ),
    ] = None,
    archive_folder: Annotated[
        Path | None,
        typer.Option("--archive", metavar="FOLDER", help="Read what was archived before the log."),
    ] = None,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Fold the whole log of a store again, and compare what the writers of commits have seen.

    Keep the printed head elsewhere: with --head, a later run proves that the events up to it are
    the same. If something does not fit, the command fails and names the first place.
    """
    from tidemill.eventstore.archiving import archived
    from tidemill.eventstore.errors import EventStoreError
    from tidemill.eventstore.verifying import verify as check

    heads = [_head(each) for each in head or ()]
    before = () if archive_folder is None else archived(archive_folder)
    found = check(kafka_of(brokers), store, heads=heads, before=before)
    fields = {
        "head": f"{found.head.position}:{found.head.hash.hex()}",
        "events": found.head.position,
        "accepted": found.accepted,
        "repeated": found.repeated,
        "void": found.void,
        "foreign": found.foreign,
        "unchecked": found.unchecked,
    }
    if as_json:
        output.emit_json(fields)
    else:
        output.emit_fields(list(fields.items()))
    if found.first_break is not None:
        broken = found.first_break
        raise EventStoreError(
            f"store {store} does not fit together at offset {broken.offset}: {broken.why}; it was "
            f"changed behind position {broken.after}, at that offset or before it",
            hint="Compare the topic with a backup.",
        )


def _head(text: str) -> tuple[int, bytes]:
    position, _, hashed = text.partition(":")
    try:
        return int(position), bytes.fromhex(hashed)
    except ValueError as error:
        raise output.UsageError(
            f"invalid head {text!r}: write POSITION:HASH as events verify prints it"
        ) from error


@app.command(short_help="Make snapshots of aggregates.")
def snapshot(
    target: Target,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Aggregates; default: all.")
    ] = None,
) -> None:
    """Make snapshots of aggregates, for a repository that a function of your program returns."""
    from tidemill.cli.events.program import load
    from tidemill.eventstore.app.repository import Repository

    repository = load(target, (Repository,), "Repository")
    number = 0
    for id_ in ids or repository.ids():
        number += bool(repository.snapshot(id_))
    print(f"made {output.plural(number, 'snapshot')}")


@app.command(short_help="Build a projection again, or handle parked events again.")
def replay(target: Target) -> None:
    """Handle events again: all of a projection, or those that a subscription group has parked.

    The function of your program returns a projection's runner, whose tables are then built again
    beside the live ones; or a group and the function that handles an event. The exit code is 1 if
    events stay parked.
    """
    from tidemill.cli.events.program import load
    from tidemill.eventstore.app.projections.runner import ProjectionRunner

    found: Any = load(target, (ProjectionRunner, tuple), "ProjectionRunner, or (Group, function)")
    if isinstance(found, ProjectionRunner):
        print(f"built again up to position {found.rebuild()}")
        return
    group, handle = found
    with group:
        handled, failed = group.replay_parked(handle)
    print(f"handled {output.plural(handled, 'parked event')}")
    if failed:
        raise TidemillError(
            f"{output.plural(failed, 'event')} stay parked",
            hint="The reasons are in the stream: tidemill events read STORE parked-GROUP",
        )
