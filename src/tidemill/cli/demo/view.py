"""Shows the demo: a live display on a terminal, plain lines elsewhere.

This module must not know how the demo runs.
"""

from __future__ import annotations

import time
from typing import Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from tidemill.cli.demo.lines import labelled, lines_for, pipeline_text, rate_of
from tidemill.cli.demo.report import result_lines
from tidemill.cli.demo.tables import (
    alert_text,
    hours_of,
    hours_table,
    local,
    newest_hours,
    queries_table,
    worst_hours,
)
from tidemill.demo.progress import DemoReport, Event, QueriesStarting, Running

_PLAIN_LINE_EVERY_S = 5.0
_ALERTS_SHOWN = 4


class View:
    """A view that shows nothing, for ``--json``."""

    def show(self, event: Event) -> None:
        """Show an event."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the terminal."""


def view_for(stream: TextIO, *, speed: float | None, silent: bool) -> View:
    """Return the view for a stream. ``speed`` is that of the replay; None: without waiting."""
    if silent:
        return View()
    console = Console(file=stream, highlight=False, soft_wrap=True)
    return LiveView(console, speed) if console.is_terminal else PlainView(console, speed)


class PlainView(View):
    """A view that prints a line for each event, and every few seconds during the replay."""

    def __init__(self, console: Console, speed: float | None) -> None:
        self.console = console
        self._speed = speed
        self._next_line = 0.0

    def show(self, event: Event) -> None:
        match event:
            case Running():
                self.show_running(event)
            case QueriesStarting():
                self.show_starting(event)
            case DemoReport():
                self.show_report(event)
            case _:
                for line in lines_for(event, self._speed):
                    self.console.print(line)

    def show_starting(self, starting: QueriesStarting) -> None:
        """Show nothing. A line appears when all queries have started."""

    def show_running(self, running: Running) -> None:
        """Print a line of progress, if the last one is some seconds old."""
        now = time.monotonic()
        if now < self._next_line:
            return
        self._next_line = now + _PLAIN_LINE_EVERY_S
        replay = running.replay
        self.console.print(
            f"  {replay.acknowledged / replay.total:4.0%}"
            f"  {local(replay.simulated_time)}"
            f"  {replay.acknowledged:,} of {replay.total:,} reports sent,"
            f" {running.edits.delivered:,} of {running.edits.total:,} edits followed;"
            f" {pipeline_text(running.queries, running.results)}"
        )

    def show_report(self, report: DemoReport) -> None:
        """Print the result."""
        self.console.print()
        self.console.print(Text("The hours with the most delay:"))
        self.console.print(hours_table(worst_hours(hours_of(report.results))))
        self.console.print()
        for line in result_lines(report):
            self.console.print(line)


class LiveView(PlainView):
    """A view that redraws a progress bar, all queries, the newest hours and alerts in place."""

    def __init__(self, console: Console, speed: float | None) -> None:
        super().__init__(console, speed)
        self._bar = Progress(
            TextColumn("[bold]replay[/]"),
            BarColumn(bar_width=40),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn(
                "[cyan]{task.fields[clock]}[/]  [dim]{task.fields[rate]:,.0f} reports/s,[/]"
            ),
            TextColumn("[dim]{task.fields[edits]} edits[/]"),
            console=console,
        )
        self._task = self._bar.add_task("replay", total=None, clock="", rate=0.0, edits="")
        self._live: Live | None = None

    def show(self, event: Event) -> None:
        if not isinstance(event, (Running, QueriesStarting)):
            self._end_live()
        super().show(event)

    def show_running(self, running: Running) -> None:
        """Redraw the display."""
        replay = running.replay
        self._bar.update(
            self._task,
            total=replay.total,
            completed=replay.acknowledged,
            clock=local(replay.simulated_time),
            rate=rate_of(replay),
            edits=f"{running.edits.delivered:,} of {running.edits.total:,}",
        )
        self._draw(self._picture(running))

    def show_starting(self, starting: QueriesStarting) -> None:
        """Redraw the number of queries that have started."""
        if starting.queries:
            what = f"{starting.started} of {starting.queries} queries have started"
            self._draw(labelled("", what, "dim"))

    def __exit__(self, *_: object) -> None:
        self._end_live()

    def _draw(self, picture: RenderableType) -> None:
        if self._live is None:
            self._live = Live(console=self.console, refresh_per_second=5, transient=True)
            self._live.start()
        self._live.update(picture)

    def _picture(self, running: Running) -> RenderableType:
        newest = newest_hours(hours_of(running.results))
        hours: RenderableType = hours_table(newest)
        if not newest:
            hours = Text("No window is final yet: each waits two hours for late reports.", "dim")
        alerts = running.results.records.get("alerts", [])[-_ALERTS_SHOWN:]
        return Group(
            Text(),
            self._bar,
            Text(),
            queries_table(running.queries, running.results),
            Text(),
            hours,
            *([Text()] if alerts else []),
            *(alert_text(alert) for alert in alerts),
        )

    def _end_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
