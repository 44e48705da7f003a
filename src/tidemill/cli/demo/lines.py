"""The lines that the demo prints for its events, for a terminal of 80 columns.

This module must not print them: ``view`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from tidemill.cli.demo.tables import QUERIES, local
from tidemill.demo.pipeline import watermark
from tidemill.demo.progress import (
    BrokerReady,
    Checking,
    DatabaseReady,
    Event,
    FlightsLoaded,
    KeptRunning,
    PageReady,
    PipelineStarted,
    Replayed,
    SparkStarting,
    Stopping,
    TopicsReady,
)
from tidemill.demo.topics import PUBLISHED, SENT, SOURCE

if TYPE_CHECKING:
    from tidemill.demo.replay import ReplayProgress
    from tidemill.demo.results import Results
    from tidemill.spark.pipelines.progress import QueryStatus


def labelled(label: str, text: str, style: str = "") -> Text:
    """Return a line with a label in the margin."""
    return Text.assemble((f"{label:<11}", "bold"), (text, style))


def lines_for(event: Event, speed: float | None) -> Iterable[Text]:
    """Return the lines for an event; none for an event that is shown in another way.

    Args:
        speed: the speed of the replay; None: without waiting.
    """
    match event:
        case FlightsLoaded():
            return _flights(event)
        case BrokerReady():
            return _broker(event)
        case TopicsReady():
            return _topics(event)
        case DatabaseReady():
            return _database(event)
        case PageReady():
            return [labelled("Page", f"{event.url} shows it live")]
        case SparkStarting():
            return _spark(event)
        case PipelineStarted():
            return _pipeline(event, speed)
        case Replayed():
            return _replayed(event)
        case Checking():
            text = f"{event.results:,} records; computing them again to compare"
            return [labelled("Results", text)]
        case KeptRunning():
            return _kept_running(event)
        case Stopping():
            return [Text("Stopping the pipeline.", style="dim")]
        case _:
            return []


def _flights(event: FlightsLoaded) -> Iterable[Text]:
    stretch, late, counts = event.stretch, event.lateness, event.counts
    yield labelled(
        "Flights",
        f"{stretch.first:%a %d %b %Y} to {stretch.last:%a %d %b %Y}"
        f" ({(stretch.end - stretch.start) // 3600} hours)",
    )
    yield labelled(
        "",
        f"{counts.get('departure', 0):,} departures,"
        f" {counts.get('cancellation', 0):,} cancellations,"
        f" {counts.get('arrival', 0):,} arrivals",
    )
    yield labelled(
        "",
        f"reported up to {late.longest // 60} minutes late,"
        f" {late.out_of_order:,} of them out of order,",
    )
    yield labelled("", f"{counts.get('cut short', 0):,} cut short and sent once more")


def _broker(event: BrokerReady) -> Iterable[Text]:
    started = f"started in {event.seconds:.1f} s (pid {event.pid})"
    yield labelled("Broker", f"{event.address}, {started if event.pid else 'already running'}")
    if event.pid:
        yield labelled("", f"data in {event.data_dir}")


def _database(event: DatabaseReady) -> Iterable[Text]:
    yield labelled("Database", event.description)
    tables = ", ".join(f"{table} ({rows:,} rows)" for table, rows in event.rows.items())
    yield labelled("", f"{tables}; {event.edits:,} edits will follow")


def _spark(event: SparkStarting) -> Iterable[Text]:
    if event.index is None:
        yield labelled("Index", "none: the package tantivy is not installed. Install it:")
        yield labelled("", event.how_to_install)
    else:
        yield labelled("Index", f"of the aircraft in {event.index}")
    yield labelled("Spark", "starting, which takes some seconds")


def _topics(event: TopicsReady) -> Iterable[Text]:
    if event.deleted:
        yield labelled("Topics", f"deleted {len(event.deleted)} of an earlier run")
    yield labelled("Capture", f"to {', '.join(event.captured)}")
    yield labelled("Topics", f"{len(event.created)} in all")


def _pipeline(event: PipelineStarted, speed: float | None) -> Iterable[Text]:
    yield labelled(
        "Pipeline",
        f"{event.queries} queries started in {event.seconds:.1f} s"
        f" (Spark {event.spark_version}, Java {event.java}):",
    )
    for query, what in QUERIES.items():
        if query in PUBLISHED:
            yield labelled("", f"{what:<43} -> {PUBLISHED[query].name}")
    pace = "as fast as possible" if speed is None else f"at {speed:,g} times real time"
    yield labelled("Replay", f"{', '.join(topic.name for topic in SENT)}, {pace}")


def _replayed(event: Replayed) -> Iterable[Text]:
    replay = event.replay
    yield labelled(
        "Replayed",
        f"{replay.acknowledged:,} reports in {replay.seconds:.1f} s"
        f" ({rate_of(replay):,.0f}/s),"
        " each acknowledged as on disk",
    )
    yield labelled("Edited", f"{event.edits.delivered:,} rows of the database, each in its topic")


def _kept_running(event: KeptRunning) -> Iterable[Text]:
    yield Text()
    yield Text(f"Broker and pipeline keep running at {event.address}. Ctrl-C stops them.")
    yield Text(f"Look at {event.page}, or try:")
    yield Text(f"  tidemill pipeline describe control-room -b {event.address}")
    alerts = PUBLISHED["alerts"].name
    yield Text(f"  tidemill source describe {SOURCE} -b {event.address}")
    yield Text(f"  tidemill topic consume {alerts} --from beginning --count 5 -b {event.address}")


def pipeline_text(queries: Sequence[QueryStatus], results: Results) -> str:
    """Return the number of published results, and the slowest watermark."""
    published = f"{sum(results.counts.values()):,} results"
    marks = [watermark(status) for status in queries if status.watermark is not None]
    if not marks or min(marks) <= 0:
        return published
    return f"{published} up to {local(min(marks))}"


def rate_of(replay: ReplayProgress) -> float:
    """Return the reports per second so far."""
    return replay.acknowledged / max(replay.seconds, 0.001)
