"""The output of the demo: on a terminal, elsewhere, and as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.cli_runner import CliRunner
from tidemill.cli.demo import view as demo_view
from tidemill.cli.demo.report import json_report
from tidemill.cli.demo.tables import QUERIES, Hour, newest_hours, queries_table, worst_hours
from tidemill.cli.demo.view import LiveView, PlainView, view_for
from tidemill.cli.main import app
from tidemill.demo.check import Check, Record, compare
from tidemill.demo.database.editor import EditProgress
from tidemill.demo.events import Lateness
from tidemill.demo.flights import Stretch
from tidemill.demo.progress import (
    BrokerReady,
    Checking,
    DatabaseReady,
    DemoReport,
    FlightsLoaded,
    KeptRunning,
    PageReady,
    PipelineStarted,
    QueriesStarting,
    Replayed,
    Running,
    SparkStarting,
    TopicsReady,
)
from tidemill.demo.replay import ReplayProgress
from tidemill.demo.results import Results
from tidemill.demo.topics import TOPICS, captured_topic
from tidemill.spark.pipelines.progress import QueryStatus, SourceStatus

STRETCH = Stretch(date(2013, 3, 10), 1)
HOUR = STRETCH.start + 12 * 3600
IDENTITY = ("airport", "window")


def hour(airport: str, start: str, departures: int, delay: int) -> dict[str, Any]:
    window = {"start": f"2013-03-10T{start}:00:00.000Z", "end": "later"}
    return {
        "airport": airport,
        "window": window,
        "departures": departures,
        "delay_minutes": delay,
    }


HOURS: list[Record] = [hour("EWR", "17", 4, 10), hour("LGA", "17", 3, 200)]
ALERT = {
    "airport": "LGA",
    "hour": {"start": "2013-03-10T17:00:00.000Z", "end": "2013-03-10T18:00:00.000Z"},
    "mean_delay_minutes": 200 / 3,
    "usual_delay_minutes": 4.4,
}
RESULTS = Results(
    records={"hourly": HOURS, "alerts": [ALERT]}, counts={"hourly": 2, "alerts": 1, "fleet": 3300}
)
REPLAY = ReplayProgress(
    total=10, sent=10, acknowledged=5, simulated_time=HOUR, seconds=2.0, finished=False
)


def status(query: str, late_rows: int = 0) -> QueryStatus:
    return QueryStatus(
        pipeline="control-room",
        query=query,
        state="running",
        batch=1,
        late_rows=late_rows,
        watermark="2013-03-10T17:00:00.000Z",
        sources=(SourceStatus("departures", 12, 5),),
    )


STATUSES = [*(status(query) for query in QUERIES), status("departures.dlq")]
EDITS = EditProgress(total=241, made=7, delivered=5)
RUNNING = Running(REPLAY, STATUSES, RESULTS, EDITS)


ALL_EDITS = EditProgress(total=241, made=241, delivered=241)


def report(
    check: Check, late_rows: int = 0, stored: int = 8, edits: EditProgress = ALL_EDITS
) -> DemoReport:
    return DemoReport(
        stretch=STRETCH,
        bootstrap_servers="127.0.0.1:1234",
        database="sqlite",
        checks=[check],
        results=RESULTS,
        replay=REPLAY,
        edits=edits,
        queries=[status("hourly", late_rows)],
        stored={"departures": stored},
        sent={"departures": 8},
        folder=Path("/data"),
        seconds=3.0,
    )


def compared(published: Sequence[Record]) -> Check:
    return compare("hourly", HOURS, published, IDENTITY)


GOOD = report(compared(HOURS))


def plain() -> tuple[PlainView, io.StringIO]:
    out = io.StringIO()
    return PlainView(Console(file=out, width=200), speed=3600.0), out


LOADED = FlightsLoaded(
    STRETCH,
    {"departure": 336_776, "cancellation": 8_255, "arrival": 327_346, "cut short": 1_300},
    Lateness(out_of_order=99_999, longest=7200),
)


def test_elsewhere_there_are_plain_lines_without_control_characters() -> None:
    view, out = plain()
    view.show(LOADED)
    view.show(BrokerReady("127.0.0.1:1234", 0.5, pid=7, data_dir=Path("/data[1]")))
    view.show(RUNNING)
    view.show(GOOD)
    text = out.getvalue()
    assert "\x1b" not in text
    assert "(23 hours)\n           336,776 departures" in text
    assert "127.0.0.1:1234, started in 0.5 s (pid 7)\n           data in /data[1]\n" in text
    assert "50%  Sun 10 Mar 13:00" in text
    assert "3,303 results up to Sun 10 Mar 13:00" in text
    assert "2 of 2 equal" in text


def test_lines_fit_a_terminal_of_80_columns() -> None:
    view, out = plain()
    view.show(LOADED)
    view.show(BrokerReady("127.0.0.1:12345", 10.5, pid=1234567, data_dir=Path("/tmp/demo")))
    captured = [captured_topic("tidemill_demo", table) for table in ("airlines", "aircraft")]
    rows = {"aircraft": 3322, "airlines": 16}
    view.show(DatabaseReady("SQLite, /tmp/demo/registry.db", rows, 1000))
    view.show(TopicsReady([topic.name for topic in TOPICS], ["departures"], captured))
    view.show(PageReady("http://127.0.0.1:54321/console/demo"))
    view.show(SparkStarting(Path("/tmp/log"), Path("/tmp/demo/search"), ""))
    view.show(SparkStarting(Path("/tmp/log"), None, "pip install 'tidemill[search]'"))
    view.show(PipelineStarted("4.3.0", "25", 100.0, 10))
    view.show(Replayed(REPLAY, EDITS))
    view.show(Checking(10_000))
    view.show(GOOD)
    assert max(len(line) for line in out.getvalue().splitlines()) <= 80


def test_keep_running_prints_commands_to_try() -> None:
    view, out = plain()
    view.show(KeptRunning("127.0.0.1:1234", "http://127.0.0.1:5678/console/demo"))
    assert "http://127.0.0.1:5678/console/demo" in out.getvalue()
    assert "tidemill pipeline describe control-room -b 127.0.0.1:1234" in out.getvalue()


def test_progress_is_a_line_every_few_seconds_not_at_each_event() -> None:
    view, out = plain()
    for _ in range(100):
        view.show(RUNNING)
    assert len(out.getvalue().splitlines()) == 1


def test_a_terminal_gets_a_bar_and_a_table_that_are_gone_at_the_end() -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, legacy_windows=False)
    with LiveView(console, speed=None) as view:
        view.show(QueriesStarting(4, 10))
        view.show(PipelineStarted("4.3.0", "25", 100.0, 10))
        view.show(RUNNING)
        view.show(GOOD)
    text = out.getvalue()
    assert "4 of 10 queries have started" in text
    assert "reports/s" in text
    assert "5 of 241 edits" in text
    assert "+66.7" in text
    assert all(query in text for query in QUERIES)
    assert "LGA Sun 10 Mar 13:00: +67 minutes, where +4 were usual" in text
    assert text.index("reports/s") < text.index("2 of 2 equal")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 2  # the cursor is back


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


def test_the_view_depends_on_the_stream() -> None:
    assert type(view_for(io.StringIO(), speed=None, silent=False)) is PlainView
    assert type(view_for(io.StringIO(), speed=None, silent=True)) is demo_view.View


def test_each_kind_of_difference_is_named() -> None:
    view, out = plain()
    others = [hour("EWR", "17", 4, 11), hour("JFK", "17", 1, 0), hour("JFK", "17", 1, 0)]
    bad = report(compared(others), late_rows=3, stored=7)
    assert not bad.ok
    view.show(bad)
    text = out.getvalue()
    assert "0 of 2 equal" in text
    for said in (
        "unequal: EWR",
        "missing: LGA",
        "unexpected: JFK",
        "published again: JFK",
        "3 reports came too late",
        "8 were sent, 7 are stored",
        "logs and data are in /data",
    ):
        assert said in text


def test_of_many_differences_the_first_are_shown_and_all_are_counted() -> None:
    view, out = plain()
    view.show(report(compared([*HOURS, *(hour("JFK", f"{h:02}", 1, 0) for h in range(9))])))
    assert out.getvalue().count("unexpected: JFK") == 5
    assert "... 9 unexpected in all" in out.getvalue()


@pytest.mark.parametrize(
    "bad",
    [
        report(compared([])),
        report(compared([*HOURS, HOURS[0]])),
        report(compared(HOURS), late_rows=1),
        report(compared(HOURS), stored=7),
        report(compared(HOURS), edits=EDITS),
        replace(GOOD, checks=[]),
    ],
)
def test_a_report_is_good_only_if_all_of_it_is(bad: DemoReport) -> None:
    assert GOOD.ok
    assert not bad.ok


def test_the_lag_uses_the_newest_end_that_any_query_has_seen() -> None:
    out = io.StringIO()
    seen = (SourceStatus("departures", 3, 50), SourceStatus("arrivals", 0, 7))
    looked_up = SourceStatus("aircraft", -1, 0)
    statuses = [
        replace(status("hourly"), sources=(SourceStatus("departures", 0, 1), looked_up)),
        replace(status("outcomes"), sources=seen),
    ]
    Console(file=out, width=200).print(queries_table(statuses, RESULTS))
    hourly, outcomes = out.getvalue().splitlines()[1:]
    assert " 52 " in hourly
    assert " 3 " in outcomes.replace("13 hours", "")


def test_the_newest_and_the_worst_hours_are_chosen() -> None:
    def made(start: int, delay: int) -> Hour:
        return Hour("EWR", start * 3600, 1, delay)

    hours = [made(n, delay=-n) for n in range(20)]
    assert [hour.start // 3600 for hour in newest_hours(hours)] == list(range(12, 20))
    assert [hour.start // 3600 for hour in worst_hours(hours)] == list(range(6))


def test_a_machine_reads_the_report_as_json() -> None:
    bad = json.loads(json.dumps(json_report(report(compared([])))))
    assert bad["ok"] is False
    assert (bad["database"], bad["edits"]) == ("sqlite", 241)
    assert bad["queries"]["hourly"]["expected"] == 2
    assert bad["queries"]["hourly"]["missing"] == [
        "EWR|2013-03-10T17:00:00.000Z/later",
        "LGA|2013-03-10T17:00:00.000Z/later",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--speed", "fast"], "invalid speed"),
        (["--from", "tomorrow"], "invalid date"),
        (["--from", "2014-01-01"], "not within the data set"),
        (["--days", "0"], "--days"),
        (["--database", "oracle"], "invalid database"),
    ],
)
def test_wrong_flags_are_refused_before_anything_is_started(
    arguments: list[str], said: str
) -> None:
    done = CliRunner().invoke(app, ["demo", *arguments])
    assert done.exit_code == 2
    assert said in done.output
