"""Compute the expected results of each query directly from the data set.

There is a short function for each query of ``control_room``. It works on a list, without logs,
watermarks or Spark. It deliberately uses other columns than the replay: the local times of the
airports (date, scheduled time, delay) and not the data set's UTC hours and times of arrival. So the
check finds mistakes with time zones and daylight saving time. Sums are of whole numbers, and means
and deviations use the same expression as the queries, so equal results are equal to the last bit.
Only windows that end within the stretch count, because the others are not final.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from zoneinfo import ZoneInfo

from tidemill.demo.check import Record
from tidemill.demo.database.registry import AIRCRAFT, CHANGED_AT, Registry, Row
from tidemill.demo.flights import ORIGIN_ZONE, Stretch, airport_zones, raw_flights

MINUTE = 60
HOUR = 3600

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Leg:
    """A flight of the data set. Times are Unix times in seconds.

    Attributes:
        left: the time of departure; ``None`` if the flight was cancelled.
        landed: the time of arrival at the destination; ``None`` if it was cancelled or diverted.
        others: as in the data set.
    """

    flight: str
    origin: str
    destination: str
    tail_number: str
    miles: int
    scheduled: int
    left: int | None
    delay: int | None
    landed: int | None
    arrival_delay: int | None


@dataclass(frozen=True)
class Facts:
    """The input of the computations."""

    stretch: Stretch
    legs: list[Leg]
    registry: Registry

    @property
    def departures(self) -> Iterator[tuple[int, int, Leg]]:
        """The flights that left within the stretch, each with its time of departure and delay."""
        for leg in self.legs:
            if leg.left is not None and leg.delay is not None and leg.left in self.stretch:
                yield leg.left, leg.delay, leg


def legs(stretch: Stretch, rows: Iterable[Mapping[str, str | None]] | None = None) -> list[Leg]:
    """Return the flights of rows, with their local times converted to Unix times.

    Without ``rows``, they are those of the data set near the stretch.
    """
    zones = airport_zones()
    return [_leg(row, zones) for row in (raw_flights(stretch) if rows is None else rows)]


def hourly(facts: Facts) -> Iterator[Record]:
    """Yield the departures and their mean delay for each airport and hour."""
    hours = _group(
        ((leg.origin, left - left % HOUR), delay) for left, delay, leg in facts.departures
    )
    for (airport, start), delays in hours.items():
        yield {
            "window": _window(start, start + HOUR),
            "airport": airport,
            "departures": len(delays),
            "delay_minutes": sum(delays),
            "mean_delay_minutes": sum(delays) / len(delays),
        }


def trend(facts: Facts) -> Iterator[Record]:
    """Yield the mean delay of three hours, every half hour."""
    step, size = 30 * MINUTE, 3 * HOUR
    windows = _group(
        ((leg.origin, start), delay)
        for left, delay, leg in facts.departures
        for start in range(left - left % step - size + step, left + 1, step)
    )
    for (airport, start), delays in windows.items():
        if start + size <= facts.stretch.end:
            yield {
                "window": _window(start, start + size),
                "airport": airport,
                "departures": len(delays),
                "mean_delay_minutes": sum(delays) / len(delays),
            }


def sample(facts: Facts) -> Iterator[Record]:
    """Yield the departures in the first six of every ten minutes."""
    size, hop = 6 * MINUTE, 10 * MINUTE
    windows = _group(
        ((leg.origin, left - left % hop), leg.miles)
        for left, _, leg in facts.departures
        if left % hop < size
    )
    for (airport, start), miles in windows.items():
        yield {
            "window": _window(start, start + size),
            "airport": airport,
            "departures": len(miles),
            "miles": sum(miles),
        }


def bursts(facts: Facts) -> Iterator[Record]:
    """Yield series of an aircraft's departures, each within six hours of the one before."""
    gap = 6 * HOUR
    aircraft = _group((leg.tail_number, (left, leg.miles)) for left, _, leg in facts.departures)
    for tail_number, departures in aircraft.items():
        found: list[list[tuple[int, int]]] = []
        for left, miles in sorted(departures):
            if not found or left > found[-1][-1][0] + gap:
                found.append([])
            found[-1].append((left, miles))
        for burst in found:
            start, end = burst[0][0], burst[-1][0] + gap
            if len(burst) > 1 and end <= facts.stretch.end:
                yield {
                    "window": _window(start, end),
                    "tail_number": tail_number,
                    "departures": len(burst),
                    "miles": sum(miles for _, miles in burst),
                }


def outcomes(facts: Facts) -> Iterator[Record]:
    """Yield each flight that left or was cancelled, with its arrival within 13 hours, if any."""
    stretch, bound = facts.stretch, 13 * HOUR
    for leg in facts.legs:
        time = leg.scheduled if leg.left is None else leg.left
        landed = leg.landed if leg.landed is not None and leg.landed in stretch else None
        arrived = landed is not None and time <= landed <= time + bound
        # A flight without an arrival counts only if the 13 hours end within the stretch.
        if time not in stretch or not (arrived or time + bound <= stretch.end):
            continue
        yield {
            "flight": leg.flight,
            "origin": leg.origin,
            "destination": leg.destination,
            "scheduled_departure": text(leg.scheduled),
            "outcome": "cancelled" if leg.left is None else "arrived" if arrived else "diverted",
            "departure_delay_minutes": leg.delay,
            "landed": text(landed) if arrived and landed is not None else None,
            "arrival_delay_minutes": leg.arrival_delay if arrived else None,
        }


