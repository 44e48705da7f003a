"""``tidemill source``: creates, lists, describes and orders sources of change data capture."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.boards import DefinitionFile, Replace
from tidemill.cli.options import LOCAL, Brokers, DryRun, Json, Yes, command_group
from tidemill.cli.source.check import check
from tidemill.cli.source.run import BOARDS, run
from tidemill.cli.source.view import COLUMNS, fields_of, wait_with_progress
from tidemill.errors import TidemillError

app = command_group("Capture the changes of databases into topics.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the source.")]
WAIT_S = 30.0
"""How long ``delete`` waits for the worker."""


@app.command(short_help="Create a source from a TOML file.")
def create(
    file: DefinitionFile,
    replace: Replace = False,
    no_snapshot: Annotated[
        bool,
        typer.Option("--no-snapshot", help="Do not read the tables: only changes from now on."),
    ] = False,
    dry_run: DryRun = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Create a source from a TOML file. A running worker starts it immediately.

    The worker of 'tidemill dev' and 'tidemill serve' runs all sources that are managed; with
    managed = false, run it with 'tidemill source run NAME'. Secrets in the file are references:
    ${env:NAME} or ${file:PATH}, which the worker resolves: the broker's worker reads NAME from the
    environment with which the broker was started.
    """
    from tidemill.connect.base.secrets import references
    from tidemill.connect.cdc.definition import read_file
    from tidemill.connect.cdc.registry import source_class

    definition = read_file(file)
    if no_snapshot:
        definition = definition.model_copy(update={"snapshot": "never"})
    source_class(definition.kind)
    kafka = BOARDS.kafka(brokers)
    if not BOARDS.create(kafka, definition, replace=replace, dry_run=dry_run):
        return
    if not definition.managed:
        output.note(f"Run it: tidemill source run {definition.name}")
    elif names := sorted({*references([definition.database, definition.hash_key])}):
        output.note(
            f"The broker's worker reads {', '.join(names)} from the environment with which the "
            "broker was started, and not from this one. If it can't, `tidemill source describe "
            f"{definition.name}` says so."
        )


@app.command("list", short_help="List the sources with their state and lag.")
def list_sources(as_json: Json = False, brokers: Brokers = LOCAL) -> None:
    """List the sources with their state and lag, as their workers last published them."""
    BOARDS.emit_list(brokers, COLUMNS, as_json=as_json)


