"""``tidemill view``: lists, describes, pauses, deletes and runs materialized views."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli import output
from tidemill.cli.boards import Boards, Declared, Every, Names, error_of
from tidemill.cli.options import LOCAL, Brokers, DryRun, Json, Yes, command_group
from tidemill.cli.stopping import until_signal
from tidemill.sql.views.topics import VIEWS

app = command_group("Keep results of SQL current. Create a view with 'tidemill sql'.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the view.")]

_BOARDS = Boards("view", VIEWS, ("query",), "CREATE MATERIALIZED VIEW name AS SELECT ...")
_COLUMNS: output.Columns = {**output.titled("name", "state", "read", "file"), "ERROR": error_of}


@app.command("list", short_help="List the views with their state.")
def list_views(as_json: Json = False, brokers: Brokers = LOCAL) -> None:
    """List the views with their state, as their worker last published it."""
    _BOARDS.emit_list(brokers, _COLUMNS, as_json=as_json)


@app.command(short_help="Show a view: its query, its state and its file.")
def describe(name: Name, as_json: Json = False, brokers: Brokers = LOCAL) -> None:
    """Show a view: its query, its state, and the file with the copy of its rows."""
    _, board = _BOARDS.find(name, brokers)
    found = _BOARDS.described(board, name)
    if as_json:
        output.emit_json(found)
        return
    fields = [*_BOARDS.fields(found), ("read", found.get("read"))]
    fields += [(key, found[key]) for key in ("file", "error", "hint") if found.get(key)]
    output.emit_fields(fields)


@app.command(short_help="Stop keeping a view current for now.")
def pause(name: Name, brokers: Brokers = LOCAL) -> None:
    """Stop keeping a view current for now. Its rows stay as they are."""
    _BOARDS.pause(name, brokers, paused=True)


@app.command(short_help="Continue a view that was paused or has failed.")
def resume(name: Name, brokers: Brokers = LOCAL) -> None:
    """Continue a view that was paused or has failed."""
    _BOARDS.pause(name, brokers, paused=False)


@app.command(short_help="Delete a view and its files.")
def delete(name: Name, yes: Yes = False, dry_run: DryRun = False, brokers: Brokers = LOCAL) -> None:
    """Delete a view. Its worker ends it and deletes its files; so does one that starts later."""
    question = f"Delete view {name}?"
    if _BOARDS.delete(name, brokers, question, yes=yes, dry_run=dry_run):
        print(f"deleted view {name}")


@app.command(short_help="Keep views current in this process.")
def run(
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Folder for the files of the views.")
    ],
    names: Names = None,
    every: Every = False,
    declared: Declared = None,
    brokers: Brokers = LOCAL,
) -> None:
    """Keep views current in this process, until Ctrl-C or SIGTERM.

    The worker of 'tidemill dev' and 'tidemill serve' is 'tidemill view run --all --declared FILE',
    with the folder 'views' of the data folder. It also runs in front of Apache Kafka. One worker
    keeps a view: the last one that was started.
    """
    from tidemill.extras import require_extra

    require_extra("sql")
    from tidemill.sql.views.definition import Definition
    from tidemill.sql.views.manager import manager

    kafka = _BOARDS.begin_run(Definition, Definition.decode, names, every, declared, brokers)
    until_signal(manager(kafka, folder, None if every else names).run)
