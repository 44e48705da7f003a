"""How the demo looks: a live display on a terminal, plain lines elsewhere. Runs nothing itself."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from tidemill.demo.events import ARRIVALS, DEPARTURES
from tidemill.demo.flights import ORIGIN_ZONE
from tidemill.demo.progress import (
    BrokerReady,
    Checking,
    DemoReport,
    Event,
    FlightsLoaded,
    KeptRunning,
    PipelineStarted,
    Replayed,
    Running,
    SparkStarting,
    Stopping,
    TopicsReady,
)
from tidemill.demo.topics import HOURLY

if TYPE_CHECKING:
    from tidemill.demo.check import WindowFigures, WindowKey
    from tidemill.demo.replay import ReplayProgress

AIRPORTS = ("EWR", "JFK", "LGA")

_PLAIN_LINE_EVERY_S = 5.0
_HOURS_SHOWN = 12
_SHOWN_DIFFERENCES = 10


class View:
    """Shows nothing: for ``--json``."""

    def show(self, event: Event) -> None:
        """Show an event."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""


def view_for(stream: TextIO, *, speed: float | None, silent: bool) -> View:
    """The view that suits where the output goes.

    Args:
        stream: where it goes.
        speed: of the replay; ``None`` is without waiting.
        silent: show nothing at all.
    """
    if silent:
        return View()
    console = Console(file=stream, highlight=False, soft_wrap=True)
    return LiveView(console, speed) if console.is_terminal else PlainView(console, speed)


class PlainView(View):
    """A line for each event, and one every few seconds while reports are replayed."""

    def __init__(self, console: Console, speed: float | None) -> None:
        self.console = console
        self._speed = speed
        self._next_line = 0.0

    def show(self, event: Event) -> None:
        match event:
            case Running():
                self.show_running(event)
            case DemoReport():
                self.show_report(event)
            case _:
                for line in lines_for(event, self._speed):
                    self.console.print(line)

    def show_running(self, running: Running) -> None:
        """A line of progress, if the last one is some time ago."""
        now = time.monotonic()
        if now < self._next_line:
            return
        self._next_line = now + _PLAIN_LINE_EVERY_S
        replay = running.replay
        self.console.print(
            f"  {replay.acknowledged / replay.total:4.0%}"
            f"  {local(replay.simulated_time)}"
            f"  {replay.acknowledged:,} of {replay.total:,} reports sent;"
            f" {pipeline_text(running)}"
        )

    def show_report(self, report: DemoReport) -> None:
        """The result."""
        self.console.print()
        self.console.print(Text("The hours with the most delay:"))
        self.console.print(hours_table(worst_hours(report.windows)))
        self.console.print()
        for line in verdict(report):
            self.console.print(line)


class LiveView(PlainView):
    """A progress bar and a table of the newest windows that are redrawn in place."""

    def __init__(self, console: Console, speed: float | None) -> None:
        super().__init__(console, speed)
        self._bar = Progress(
            TextColumn("[bold]replay[/]"),
            BarColumn(bar_width=40),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("[cyan]{task.fields[clock]}[/]  [dim]{task.fields[rate]:,.0f} reports/s[/]"),
            console=console,
        )
        self._task = self._bar.add_task("replay", total=None, clock="", rate=0.0)
        self._live: Live | None = None

    def show(self, event: Event) -> None:
        if not isinstance(event, Running):
            self._end_live()
        super().show(event)

    def show_running(self, running: Running) -> None:
        """Redraw."""
        replay = running.replay
        self._bar.update(
            self._task,
            total=replay.total,
            completed=replay.acknowledged,
            clock=local(replay.simulated_time),
            rate=rate_of(replay),
        )
        if self._live is None:
            self._live = Live(console=self.console, refresh_per_second=5, transient=True)
            self._live.start()
        self._live.update(self._picture(running))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_live()

    def _picture(self, running: Running) -> RenderableType:
        query, windows = running.query, running.windows
        hours: RenderableType = hours_table(newest_hours(windows))
        if not windows:
            hours = Text("No window is final yet: each waits two hours for late reports.", "dim")
        return Group(
            Text(),
            self._bar,
            Text(f"pipeline  {pipeline_text(running)}, {query.batches:,} batches", "dim"),
            Text(),
            hours,
        )

    def _end_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


