"""``tidemill demo``: options, and how what the demo tells is shown."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import output

if TYPE_CHECKING:
    from tidemill.demo.flights import Stretch

DEFAULT_FROM = "2013-03-06"
DEFAULT_DAYS = 5
DEFAULT_SPEED = "7200x"


def demo(
    first_day: Annotated[
        str, typer.Option("--from", metavar="DATE", help="First day to replay, in 2013.")
    ] = DEFAULT_FROM,
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=1, help="How many days.")
    ] = DEFAULT_DAYS,
    speed: Annotated[
        str,
        typer.Option(
            "--speed",
            metavar="SPEED",
            help="Multiple of life's speed (3600x is an hour in a second), or max.",
        ),
    ] = DEFAULT_SPEED,
    keep_running: Annotated[
        bool,
        typer.Option("--keep-running", help="Leave broker and pipeline on until Ctrl-C."),
    ] = False,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-servers",
            "-b",
            metavar="HOST:PORT",
            help="Use this broker (tidemill or Apache Kafka) instead of starting one.",
            show_default=False,
        ),
    ] = None,
    reset: Annotated[
        bool,
        typer.Option("--reset", help="Delete the demo's topics of an earlier run first."),
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="Folder for data and logs, new or empty; default: a temporary one.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Only the report at the end, as JSON.")
    ] = False,
) -> None:
    """Run a control room for the flights that left New York in 2013, and check its results.

    Departures, cancellations and arrivals become events, reported late and out of order; tables of
    aircraft and airlines change meanwhile. A pipeline on Spark computes windows, joins and alerts
    (src/tidemill/demo/control_room.py is to be read). At the end each result is computed once more,
    directly from the data set; the exit code is 0 only if every record is equal.

    The default stretch holds a snow storm (8 March) and the change to daylight saving time.
    """
    from tidemill.cli.demo_view import json_report, view_for
    from tidemill.demo.replay import parse_speed
    from tidemill.demo.run import DemoOptions, run_demo

    options = DemoOptions(
        stretch=_stretch(first_day, days),
        speed=parse_speed(speed),
        bootstrap_servers=bootstrap_servers,
        data_dir=data_dir,
        reset=reset,
        keep_running=keep_running,
    )
    _end_on_signals()
    view = view_for(sys.stdout, speed=options.speed, silent=as_json)
    with view:
        report = run_demo(options, view.show)
    if as_json:
        output.emit_json(json_report(report))
    if not report.ok:
        raise typer.Exit(output.FAILURE)


def _stretch(first_day: str, days: int) -> Stretch:
    from datetime import date

    from tidemill.demo.flights import Stretch

    try:
        first = date.fromisoformat(first_day)
    except ValueError:
        raise output.UsageError(
            f"--from {first_day}: not a date", hint="For example 2013-03-06."
        ) from None
    return Stretch(first, days)


def _end_on_signals() -> None:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does: everything that was started is stopped."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
