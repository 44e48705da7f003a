"""``tidemill bridge``: creates, lists, describes and orders bridges."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.boards import Boards
from tidemill.cli.options import (
    BOOTSTRAP_DEFAULT,
    Bootstrap,
    DryRun,
    Json,
    Property,
    Yes,
    command_group,
)
from tidemill.connect.direct.errors import BridgeExistsError
from tidemill.connect.direct.topics import BRIDGES

if TYPE_CHECKING:
    from tidemill.confluent.clients import Kafka
    from tidemill.connect.base.board import Board
    from tidemill.connect.direct.definition import Definition

app = command_group("Bring StatsD and other direct messaging into topics, and out of them.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the bridge.")]

_BOARDS = Boards("bridge", BRIDGES)
_STALE_MS = 30_000
_COUNTS = ("received", "delivered", "lost", "recovered", "refused", "retried")


@app.command(short_help="Create a bridge from a TOML file.")
def create(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The definition, a TOML file.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the definition of a bridge that exists.")
    ] = False,
    dry_run: DryRun = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Create a bridge from a TOML file. A running worker starts it immediately.

    Secrets in the file are references: ${env:NAME} or ${file:PATH}, which the worker resolves.
    """
    from tidemill.connect.direct.definition import read_file
    from tidemill.connect.direct.registry import check_options

    definition = read_file(file)
    check_options(definition)
    kafka = _BOARDS.kafka(servers, properties)
    board = _BOARDS.read(kafka)
    exists = definition.name in board.definitions
    if exists:
        _BOARDS.require_changeable(board, definition.name)
    if exists and not replace:
        raise BridgeExistsError(
            f"bridge {definition.name} already exists",
            hint="Use another name, or --replace to change its definition.",
        )
    verb = "replace" if exists else "create"
    if dry_run:
        print(f"would {verb} bridge {definition.name}")
        return
    _BOARDS.define(kafka, definition)
    print(f"{verb}d bridge {definition.name}")


