"""``tidemill bridge``: creates, lists, describes and orders bridges."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.boards import (
    Boards,
    Declared,
    DefinitionFile,
    Every,
    Names,
    Replace,
    error_of,
)
from tidemill.cli.options import LOCAL, Brokers, DryRun, Json, Yes, command_group
from tidemill.cli.stopping import until_signal
from tidemill.connect.direct.topics import BRIDGES

app = command_group("Bring StatsD and other direct messaging into topics, and out of them.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the bridge.")]

_BOARDS = Boards("bridge", BRIDGES, ("kind", "topic"))
_COLUMNS: output.Columns = {
    **output.titled("name", "kind", "topic", "state", "received", "delivered", "lost", "refused"),
    "ERROR": error_of,
}
_COUNTS = ("received", "delivered", "lost", "recovered", "refused", "retried")


@app.command(short_help="Create a bridge from a TOML file.")
def create(
    file: DefinitionFile,
    replace: Replace = False,
    dry_run: DryRun = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Create a bridge from a TOML file. A running worker starts it immediately.

    Secrets in the file are references: ${env:NAME} or ${file:PATH}, which the worker resolves.
    """
    from tidemill.connect.direct.definition import read_file
    from tidemill.connect.direct.registry import check_options

    definition = read_file(file)
    check_options(definition)
    kafka = _BOARDS.kafka(brokers)
    _BOARDS.create(kafka, definition, replace=replace, dry_run=dry_run)


@app.command("list", short_help="List the bridges with their state and counts.")
def list_bridges(as_json: Json = False, brokers: Brokers = LOCAL) -> None:
    """List the bridges with their state and counts, as their workers last published them."""
    _BOARDS.emit_list(brokers, _COLUMNS, as_json=as_json)


@app.command(short_help="Show a bridge: its state, and what was received and lost.")
def describe(name: Name, as_json: Json = False, brokers: Brokers = LOCAL) -> None:
    """Show a bridge: its state, what was received, lost and refused, and what its kind adds."""
    _, board = _BOARDS.find(name, brokers)
    found = _BOARDS.described(board, name)
    if as_json:
        output.emit_json(found)
        return
    fields = _BOARDS.fields(found)
    fields += ((key, found.get(key)) for key in _COUNTS)
    for key, value in (found.get("details") or {}).items():
        fields += _detail_fields(key.replace("_", " "), value)
    fields += [(key, found[key]) for key in ("error", "hint") if found.get(key)]
    output.emit_fields(fields)


def _detail_fields(name: str, value: Any) -> list[tuple[str, object]]:
    """Return a detail as fields: one for each element of a table or a list."""
    if isinstance(value, dict):
        return [
            (f"{name}: {key}", " ".join(f"{k} {v!r}" for k, v in each.items()))
            if isinstance(each, dict)
            else (f"{name}: {key}", each)
            for key, each in value.items()
        ]
    if isinstance(value, list):
        return [(name, each) for each in value]
    return [] if value in ("", None) else [(name, value)]


@app.command(short_help="Stop a bridge for now.")
def pause(name: Name, brokers: Brokers = LOCAL) -> None:
    """Stop a bridge for now. What arrives from outside in the meantime is not received."""
    _BOARDS.pause(name, brokers, paused=True)


@app.command(short_help="Continue a bridge that was paused or has failed.")
def resume(name: Name, brokers: Brokers = LOCAL) -> None:
    """Continue a bridge that was paused or has failed."""
    _BOARDS.pause(name, brokers, paused=False)


@app.command(short_help="Delete a bridge. Its topic stays.")
def delete(name: Name, yes: Yes = False, dry_run: DryRun = False, brokers: Brokers = LOCAL) -> None:
    """Delete a bridge. The worker ends it, and its topic stays."""
    question = f"Delete bridge {name}?"
    if _BOARDS.delete(name, brokers, question, yes=yes, dry_run=dry_run):
        print(f"deleted bridge {name}")


@app.command(short_help="Run bridges in this process.")
def run(
    names: Names = None,
    every: Every = False,
    declared: Declared = None,
    brokers: Brokers = LOCAL,
) -> None:
    """Run bridges in this process, until Ctrl-C or SIGTERM.

    The worker of 'tidemill dev' and 'tidemill serve' is 'tidemill bridge run --all --declared
    FILE', with their settings file. It also runs in front of Apache Kafka. One worker runs a
    bridge: the last one that was started.
    """
    from tidemill.connect.direct.definition import Definition
    from tidemill.connect.direct.manager import manager

    # Options are checked when a bridge starts: an invalid one must not keep the others from it.
    kafka = _BOARDS.begin_run(Definition, Definition.decode, names, every, declared, brokers)
    until_signal(manager(kafka, None if every else names).run)
