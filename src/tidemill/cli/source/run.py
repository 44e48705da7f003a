"""``tidemill source run``: runs sources in this process."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from tidemill.cli import output
from tidemill.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Property
from tidemill.cli.output import UsageError
from tidemill.cli.source.kafka import board_of, kafka_of, require


def run(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Names of the sources.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Run all sources that are managed, also later ones.")
    ] = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Run sources in this process, until Ctrl-C or SIGTERM.

    The worker of 'tidemill dev' and 'tidemill serve' is 'tidemill source run --all'. A source has
    one worker: a second one fences the first, which then ends with an error.
    """
    import gc
    import sys

    from tidemill import telemetry
    from tidemill.connect.cdc.manager import Manager

    if bool(names) == every:
        raise UsageError("name the sources to run, or use --all")
    kafka = kafka_of(servers, properties)
    if names:
        board = board_of(kafka)
        for name in names:
            require(board, name)
            board.definition(name)
    telemetry.configure("info", "auto", color=output.colored(sys.stderr))
    # A batch is thousands of small objects without cycles: collections would only look at them.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    # A batch of changes is thousands of dictionaries without cycles: looking for cycles after every
    # 700 of them, as Python does by default, takes a fifth of the time of a change.
    gc.set_threshold(50_000, 20, 50)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    Manager(kafka, None if every else names).run(stop)
    output.note("Stopped.")