@app.command(short_help="Show a source: state, lag, snapshots, last error.")
def describe(
    name: Name,
    watch: Annotated[
        bool, typer.Option("--wait", help="Show the progress of snapshots until they have ended.")
    ] = False,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Show a source: state, tables, position, lag in bytes and time, snapshots, last error."""
    kafka, board = BOARDS.find(name, brokers)
    if watch:
        board = wait_with_progress(kafka, name)
    found = BOARDS.described(board, name)
    if as_json:
        output.emit_json(found)
    else:
        output.emit_fields(fields_of(found))


@app.command(short_help="Stop capturing for now. Nothing is lost.")
def pause(name: Name, brokers: Brokers = LOCAL) -> None:
    """Stop capturing for now. Nothing is lost, but the database keeps its log until 'resume'."""
    _pause(brokers, name, paused=True)
    print(f"paused source {name}")


@app.command(short_help="Continue a source that was paused.")
def resume(name: Name, brokers: Brokers = LOCAL) -> None:
    """Continue a source that was paused, where it stopped."""
    _pause(brokers, name, paused=False)
    print(f"resumed source {name}")


@app.command(short_help="Start the worker of a source again, e.g. after it failed.")
def restart(
    name: Name,
    resnapshot: Annotated[
        bool,
        typer.Option(
            "--resnapshot",
            help="Forget the position, read all tables again, and delete from the topics what the "
            "tables do not have any more.",
        ),
    ] = False,
    dead_letter: Annotated[
        bool,
        typer.Option(
            "--dead-letter",
            help="Write the row at which the source has stopped to its dead-letter topic, delete "
            "its key from the topic of its table, and continue behind it.",
        ),
    ] = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Start the worker of a source again, e.g. after it failed or was fenced."""
    kafka, board = BOARDS.find(name, brokers)
    payload: dict[str, Any] = {"resnapshot": resnapshot}
    if dead_letter:
        row = board.statuses.get(name, {}).get("bad_row")
        if not row:
            raise output.UsageError(
                f"source {name} has not stopped at a row that can't be captured",
                hint=f"`tidemill source describe {name}` says why it has stopped.",
            )
        payload["bad_row"] = row["id"]
    BOARDS.order(kafka, name, "restart", **payload)
    print(f"restarted source {name}")


@app.command(short_help="Read tables again, while changes continue to be captured.")
def snapshot(
    name: Name,
    tables: Annotated[
        list[str], typer.Argument(metavar="TABLE", help="Tables to read: [schema.]table.")
    ],
    brokers: Brokers = LOCAL,
) -> None:
    """Read tables again, while changes continue to be captured.

    Rows that did not change are written again with op "r". See the progress with
    'tidemill source describe NAME --wait'.
    """
    kafka, board = BOARDS.find(name, brokers)
    known = board.statuses.get(name, {}).get("tables", {})
    tables = [_captured(name, table, known) for table in tables]

    writer = BOARDS.writer(kafka)
    for table in tables:
        writer.command(name, f"snapshot/{table}", table=table)
    writer.flush()
    print(f"ordered a snapshot of {', '.join(tables)}")


def _captured(name: str, table: str, known: Collection[str]) -> str:
    """Return the id of a captured table, of which the schema can be left out."""
    found = [each for each in known if each == table or each.rpartition(".")[2] == table]
    if not known or table in found:
        return table
    if len(found) != 1:
        raise output.NotFoundError(
            f"source {name} does not capture table {table}",
            hint=f"It captures: {', '.join(sorted(known))}.",
        )
    return found[0]


@app.command(short_help="Delete a source, and what it has created in the database.")
def delete(
    name: Name,
    topics: Annotated[
        bool, typer.Option("--topics", help="Delete the topics of its tables too.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Delete its records even if no worker can clean up the database.",
        ),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Delete a source, and what it has created in the database (triggers, slot, publication).

    A worker does that, since it has the credentials. Its topics stay without --topics.
    """
    from tidemill.connect.base import orders
    from tidemill.connect.cdc.topics import dead_letter_topic, state_topic, transactional_id

    kafka, board = BOARDS.find(name, brokers, to_change=True)
    captured = sorted(board.statuses.get(name, {}).get("tables", {}).values())
    if dry_run:
        print(f"would delete source {name}")
        for topic in captured if topics else []:
            print(f"would delete topic {topic}")
        return
    output.confirm(f"Delete source {name}{' and its topics' if topics else ''}?", yes=yes)
    writer = BOARDS.writer(kafka)
    if force:
        writer.forget(name, board)
        writer.flush()
        definition = orders.describe(board, name).definition  # it can be invalid
        letters = dead_letter_topic(str(definition.get("prefix") or name))
        kafka.delete_topics(
            transactional_id(name), [state_topic(name), *([*captured, letters] if topics else [])]
        )
        output.warn("what the source has created in the database was left there")
    else:
        writer.command(name, "delete", topics=topics)
        writer.flush()
        _wait_until_deleted(brokers, name)
    print(f"deleted source {name}")
    for topic in captured if topics else []:
        print(f"deleted topic {topic}")


def _wait_until_deleted(brokers: Brokers, name: str) -> None:
    kafka = BOARDS.kafka(brokers)
    deadline = time.monotonic() + WAIT_S
    while name in (board := BOARDS.read(kafka)).definitions:
        status = board.statuses.get(name, {})
        if time.monotonic() > deadline:
            raise TidemillError(
                f"source {name} was not deleted within {WAIT_S:g} s: "
                + (status.get("error") or "no worker has answered"),
                hint="It is deleted as soon as a worker can. --force deletes its records, and "
                "leaves what it has created in the database.",
            )
        time.sleep(0.2)


def _pause(brokers: Brokers, name: str, *, paused: bool) -> None:
    kafka, _ = BOARDS.find(name, brokers, to_change=True)
    BOARDS.order(kafka, name, "pause", paused=paused)


app.command()(run)
app.command()(check)
