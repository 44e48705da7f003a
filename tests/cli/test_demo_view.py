"""The demo on a terminal and elsewhere: what a user is told, and what a machine reads."""

from __future__ import annotations

import io
import json
from datetime import date
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tidemill.cli import demo_view
from tidemill.cli.demo_view import LiveView, PlainView, json_report, view_for
from tidemill.cli.main import app
from tidemill.demo.check import Comparison, WindowFigures, WindowKey, compare
from tidemill.demo.events import Lateness
from tidemill.demo.flights import Stretch
from tidemill.demo.pipeline import QueryProgress
from tidemill.demo.progress import (
    BrokerReady,
    Checking,
    DemoReport,
    FlightsLoaded,
    PipelineStarted,
    Running,
)
from tidemill.demo.replay import ReplayProgress

STRETCH = Stretch(date(2013, 3, 10), 1)
HOUR = STRETCH.start + 12 * 3600
WINDOWS: dict[WindowKey, WindowFigures] = {
    ("EWR", HOUR): WindowFigures(4, 10, 2.5),
    ("LGA", HOUR): WindowFigures(3, 200, 200 / 3),
}
REPLAY = ReplayProgress(
    total=10, sent=10, acknowledged=5, simulated_time=HOUR, seconds=2.0, finished=False
)
RUNNING = Running(REPLAY, QueryProgress(batches=2, read_up_to=5, watermark=HOUR), WINDOWS)


def report(comparison: Comparison, dropped_late: int = 0, stored: int = 8) -> DemoReport:
    return DemoReport(
        stretch=STRETCH,
        bootstrap_servers="127.0.0.1:1234",
        comparison=comparison,
        windows=WINDOWS,
        replay=REPLAY,
        query=QueryProgress(batches=2, dropped_late=dropped_late),
        stored={"departures": stored},
        sent={"departures": 8},
        repeated=0,
        folder=Path("/data"),
        seconds=3.0,
    )


GOOD = report(compare(WINDOWS, WINDOWS))


def plain() -> tuple[PlainView, io.StringIO]:
    out = io.StringIO()
    return PlainView(Console(file=out, width=200), speed=3600.0), out


def test_elsewhere_there_are_plain_lines_without_control_characters() -> None:
    view, out = plain()
    view.show(FlightsLoaded(STRETCH, 700, 600, Lateness(out_of_order=5, longest=7000)))
    view.show(BrokerReady("127.0.0.1:1234", 0.5, pid=7, data_dir=Path("/data[1]")))
    view.show(RUNNING)
    view.show(GOOD)
    text = out.getvalue()
    assert "\x1b" not in text
    assert "(23 hours)\n           700 departures" in text
    assert "127.0.0.1:1234, started in 0.5 s (pid 7)\n           data in /data[1]\n" in text
    assert "50%  Sun 10 Mar 13:00" in text
    assert "2 of 2 windows equal" in text


def test_what_is_said_fits_a_terminal_of_80_columns() -> None:
    view, out = plain()
    view.show(FlightsLoaded(STRETCH, 336_776, 336_776, Lateness(out_of_order=99_999, longest=7200)))
    view.show(BrokerReady("127.0.0.1:12345", 10.5, pid=1234567, data_dir=Path("/tmp/demo")))
    view.show(PipelineStarted("4.3.0", "25.0.15", 100.0))
    view.show(Checking(10_000))
    view.show(GOOD)
    assert max(len(line) for line in out.getvalue().splitlines()) <= 80


def test_progress_is_a_line_every_few_seconds_not_at_each_event() -> None:
    view, out = plain()
    for _ in range(100):
        view.show(RUNNING)
    assert len(out.getvalue().splitlines()) == 1


def test_a_terminal_gets_a_bar_and_a_table_that_are_gone_at_the_end() -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, legacy_windows=False)
    with LiveView(console, speed=None) as view:
        view.show(RUNNING)
        view.show(GOOD)
    text = out.getvalue()
    assert "reports/s" in text
    assert "+66.7" in text
    assert text.index("reports/s") < text.index("2 of 2 windows equal")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back


def test_the_terminal_is_restored_after_an_interrupt() -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, legacy_windows=False)

    def interrupted() -> None:
        with LiveView(console, speed=None) as view:
            view.show(RUNNING)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert out.getvalue().count("\x1b[?25h") == 1


def test_the_view_suits_the_stream() -> None:
    assert type(view_for(io.StringIO(), speed=None, silent=False)) is PlainView
    assert type(view_for(io.StringIO(), speed=None, silent=True)) is demo_view.View


def test_each_kind_of_difference_is_named() -> None:
    view, out = plain()
    other = {("EWR", HOUR): WindowFigures(4, 11, 2.75), ("JFK", HOUR): WindowFigures(1, 0, 0.0)}
    bad = report(compare(WINDOWS, other), dropped_late=3, stored=7)
    assert not bad.ok
    view.show(bad)
    text = out.getvalue()
    assert "0 of 2 windows equal" in text
    for said in (
        "unequal: EWR",
        "missing: LGA",
        "unexpected: JFK",
        "3 reports came too late",
        "8 were sent, 7 are stored",
        "logs and data are in /data",
    ):
        assert said in text


@pytest.mark.parametrize(
    "bad",
    [
        report(compare(WINDOWS, {})),
        report(compare(WINDOWS, WINDOWS), dropped_late=1),
        report(compare(WINDOWS, WINDOWS), stored=7),
    ],
)
def test_a_report_is_good_only_if_all_of_it_is(bad: DemoReport) -> None:
    assert GOOD.ok
    assert not bad.ok


def test_a_machine_reads_the_report_as_json() -> None:
    bad = json.loads(json.dumps(json_report(report(compare(WINDOWS, {})))))
    assert bad["ok"] is False
    assert bad["windows"]["expected"] == 2
    assert bad["windows"]["missing"] == ["EWR|2013-03-10T17:00:00Z", "LGA|2013-03-10T17:00:00Z"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--speed", "fast"], "not a speed"),
        (["--from", "tomorrow"], "not a date"),
        (["--from", "2014-01-01"], "not within the data set"),
        (["--days", "0"], "--days"),
    ],
)
def test_wrong_flags_are_refused_before_anything_is_started(
    arguments: list[str], said: str
) -> None:
    done = CliRunner().invoke(app, ["demo", *arguments])
    assert done.exit_code == 2
    assert said in done.output