@app.command("list", short_help="List the bridges with their state and counts.")
def list_bridges(
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """List the bridges with their state and counts, as their workers last published them."""
    board = _BOARDS.read(_BOARDS.kafka(servers, properties))
    found = [_as_dict(board, name) for name in sorted(board.definitions)]
    if as_json:
        output.emit_json(found)
        return
    rows = [
        (
            *(each[key] for key in ("name", "kind", "topic", "state")),
            *(each.get(key) for key in _COUNTS[:3]),
            each.get("refused"),
            each.get("error") or None,
        )
        for each in found
    ]
    headers = (
        "NAME",
        "KIND",
        "TOPIC",
        "STATE",
        "RECEIVED",
        "DELIVERED",
        "LOST",
        "REFUSED",
        "ERROR",
    )
    output.emit_table(headers, rows)
    if not found:
        output.note("There is no bridge. Create one: tidemill bridge create FILE")


@app.command(short_help="Show a bridge: its state, and what was received and lost.")
def describe(
    name: Name,
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Show a bridge: its state, what was received, lost and refused, and what its kind adds."""
    board = _BOARDS.read(_BOARDS.kafka(servers, properties))
    _BOARDS.require(board, name)
    found = _as_dict(board, name)
    if as_json:
        output.emit_json(found)
        return
    age = output.duration_text(found["status_age_ms"])
    fields: list[tuple[str, object]] = [
        *((key, found[key]) for key in ("name", "kind", "topic", "state")),
        ("worker", found.get("worker")),
        ("status from", None if age is None else f"{age} ago"),
        *((key, found.get(key)) for key in _COUNTS),
    ]
    if found["declared"]:
        fields.append(("declared in", found["declared"]))
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
def pause(name: Name, servers: Bootstrap = BOOTSTRAP_DEFAULT, properties: Property = None) -> None:
    """Stop a bridge for now. What arrives from outside in the meantime is not received."""
    kafka, _ = _changeable(name, servers, properties)
    _BOARDS.order(kafka, name, "pause", paused=True)
    print(f"paused bridge {name}")


@app.command(short_help="Continue a bridge that was paused or has failed.")
def resume(name: Name, servers: Bootstrap = BOOTSTRAP_DEFAULT, properties: Property = None) -> None:
    """Continue a bridge that was paused or has failed."""
    kafka = _BOARDS.kafka(servers, properties)
    _BOARDS.require(_BOARDS.read(kafka), name)
    _BOARDS.order(kafka, name, "pause", paused=False)
    print(f"resumed bridge {name}")


@app.command(short_help="Delete a bridge. Its topic stays.")
def delete(
    name: Name,
    yes: Yes = False,
    dry_run: DryRun = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Delete a bridge. The worker ends it, and its topic stays."""
    kafka, board = _changeable(name, servers, properties)
    if dry_run:
        print(f"would delete bridge {name}")
        return
    output.confirm(f"Delete bridge {name}?", yes=yes)
    writer = _BOARDS.writer(kafka)
    writer.forget(name, board)
    writer.flush()
    print(f"deleted bridge {name}")


@app.command(short_help="Run bridges in this process.")
def run(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Names of the bridges.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Run all bridges that are managed, also later ones.")
    ] = False,
    declared: Annotated[
        Path | None,
        typer.Option(
            "--declared",
            metavar="FILE",
            help="First store the bridges that a settings file declares as [[bridge]], and pause "
            "those that are not in it any more.",
        ),
    ] = None,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Run bridges in this process, until Ctrl-C or SIGTERM.

    The worker of 'tidemill dev' and 'tidemill serve' is 'tidemill bridge run --all --declared
    FILE', with their settings file. It also runs in front of Apache Kafka.
    """
    from tidemill import telemetry

    if bool(names) == every:
        raise output.UsageError("name the bridges to run, or use --all")
    if declared is not None and not every:
        raise output.UsageError("--declared is for --all")
    entries = [] if declared is None else _declared(declared)
    kafka = _BOARDS.kafka(servers, properties)
    if names:
        board = _BOARDS.read(kafka)
        for name in names:
            _BOARDS.require(board, name)
    telemetry.configure("info", "auto", color=output.colored(sys.stderr))
    if declared is not None:
        from tidemill.connect.base.declared import apply_declared

        apply_declared(kafka, BRIDGES, "bridge", entries, str(declared.absolute()))
    import asyncio

    asyncio.run(_run(kafka, None if every else names))
    output.note("Stopped.")


def _declared(file: Path) -> list[Definition]:
    from tidemill.cli.server.settings_file import entries_in
    from tidemill.connect.direct.definition import Definition

    # The options are checked when a bridge starts: an invalid one must not keep the others from it.
    return entries_in(file, Definition)


async def _run(kafka: Kafka, names: list[str] | None) -> None:
    import asyncio

    from tidemill.connect.direct.manager import Manager

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await Manager(kafka, names).run(stop)


def _changeable(name: str, servers: str, properties: list[str] | None) -> tuple[Kafka, Board]:
    """Return the cluster and the board, after a check that commands can change a bridge."""
    kafka = _BOARDS.kafka(servers, properties)
    board = _BOARDS.read(kafka)
    _BOARDS.require_changeable(board, name)
    return kafka, board


def _as_dict(board: Board, name: str) -> dict[str, Any]:
    """Return what is known of a bridge."""
    definition = json.loads(board.definitions[name])
    status = board.statuses.get(name) or {}
    phase = status.get("phase", "created")
    age_ms = max(int(time.time() * 1000) - int(status.get("updated_ms", 0)), 0)
    if status and age_ms > _STALE_MS and phase != "stopped":
        phase = "no worker"
    return {
        "name": name,
        "kind": definition.get("kind"),
        "topic": definition.get("topic"),
        "state": phase,
        "status_age_ms": age_ms if status else None,
        "declared": board.declared.get(name),
        "definition": definition,
        **{key: value for key, value in status.items() if key not in ("phase", "updated_ms")},
    }
