"""How the demo looks: a live display on a terminal, plain lines elsewhere. Runs nothing itself."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from tidemill.cli.demo_tables import (
    QUERIES,
    alert_text,
    hours_of,
    hours_table,
    local,
    newest_hours,
    queries_table,
    worst_hours,
)
from tidemill.demo.pipeline import watermark
from tidemill.demo.progress import (
    BrokerReady,
    Checking,
    DemoReport,
    Event,
    FlightsLoaded,
    KeptRunning,
    PipelineStarted,
    QueriesStarting,
    Replayed,
    Running,
    SparkStarting,
    Stopping,
    TopicsReady,
)
from tidemill.demo.topics import PUBLISHED, SENT

if TYPE_CHECKING:
    from tidemill.demo.check import Check, Identity
    from tidemill.demo.replay import ReplayProgress
    from tidemill.demo.results import Results
    from tidemill.spark.progress import QueryStatus

_PLAIN_LINE_EVERY_S = 5.0
_ALERTS_SHOWN = 4
_SHOWN_DIFFERENCES = 5


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
            case QueriesStarting():
                self.show_starting(event)
            case DemoReport():
                self.show_report(event)
            case _:
                for line in lines_for(event, self._speed):
                    self.console.print(line)

    def show_starting(self, starting: QueriesStarting) -> None:
        """Nothing: a line says so when all have started."""

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
            f" {pipeline_text(running.queries, running.results)}"
        )

    def show_report(self, report: DemoReport) -> None:
        """The result."""
        self.console.print()
        self.console.print(Text("The hours with the most delay:"))
        self.console.print(hours_table(worst_hours(hours_of(report.results))))
        self.console.print()
        for line in verdict(report):
            self.console.print(line)


class LiveView(PlainView):
    """A progress bar, all queries, the newest hours and alerts, redrawn in place."""

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
        if not isinstance(event, (Running, QueriesStarting)):
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
        self._draw(self._picture(running))

    def show_starting(self, starting: QueriesStarting) -> None:
        """How many run already, redrawn."""
        if starting.queries:
            what = f"{starting.started} of {starting.queries} queries have started"
            self._draw(said("", what, "dim"))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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


# --- text ----------------------------------------------------------------------------------------


def said(label: str, text: str, style: str = "") -> Text:
    """A line with a label in the margin."""
    return Text.assemble((f"{label:<11}", "bold"), (text, style))


def lines_for(event: Event, speed: float | None) -> Iterable[Text]:
    """What is said about an event that is not drawn, in lines for a terminal of 80 columns."""
    match event:
        case FlightsLoaded():
            stretch, late, counts = event.stretch, event.lateness, event.counts
            yield said(
                "Flights",
                f"{stretch.first:%a %d %b %Y} to {stretch.last:%a %d %b %Y}"
                f" ({(stretch.end - stretch.start) // 3600} hours)",
            )
            yield said(
                "",
                f"{counts.get('departure', 0):,} departures,"
                f" {counts.get('cancellation', 0):,} cancellations,"
                f" {counts.get('arrival', 0):,} arrivals",
            )
            yield said(
                "",
                f"reported up to {late.longest // 60} minutes late,"
                f" {late.out_of_order:,} of them out of order,",
            )
            yield said("", f"{counts.get('cut short', 0):,} cut short and sent once more")
        case BrokerReady():
            started = f"started in {event.seconds:.1f} s (pid {event.pid})"
            yield said("Broker", f"{event.address}, {started if event.pid else 'runs already'}")
            if event.pid:
                yield said("", f"data in {event.data_dir}")
        case TopicsReady():
            if event.deleted:
                yield said("Topics", f"deleted {len(event.deleted)} of an earlier run")
            tables = ", ".join(f"{topic} ({rows:,} rows)" for topic, rows in event.rows.items())
            yield said("Tables", tables)
            yield said("Topics", f"{len(event.created)} in all")
        case SparkStarting():
            yield said("Spark", "starting, which takes some seconds")
        case PipelineStarted():
            yield said(
                "Pipeline",
                f"{event.queries} queries started in {event.seconds:.1f} s"
                f" (Spark {event.spark_version}, Java {event.java}):",
            )
            for query, what in QUERIES.items():
                yield said("", f"{what:<43} -> {PUBLISHED[query].name}")
            pace = "as fast as it goes" if speed is None else f"at {speed:,g} times life's speed"
            yield said("Replay", f"{', '.join(topic.name for topic in SENT)},")
            yield said("", pace)
        case Replayed():
            replay = event.replay
            yield said(
                "Replayed",
                f"{replay.acknowledged:,} reports in {replay.seconds:.1f} s"
                f" ({rate_of(replay):,.0f}/s),"
                " each acknowledged as on disk",
            )
        case Checking():
            yield said("Results", f"{event.results:,} records; computing them once more")
        case KeptRunning():
            yield Text()
            yield Text(f"Broker and pipeline go on at {event.address}. Ctrl-C stops them. Try:")
            yield Text(f"  tidemill pipeline describe control-room -b {event.address}")
            alerts = PUBLISHED["alerts"].name
            yield Text(
                f"  tidemill topic consume {alerts} --from beginning --count 5 -b {event.address}"
            )
        case Stopping():
            yield Text("Stopping the pipeline.", style="dim")
        case _:
            pass


def verdict(report: DemoReport) -> Iterable[Text]:
    """Whether it is right, and if not, where."""
    yield said("Log", f"{sum(report.stored.values()):,} records stored")
    for topic, count in report.sent.items():
        if (found := report.stored.get(topic, 0)) != count:
            yield said("", f"{topic}: {count:,} were sent, {found:,} are stored", "red")
    batches = sum(status.batch + 1 for status in report.queries)
    yield said(
        "Pipeline",
        f"{batches:,} batches; {report.late_rows:,} reports came too late",
        "red" if report.late_rows else "",
    )
    label = "Check"
    for check in report.checks:
        style = "green" if check.ok else "bold red"
        yield said(label, f"{check.query:<15}{check.equal:>7,} of {check.expected:,} equal", style)
        label = ""
        for line in differences(check):
            yield said("", f"  {line}", "red")
    equal = sum(check.equal for check in report.checks)
    yield said(
        "",
        f"{'all':<15}{equal:>7,} of {report.expected:,} equal, in all fields, exactly",
        "bold green" if report.ok else "bold red",
    )
    if not report.ok:
        yield said("", f"logs and data are in {report.folder}")
    yield said("Time", f"{report.seconds:.0f} s")


def differences(check: Check) -> Iterable[str]:
    """The first few of each kind, and how many there are."""
    kinds: tuple[tuple[str, Sequence[tuple[Identity, object]]], ...] = (
        ("unequal", list(check.unequal.items())),
        ("missing", list(check.missing.items())),
        ("unexpected", list(check.unexpected.items())),
        ("published again", [(identity, "") for identity in check.repeated]),
    )
    for what, found in kinds:
        for identity, record in found[:_SHOWN_DIFFERENCES]:
            yield f"{what}: {' '.join(identity)} {record}".rstrip()
        if len(found) > _SHOWN_DIFFERENCES:
            yield f"... {len(found):,} {what} in all"


def pipeline_text(queries: Sequence[QueryStatus], results: Results) -> str:
    """How far the pipeline is: the slowest watermark, and what was published."""
    published = f"{sum(results.counts.values()):,} results"
    marks = [watermark(status) for status in queries if status.watermark is not None]
    if not marks or min(marks) <= 0:
        return published
    return f"{published} up to {local(min(marks))}"


def rate_of(replay: ReplayProgress) -> float:
    """Reports per second so far."""
    return replay.acknowledged / max(replay.seconds, 0.001)


def json_report(report: DemoReport) -> dict[str, Any]:
    """The report for machines."""
    return {
        "ok": report.ok,
        "bootstrap_servers": report.bootstrap_servers,
        "from": report.stretch.first.isoformat(),
        "days": report.stretch.days,
        "queries": {check.query: _check_json(check) for check in report.checks},
        "late_dropped": report.late_rows,
        "batches": {status.query: status.batch + 1 for status in report.queries},
        "sent": dict(report.sent),
        "stored": dict(report.stored),
        "replay_seconds": round(report.replay.seconds, 3),
        "seconds": round(report.seconds, 3),
        "folder": None if report.ok else str(report.folder),
    }


def _check_json(check: Check) -> dict[str, Any]:
    return {
        "expected": check.expected,
        "equal": check.equal,
        "unequal": _names(check.unequal),
        "missing": _names(check.missing),
        "unexpected": _names(check.unexpected),
        "repeated": _names(check.repeated),
    }


def _names(identities: Iterable[Identity]) -> list[str]:
    return ["|".join(identity) for identity in identities]