# --- text ----------------------------------------------------------------------------------------


def said(label: str, text: str, style: str = "") -> Text:
    """A line with a label in the margin."""
    return Text.assemble((f"{label:<11}", "bold"), (text, style))


def lines_for(event: Event, speed: float | None) -> Iterable[Text]:
    """What is said about an event that is not drawn, in lines for a terminal of 80 columns."""
    match event:
        case FlightsLoaded():
            stretch, late = event.stretch, event.lateness
            yield said(
                "Flights",
                f"{stretch.first:%a %d %b %Y} to {stretch.last:%a %d %b %Y}"
                f" ({(stretch.end - stretch.start) // 3600} hours)",
            )
            yield said(
                "",
                f"{event.departures:,} departures and {event.arrivals:,} arrivals",
            )
            yield said(
                "",
                f"reported up to {late.longest // 60} minutes late,"
                f" {late.out_of_order:,} of them out of order",
            )
        case BrokerReady():
            started = f"started in {event.seconds:.1f} s (pid {event.pid})"
            yield said("Broker", f"{event.address}, {started if event.pid else 'runs already'}")
            if event.pid:
                yield said("", f"data in {event.data_dir}")
        case TopicsReady():
            if event.deleted:
                yield said("Topics", f"deleted those of an earlier run: {', '.join(event.deleted)}")
            yield said("Topics", ", ".join(event.created))
        case SparkStarting():
            yield said("Spark", "starting, which takes some seconds")
        case PipelineStarted():
            yield said(
                "Pipeline",
                f"started in {event.seconds:.1f} s (Spark {event.spark_version},"
                f" Java {event.java}):",
            )
            yield said("", f"{DEPARTURES} -> count, mean delay by airport, hour -> {HOURLY}")
            pace = "as fast as it goes" if speed is None else f"at {speed:,g} times life's speed"
            yield said("Replay", f"{DEPARTURES} and {ARRIVALS}, {pace}")
        case Replayed():
            replay = event.replay
            yield said(
                "Replayed",
                f"{replay.acknowledged:,} reports in {replay.seconds:.1f} s"
                f" ({rate_of(replay):,.0f}/s),"
                " each acknowledged as on disk",
            )
        case Checking():
            yield said(
                "Results",
                f"{event.results:,} windows in {HOURLY}; computing them once more",
            )
        case KeptRunning():
            yield Text()
            yield Text(f"Broker and pipeline go on at {event.address}. Ctrl-C stops them. Try:")
            yield Text(
                f"  tidemill topic consume {HOURLY} --from beginning --count 5 -b {event.address}"
            )
        case Stopping():
            yield Text("Stopping the pipeline.", style="dim")
        case _:
            pass


def verdict(report: DemoReport) -> Iterable[Text]:
    """Whether it is right, and if not, where."""
    comparison, query = report.comparison, report.query
    stored = ", ".join(f"{topic} {count:,}" for topic, count in report.stored.items())
    yield said("Log", f"records: {stored}")
    for topic, count in report.sent.items():
        if (found := report.stored.get(topic, 0)) != count:
            yield said("", f"{topic}: {count:,} were sent, {found:,} are stored", "red")
    yield said(
        "Pipeline",
        f"{query.batches:,} batches; {query.dropped_late:,} reports came too late for their window",
        "red" if query.dropped_late else "",
    )
    yield said(
        "Check",
        f"{comparison.equal:,} of {comparison.expected:,} windows equal"
        " (count, sum and mean of each, exactly)",
        "bold green" if report.ok else "bold red",
    )
    for what, differences in (
        ("unequal", comparison.unequal),
        ("missing", comparison.missing),
        ("unexpected", comparison.unexpected),
    ):
        for (airport, start), figures in list(differences.items())[:_SHOWN_DIFFERENCES]:
            yield said("", f"{what}: {airport} {local(start)} {figures}", "red")
        if len(differences) > _SHOWN_DIFFERENCES:
            yield said("", f"... {len(differences):,} {what} in all", "red")
    if report.repeated:
        yield said("", f"{report.repeated:,} results were published again, with equal figures")
    if not report.ok:
        yield said("", f"logs and data are in {report.folder}")
    yield said("Time", f"{report.seconds:.0f} s")


