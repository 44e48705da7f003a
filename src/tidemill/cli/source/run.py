"""``tidemill source run``: runs sources in this process."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import output
from tidemill.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Property
from tidemill.cli.output import UsageError
from tidemill.cli.source.kafka import board_of, kafka_of, require

if TYPE_CHECKING:
    from tidemill.connect.cdc.definition import Definition


def run(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Names of the sources.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Run all sources that are managed, also later ones.")
    ] = False,
    declared: Annotated[
        Path | None,
        typer.Option(
            "--declared",
            metavar="FILE",
            help="First store the sources that a settings file declares as [[source]], and pause "
            "those that are not in it any more.",
        ),
    ] = None,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Run sources in this process, until Ctrl-C or SIGTERM.

    The worker of 'tidemill dev' and 'tidemill serve' is 'tidemill source run --all --declared
    FILE', with their settings file. A source has one worker: a second one fences the first, which
    then ends with an error.
    """
    import gc
    import sys

    from tidemill import telemetry
    from tidemill.connect.cdc.definition import Definition
    from tidemill.connect.cdc.manager import Manager

    if bool(names) == every:
        raise UsageError("name the sources to run, or use --all")
    if declared is not None and not every:
        raise UsageError("--declared is for --all")
    definitions = [] if declared is None else _declared(declared)
    kafka = kafka_of(servers, properties)
    if names:
        board = board_of(kafka)
        for name in names:
            require(board, name)
            Definition.decode(board.definitions[name])
    telemetry.configure("info", "auto", color=output.colored(sys.stderr))
    if declared is not None:
        from tidemill.connect.base.declared import apply_declared
        from tidemill.connect.cdc.topics import SOURCES

        apply_declared(kafka, SOURCES, "source", definitions, str(declared.absolute()))
    # A batch is thousands of small objects without cycles: collections would only look at them.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    Manager(kafka, None if every else names).run(stop)
    output.note("Stopped.")


def _declared(file: Path) -> list[Definition]:
    """Return the sources that a settings file declares."""
    from tidemill.cli.server.settings_file import entries_in
    from tidemill.connect.cdc.definition import Definition

    return entries_in(file, Definition)
