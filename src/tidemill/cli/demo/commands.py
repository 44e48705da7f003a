"""``tidemill demo``: runs the demo and shows its progress."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import output
from tidemill.extras import require_extra

if TYPE_CHECKING:
    from tidemill.demo.flights import Stretch

DEFAULT_FROM = "2013-03-06"
DEFAULT_DAYS = 5
DEFAULT_SPEED = "7200x"


FirstDay = Annotated[
    str, typer.Option("--from", metavar="DATE", help="First day to replay, in 2013.")
]
Days = Annotated[int, typer.Option("--days", metavar="N", min=1, help="Number of days.")]
Speed = Annotated[
    str,
    typer.Option(
        "--speed",
        metavar="SPEED",
        help="Multiple of real time (3600x is an hour per second), or max.",
    ),
]
KeepRunning = Annotated[
    bool,
    typer.Option("--keep-running", help="Keep the broker and the pipeline running until Ctrl-C."),
]
Servers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT",
        help="Use this broker (tidemill or Apache Kafka) instead of starting one.",
        show_default=False,
    ),
]
Reset = Annotated[
    bool,
    typer.Option("--reset", help="First delete the demo's topics of an earlier run."),
]
DemoFolder = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="New or empty folder for data and logs; default: a temporary one.",
        show_default=False,
    ),
]
Database = Annotated[
    str,
    typer.Option(
        "--database",
        metavar="URL",
        help="Database of the tables: sqlite, or postgresql://USER@HOST/NAME.",
    ),
]
ReportOnly = Annotated[
    bool, typer.Option("--json", help="Print only the report at the end, as JSON.")
]


def demo(
    first_day: FirstDay = DEFAULT_FROM,
    days: Days = DEFAULT_DAYS,
    speed: Speed = DEFAULT_SPEED,
    keep_running: KeepRunning = False,
    bootstrap_servers: Servers = None,
    reset: Reset = False,
    data_dir: DemoFolder = None,
    database: Database = "sqlite",
    as_json: ReportOnly = False,
) -> None:
    """Run a demo pipeline on the flights that left New York in 2013, and check its results.

    Departures, cancellations and arrivals become events, which are reported late and out of order.
    Meanwhile tables of aircraft and airlines change in a database, which is captured. A pipeline on
    Spark computes windows, joins and alerts, and a search index follows the aircraft: read
    src/tidemill/demo/control_room.py. At the end each result is computed again from the data set
    and the list of edits. The exit code is 0 only if every record is equal.

    With PostgreSQL, the tables are in the schema tidemill_demo, which is dropped at the end.

    The default days have a snow storm (8 March) and the change to daylight saving time.
    """
    require_extra("demo")
    from tidemill.cli.demo.report import json_report
    from tidemill.cli.demo.view import view_for
    from tidemill.demo.replay import parse_speed
    from tidemill.demo.run import DemoOptions, run_demo

    options = DemoOptions(
        stretch=_stretch(first_day, days),
        speed=parse_speed(speed),
        bootstrap_servers=bootstrap_servers,
        data_dir=data_dir,
        reset=reset,
        keep_running=keep_running,
        database=database,
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
            f"--from {first_day}: invalid date", hint="For example 2013-03-06."
        ) from None
    return Stretch(first, days)


def _end_on_signals() -> None:
    """Handle SIGTERM and SIGHUP like Ctrl-C: stop everything that the demo has started."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
