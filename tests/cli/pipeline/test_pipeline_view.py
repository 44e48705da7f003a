"""The view of a running pipeline: lines in a file, a table on a terminal."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from tests.cli.conftest import Terminal
from tidemill.cli.pipeline.status import troubles
from tidemill.cli.pipeline.view import LineView, LiveView, view_for
from tidemill.spark.pipelines.progress import QueryStatus, SourceStatus

STATUS = QueryStatus(
    pipeline="flights",
    query="hourly",
    state="running",
    rows=1200,
    rows_per_second=480.4,
    late_rows=3,
    watermark="2026-03-01T14:19:00.000Z",
    latency_p50_ms=180,
    sources=(SourceStatus("a", 7), SourceStatus("table")),
)


def test_lines_appear_for_changes_only() -> None:
    out = io.StringIO()
    failed = replace(STATUS, state="waiting", error="ValueError: no good")
    with view_for(out) as view:
        for status in (
            replace(STATUS, state="starting"),
            STATUS,
            replace(STATUS, rows=2400),
            failed,
            replace(STATUS, restarts=1, error=failed.error),
            replace(failed, state="failed", restarts=1),
        ):
            view.show(status)

    assert isinstance(view, LineView)
    assert out.getvalue().splitlines() == [
        "flights/hourly: starting",
        "flights/hourly: running",
        "flights/hourly: waiting: ValueError: no good",
        "flights/hourly: running",
        "flights/hourly: failed: ValueError: no good",
    ]


def test_an_error_that_several_queries_have_is_printed_once() -> None:
    out = io.StringIO()
    reason = f"the topic is gone{' for ever' * 60}: tidemill pipeline reset flights --query "
    with view_for(out) as view:
        for query in ("a", "b", "c"):
            view.show(replace(STATUS, query=query, state="failed", error=reason + query))

    assert out.getvalue().splitlines() == [
        f"flights/a: failed: {reason}a",
        "flights/b: failed: the same error as a",
        "flights/c: failed: the same error as a",
    ]


def shown_at(monkeypatch: pytest.MonkeyPatch, columns: int, *statuses: QueryStatus) -> list[str]:
    """The last picture on a terminal of that width, in lines without colours."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    view = view_for(out)
    assert isinstance(view, LiveView)
    with view:
        for status in statuses:
            view.show(status)
        picture = out.getvalue().rpartition("QUERY")[2]
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", f"QUERY{picture}").splitlines()
    return [line.strip("\r").rstrip() for line in lines]


FAILED = replace(STATUS, query="now", state="failed", error=f"ValueError: no good{' at all' * 20}")


def test_a_terminal_shows_a_table_and_errors_below(monkeypatch: pytest.MonkeyPatch) -> None:
    header, first, second, *errors = shown_at(monkeypatch, 120, STATUS, FAILED)

    assert header.split() == [
        *("QUERY", "STATE", "ROWS", "ROWS/S", "LAG", "LATE", "WATERMARK", "LATENCY")
    ]
    assert first.split() == [
        *("hourly", "running", "1,200", "480", "7", "3", "2026-03-01", "14:19", "180ms")
    ]
    assert second.split()[:2] == ["now", "failed"]
    assert " ".join(errors).split() == ["now:", *str(FAILED.error).split()]


def test_on_a_narrow_terminal_names_and_times_are_wrapped_before_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting = replace(STATUS, query="departures_by_airport", state="waiting", error="no good")
    lines = shown_at(monkeypatch, 60, STATUS, waiting)

    for whole in ("ROWS", "ROWS/S", "LAG", "LATE", "LATENCY", "1,200", "480", "180ms", "waiting"):
        assert any(whole in line.split() for line in lines), lines
    assert lines[-1] == "departures_by_airport: no good"
    assert max(map(len, lines)) <= 60


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_warnings_are_shown(monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO]) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out = stream()
    with view_for(out) as view:
        view.warn("it runs [twice]")

    assert "warning: it runs [twice]" in out.getvalue()


def test_errors_are_shown_after_a_stopped_run() -> None:
    stopped = replace(STATUS, state="stopped", error="ValueError: cannot halve 7 (delays.py:24)")

    assert troubles(
        [
            STATUS,
            stopped,
            replace(stopped, restarts=2),
            replace(stopped, state="failed"),  # told as the error of the run
        ]
    ) == [
        "hourly: last error: ValueError: cannot halve 7 (delays.py:24)",
        "hourly: last error: ValueError: cannot halve 7 (delays.py:24) (restarted: 2)",
    ]
    assert troubles([replace(stopped, query="a"), replace(stopped, query="b")]) == [
        "a, b: last error: ValueError: cannot halve 7 (delays.py:24)",
    ]
