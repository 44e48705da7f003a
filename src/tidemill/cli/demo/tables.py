"""The tables of the demo: its queries, the newest hours and the worst hours.

This module must not print them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tidemill.demo.flights import ORIGIN_ZONE
from tidemill.demo.pipeline import instant, watermark

if TYPE_CHECKING:
    from tidemill.demo.check import Record
    from tidemill.demo.results import Results
    from tidemill.spark.pipelines.progress import QueryStatus

AIRPORTS = ("EWR", "JFK", "LGA")

_HOURS_SHOWN = 8

QUERIES = {
    "hourly": "departures, mean delay per airport and hour",
    "trend": "mean delay of 3 hours, every 30 minutes",
    "sample": "6 minutes of departures, every 10 minutes",
    "bursts": "an aircraft's departures within 6 hours",
    "outcomes": "departures with arrivals, 13 hours on",
    "enriched": "departures with their aircraft at the time",
    "fleet": "aircraft with airlines, kept current",
    "alerts": "delays unlike an airport's last 24 hours",
    "search": "aircraft in a search index, kept current",
}
"""A short description of each query."""


@dataclass(frozen=True, slots=True)
class Hour:
    """The departures of an airport in one hour, from ``departures.hourly``."""

    airport: str
    start: int
    departures: int
    delay_minutes: int

    @property
    def mean_delay_minutes(self) -> float:
        """The mean delay in minutes; negative is early."""
        return self.delay_minutes / self.departures


def queries_table(queries: Sequence[QueryStatus], results: Results) -> Table:
    """Return a table with a row for each query that publishes results."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("query")
    table.add_column("computes", no_wrap=True)
    for name in ("results", "behind"):
        table.add_column(name, justify="right")
    table.add_column("final up to", style="dim")
    # Each query has the ends of its topics from its last batch. The newest one counts.
    newest: dict[str, int] = {}
    for each in (source for status in queries for source in status.sources):
        newest[each.topic] = max(newest.get(each.topic, 0), each.read + max(each.lag, 0))
    for status in queries:
        if status.query not in QUERIES:
            continue
        mark = watermark(status)
        table.add_row(
            status.query,
            Text(QUERIES[status.query], "dim"),
            f"{results.counts.get(status.query, status.rows):,}",
            f"{sum(newest[each.topic] - each.read for each in status.sources if each.read):,}",
            local(mark) if mark > 0 else "",
        )
    return table


def hours_of(results: Results) -> list[Hour]:
    """Return the records of ``departures.hourly``."""
    return [
        Hour(
            airport=record["airport"],
            start=int(instant(record["window"]["start"])),
            departures=record["departures"],
            delay_minutes=record["delay_minutes"],
        )
        for record in results.records.get("hourly", ())
    ]


def newest_hours(hours: Iterable[Hour]) -> list[Hour]:
    """Return the records of the newest hours."""
    found = list(hours)
    newest = set(sorted({hour.start for hour in found})[-_HOURS_SHOWN:])
    return [hour for hour in found if hour.start in newest]


def worst_hours(hours: Iterable[Hour]) -> list[Hour]:
    """Return the records of the hours with the largest sum of delays."""
    found = list(hours)
    sums: dict[int, int] = {}
    for hour in found:
        sums[hour.start] = sums.get(hour.start, 0) + hour.delay_minutes
    worst = set(sorted(sums, key=lambda start: sums[start])[-6:])
    return [hour for hour in found if hour.start in worst]


def hours_table(hours: Sequence[Hour]) -> Table:
    """Return a table with a row per hour: departures and mean delay in minutes per airport."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("hour (New York)")
    for airport in AIRPORTS:
        table.add_column(airport, justify="right", min_width=5)
        table.add_column("delay", justify="right", min_width=7)
    found = {(hour.airport, hour.start): hour for hour in hours}
    for start in sorted({hour.start for hour in hours}):
        cells: list[str | Text] = [local(start)]
        for airport in AIRPORTS:
            hour = found.get((airport, start))
            cells += ["-", ""] if hour is None else [f"{hour.departures}", _delay(hour)]
        table.add_row(*cells)
    return table


def _delay(hour: Hour) -> Text:
    mean = hour.mean_delay_minutes
    style = "green" if mean < 15 else "yellow" if mean < 60 else "red"
    return Text(f"{mean:+.1f}", style=style)


def alert_text(alert: Record) -> Text:
    """Return an alert as a line."""
    return Text(
        f"{alert['airport']} {local(int(instant(alert['hour']['start'])))}:"
        f" {alert['mean_delay_minutes']:+.0f} minutes, where {alert['usual_delay_minutes']:+.0f}"
        " were usual in the 24 hours before",
        "red",
    )


def local(instant: int) -> str:
    """Return a time, in seconds since the epoch, in New York's time zone."""
    return f"{datetime.fromtimestamp(instant, ORIGIN_ZONE):%a %d %b %H:%M}"
