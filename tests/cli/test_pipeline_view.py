"""What a person sees while a pipeline runs: lines in a file, a table on a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from tidemill.cli.pipeline_view import LineView, LiveView, view_for
from tidemill.spark.progress import QueryStatus, SourceStatus

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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_tell_of_changes_only() -> None:
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


def test_a_terminal_shows_a_table_and_errors_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with view_for(out) as view:
        view.show(STATUS)
        view.show(replace(STATUS, query="now", state="failed", error="ValueError: no good"))

    assert isinstance(view, LiveView)
    shown = out.getvalue()
    for text in ("QUERY", "hourly", "1,200", "480", "2026-03-01 14:19", "180ms", "now", "failed"):
        assert text in shown
    assert "ValueError: no good" in shown