def enriched(facts: Facts) -> Iterator[Record]:
    """Yield each departure with the row that its aircraft had at that time.

    An aircraft that flies is never deleted, so each row is valid until the next one.
    """
    versions = facts.registry.versions(AIRCRAFT)
    for left, delay, leg in facts.departures:
        rows = [row for row in versions.get(leg.tail_number, ()) if row and row[CHANGED_AT] <= left]
        aircraft = record_of(rows[-1]) if rows else {}
        yield {
            "flight": leg.flight,
            "origin": leg.origin,
            "destination": leg.destination,
            "event_time": text(left),
            "delay_minutes": delay,
            "tail_number": leg.tail_number,
            **{name: aircraft.get(name) for name in AIRCRAFT_COLUMNS},
        }


def fleet(facts: Facts) -> Iterator[Record]:
    """Yield the aircraft with their airlines after all edits."""
    aircraft, airlines = facts.registry.at_the_end()
    for row in aircraft.values():
        airline = record_of(airlines.get(row["operator"], {}))
        of_airline = {f"airline_{name}": airline.get(name) for name in ("name", CHANGED_AT)}
        yield {**record_of(row), **of_airline}


def alerts(facts: Facts) -> Iterator[Record]:
    """Yield the hours in which an airport's mean delay differs from that of its last 24 hours."""
    delays = _group(
        ((leg.origin, left - left % HOUR), delay) for left, delay, leg in facts.departures
    )
    for (airport, start), now in delays.items():
        day = [
            delay
            for hour in range(start - 24 * HOUR, start, HOUR)
            for delay in delays.get((airport, hour), ())
        ]
        if len(now) < 5 or len(day) < 100:
            continue
        mean, usual = sum(now) / len(now), sum(day) / len(day)
        squares = len(day) * sum(delay * delay for delay in day) - sum(day) * sum(day)
        deviation = math.sqrt(squares / (len(day) * len(day)))
        if mean > usual + 4 * deviation / math.sqrt(len(now)):
            yield {
                "airport": airport,
                "hour": _window(start, start + HOUR),
                "departures": len(now),
                "mean_delay_minutes": mean,
                "usual_departures": len(day),
                "usual_delay_minutes": usual,
                "deviation": deviation,
            }


EXPECTED: Mapping[str, tuple[Callable[[Facts], Iterable[Record]], tuple[str, ...]]] = {
    "hourly": (hourly, ("airport", "window")),
    "trend": (trend, ("airport", "window")),
    "sample": (sample, ("airport", "window")),
    "bursts": (bursts, ("tail_number", "window")),
    "outcomes": (outcomes, ("flight", "origin", "scheduled_departure")),
    "enriched": (enriched, ("flight", "origin", "event_time")),
    "fleet": (fleet, ("tail_number",)),
    "alerts": (alerts, ("airport", "hour")),
}
"""The functions, and the fields that identify a record, by the query's name."""


AIRCRAFT_COLUMNS = ("operator", "manufacturer", "model", "seats", "built", CHANGED_AT)
"""The columns that a departure gets from the table of aircraft."""


def record_of(row: Row) -> Record:
    """Return a row of a table as results have it."""
    return {name: text(value) if name == CHANGED_AT else value for name, value in row.items()}


def text(instant: int) -> str:
    """Return a Unix time in seconds as Spark writes a timestamp in JSON."""
    return f"{datetime.fromtimestamp(instant, UTC):%Y-%m-%dT%H:%M:%S}.000Z"


def _window(start: int, end: int) -> Record:
    return {"start": text(start), "end": text(end)}


Value = TypeVar("Value")


def _group(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    groups: dict[Key, list[Value]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups


def _leg(row: Mapping[str, str | None], zones: Mapping[str, ZoneInfo]) -> Leg:
    zone = zones[str(row["dest"])]
    day = datetime(int(str(row["year"])), int(str(row["month"])), int(str(row["day"])))
    planned = day + _clock(row["sched_dep_time"])
    scheduled = _instant(planned, ORIGIN_ZONE)
    left = landed = None
    if row["dep_delay"] is not None:
        left = _instant(planned + timedelta(minutes=int(row["dep_delay"])), ORIGIN_ZONE)
    if row["arr_delay"] is not None:
        there = datetime.fromtimestamp(scheduled, zone).replace(tzinfo=None)
        planned = datetime(there.year, there.month, there.day) + _clock(row["sched_arr_time"])
        if planned < there:
            planned += timedelta(days=1)
        landed = _instant(planned + timedelta(minutes=int(row["arr_delay"])), zone)
    return Leg(
        flight=f"{row['carrier']}{row['flight']}",
        origin=str(row["origin"]),
        destination=str(row["dest"]),
        tail_number=row["tailnum"] or "",
        miles=int(str(row["distance"])),
        scheduled=scheduled,
        left=left,
        delay=None if row["dep_delay"] is None else int(row["dep_delay"]),
        landed=landed,
        arrival_delay=None if row["arr_delay"] is None else int(row["arr_delay"]),
    )


def _clock(hhmm: str | None) -> timedelta:
    time = int(str(hhmm))
    return timedelta(hours=time // 100 % 24, minutes=time % 100)


def _instant(wall: datetime, zone: ZoneInfo) -> int:
    return int(wall.replace(tzinfo=zone).timestamp())
