"""``tidemill webhook run``: delivers webhooks in this process."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli import output
from tidemill.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Property
from tidemill.cli.source.kafka import kafka_of
from tidemill.cli.webhook.kafka import board_of, require
from tidemill.connect.webhooks.topics import WEBHOOKS


def run(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Names of the webhooks.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Deliver all webhooks that are managed, also later ones.")
    ] = False,
    declared: Annotated[
        Path | None,
        typer.Option(
            "--declared",
            metavar="FILE",
            help="First store the webhooks that a settings file declares as [[webhook]], and pause "
            "those that are not in it any more.",
        ),
    ] = None,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Deliver webhooks in this process, until Ctrl-C or SIGTERM.

    The worker of 'tidemill dev' and 'tidemill serve' is 'tidemill webhook run --all --declared
    FILE', with their settings file. A webhook has one worker: a second one takes over, and the
    first stops delivering it.
    """
    from tidemill import telemetry
    from tidemill.connect.webhooks.definition import Webhook
    from tidemill.connect.webhooks.manager import Manager

    if bool(names) == every:
        raise output.UsageError("name the webhooks to deliver, or use --all")
    if declared is not None and not every:
        raise output.UsageError("--declared is for --all")
    entries: list[Webhook] = []
    if declared is not None:
        from tidemill.cli.server.settings_file import entries_in

        entries = entries_in(declared, Webhook)
    kafka = kafka_of(servers, properties)
    if names:
        board = board_of(kafka)
        for name in names:
            require(board, name)
            Webhook.decode(board.definitions[name])
    telemetry.configure("info", "auto", color=output.colored(sys.stderr))
    if declared is not None:
        from tidemill.connect.base.declared import apply_declared

        apply_declared(kafka, WEBHOOKS, "webhook", entries, str(declared.absolute()))
    # What waits is many small objects without cycles: collections would only look at them.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    Manager(kafka, None if every else names).run(stop)
    output.note("Stopped.")