def pipeline_text(running: Running) -> str:
    """How far the pipeline is."""
    final = f"{len(running.windows):,} windows final"
    if running.query.watermark <= 0:
        return final
    return f"watermark {local(running.query.watermark)}, {final}"


def rate_of(replay: ReplayProgress) -> float:
    """Reports per second so far."""
    return replay.acknowledged / max(replay.seconds, 0.001)


def local(instant: int) -> str:
    """An instant on New York's clock."""
    return f"{datetime.fromtimestamp(instant, ORIGIN_ZONE):%a %d %b %H:%M}"


# --- tables --------------------------------------------------------------------------------------


def newest_hours(windows: Mapping[WindowKey, WindowFigures]) -> dict[WindowKey, WindowFigures]:
    """The windows of the newest hours that are known."""
    hours = sorted({start for _, start in windows})[-_HOURS_SHOWN:]
    return {key: figures for key, figures in windows.items() if key[1] in set(hours)}


def worst_hours(windows: Mapping[WindowKey, WindowFigures]) -> dict[WindowKey, WindowFigures]:
    """The windows of the hours with the greatest sum of delays."""
    sums: dict[int, int] = {}
    for (_, start), figures in windows.items():
        sums[start] = sums.get(start, 0) + figures.delay_minutes
    hours = set(sorted(sums, key=lambda start: sums[start])[-_HOURS_SHOWN // 2 :])
    return {key: figures for key, figures in windows.items() if key[1] in hours}


def hours_table(windows: Mapping[WindowKey, WindowFigures]) -> Table:
    """A row for each hour, with departures and mean delay in minutes for each airport."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("hour (New York)")
    for airport in AIRPORTS:
        table.add_column(airport, justify="right", min_width=5)
        table.add_column("delay", justify="right", min_width=7)
    for start in sorted({start for _, start in windows}):
        cells: list[str | Text] = [local(start)]
        for airport in AIRPORTS:
            figures = windows.get((airport, start))
            cells += ["-", ""] if figures is None else [f"{figures.departures}", _delay(figures)]
        table.add_row(*cells)
    return table


def _delay(figures: WindowFigures) -> Text:
    mean = figures.mean_delay_minutes
    style = "green" if mean < 15 else "yellow" if mean < 60 else "red"
    return Text(f"{mean:+.1f}", style=style)


def json_report(report: DemoReport) -> dict[str, Any]:
    """The report for machines."""
    comparison = report.comparison
    return {
        "ok": report.ok,
        "bootstrap_servers": report.bootstrap_servers,
        "from": report.stretch.first.isoformat(),
        "days": report.stretch.days,
        "windows": {
            "expected": comparison.expected,
            "equal": comparison.equal,
            "unequal": _names(comparison.unequal),
            "missing": _names(comparison.missing),
            "unexpected": _names(comparison.unexpected),
        },
        "late_dropped": report.query.dropped_late,
        "results_repeated": report.repeated,
        "batches": report.query.batches,
        "sent": dict(report.sent),
        "stored": dict(report.stored),
        "replay_seconds": round(report.replay.seconds, 3),
        "seconds": round(report.seconds, 3),
        "folder": None if report.ok else str(report.folder),
    }


def _names(windows: Iterable[WindowKey]) -> list[str]:
    return [
        f"{airport}|{datetime.fromtimestamp(start, UTC):%Y-%m-%dT%H:%M:%SZ}"
        for airport, start in windows
    ]
