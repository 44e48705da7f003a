"""Collect what the demo's page shows from records: planes, hours, alerts, the clock.

Everything is bounded, and each thing has the version at which it changed, so that a viewer gets
only what is new. One thread takes records, others look. Must not know: a Kafka client, HTTP, a map.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from typing import Any, Generic, TypeVar

import orjson

from tidemill.demo.events import ARRIVALS, DEPARTURES, HOUR
from tidemill.demo.flights import ORIGIN_ZONE
from tidemill.demo.topics import PUBLISHED
from tidemill.spark.pipelines.progress import TOPIC as STATUSES
from tidemill.spark.pipelines.progress import QueryStatus, decode

HOURLY, ALERTS = PUBLISHED["hourly"].name, PUBLISHED["alerts"].name
AIRPORTS = ("EWR", "JFK", "LGA")
NAMES = {"EWR": "Newark", "JFK": "John F. Kennedy", "LGA": "LaGuardia"}
"""New York's airports. Records of other ones are not shown."""
PIPELINE = "control-room"
DAYS = 5
"""Days that the timeline has: those of the demo, if no others were asked for."""
HOURS = 24 * DAYS + 1  # one of the days can have 25
MOST_PLANES = 600
MOST_ALERTS = 40
T = TypeVar("T")
_LAST, _MOST = 1 << 32, 1_000_000
"""Larger times, in Unix seconds, and larger numbers are not the demo's."""
_MILES_PER_MINUTE, _TAXI_MINUTES = 8, 25
"""A rough estimate: planes are drawn from their departure on, long before they report to land."""


@dataclass(frozen=True, slots=True)
class Plane:
    """A flight in the air. Times are in Unix seconds; ``lands`` is an estimate."""

    flight: str
    origin: str
    destination: str
    departed: int
    lands: int
    delay: int


@dataclass(frozen=True, slots=True)
class Hour:
    """An hour of an airport.

    Attributes:
        start: When it begins, in Unix seconds.
        departures: Its departures: in the window, or as reported so far.
        delay: Their mean delay in minutes; negative is early.
        cancelled: Its cancellations as reported so far.
        is_final: Whether the pipeline has closed its window.
    """

    airport: str
    start: int
    departures: int = 0
    delay: float = 0.0
    cancelled: int = 0
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Alert:
    """An hour in which the delay was unlike that of the day before. Delays are in minutes."""

    airport: str
    start: int
    departures: int
    delay: float
    usual: float


@dataclass
class _Versioned(Generic[T]):
    """A thing, and the version at which it was put there."""

    version: int
    value: T


@dataclass
class Live:
    """The present state of the demo.

    Attributes:
        clock: The time of the newest report, in Unix seconds: the clock of the demo.
        first: The time of the first report.
        is_over: Whether the replay has sent its last report.
        problem: Why nothing can be read; empty if it can.
        version: It grows with each change.
    """

    clock: int = 0
    first: int = 0
    is_over: bool = False
    problem: str = ""
    version: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    _planes: deque[_Versioned[Plane]] = field(default_factory=lambda: deque(maxlen=MOST_PLANES))
    _hours: dict[tuple[str, int], _Versioned[Hour]] = field(default_factory=dict)
    _alerts: deque[_Versioned[Alert]] = field(default_factory=lambda: deque(maxlen=MOST_ALERTS))
    _queries: dict[str, QueryStatus] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    # --- taking records --------------------------------------------------------------------------

    def take(self, topic: str, value: bytes, time_ms: int) -> None:
        """Take a record of one of the demo's topics. One that can't be understood is counted."""
        with self._lock:
            self.version += 1
            try:
                if topic == STATUSES:
                    self._take_status(decode(value))
                    return
                content = orjson.loads(value)
                taken = _TAKERS[topic](self, content)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
                self._count("unreadable")
                return
            if taken and topic in (DEPARTURES, ARRIVALS):
                self._move(time_ms // 1000)

    def fail(self, problem: str) -> None:
        """Note why nothing can be read, or with an empty text that it can."""
        with self._lock:
            if problem != self.problem:
                self.problem = problem
                self.version += 1

    def _move(self, now: int) -> None:
        if not 0 < now < _LAST:
            return
        self.first = self.first or now
        self.clock = max(self.clock, now)

    def _departed(self, found: Mapping[str, Any]) -> bool:
        kind, airport = found["type"], found["airport"]
        if kind == "clock":
            self.is_over = True
            return False
        at = _unix(found["event_time"])
        self._count(f"{kind}s")
        if airport not in AIRPORTS:
            return True
        start = at - at % HOUR
        hour = self._hour(airport, start)
        if kind == "cancellation":
            self._put(replace(hour, cancelled=hour.cancelled + 1))
            return True
        delay = _int(found["delay_minutes"])
        minutes = _int(found["miles"]) // _MILES_PER_MINUTE + _TAXI_MINUTES
        names = _text(found["flight"]), airport, _text(found["destination"])
        self._planes.append(_Versioned(self.version, Plane(*names, at, at + minutes * 60, delay)))
        if not hour.is_final:
            total = hour.departures * hour.delay + delay
            number = hour.departures + 1
            self._put(replace(hour, departures=number, delay=total / number))
        return True

    def _arrived(self, found: Mapping[str, Any]) -> bool:
        if found["type"] == "clock":
            return False
        _unix(found["event_time"])
        self._count("arrivals")
        return True

    def _closed(self, found: Mapping[str, Any]) -> bool:
        airport, start = found["airport"], _unix(found["window"]["start"])
        number, delay = _int(found["departures"]), _float(found["mean_delay_minutes"])
        if airport in AIRPORTS:
            self._count("windows")
            before = self._hour(airport, start)
            self._put(replace(before, departures=number, delay=delay, is_final=True))
        return True

    def _alerted(self, found: Mapping[str, Any]) -> bool:
        alert = Alert(
            *(_text(found["airport"]), _unix(found["hour"]["start"]), _int(found["departures"])),
            *(_float(found["mean_delay_minutes"]), _float(found["usual_delay_minutes"])),
        )
        self._count("alerts")
        self._alerts.append(_Versioned(self.version, alert))
        return True

    def _take_status(self, status: QueryStatus) -> None:
        _unix(status.watermark or "2013-01-01")
        if status.pipeline == PIPELINE and (
            status.query in self._queries or len(self._queries) < 50
        ):
            self._queries[status.query] = status

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _hour(self, airport: str, start: int) -> Hour:
        found = self._hours.get((airport, start))
        return Hour(airport, start) if found is None else found.value

    def _put(self, hour: Hour) -> None:
        self._hours[hour.airport, hour.start] = _Versioned(self.version, hour)
        if len(self._hours) > len(AIRPORTS) * HOURS:
            del self._hours[min(self._hours, key=lambda each: each[1])]

    # --- looking ---------------------------------------------------------------------------------

    def since(self, version: int) -> dict[str, Any]:
        """Return what has changed since a version, as plain values; 0: all there is."""
        with self._lock:
            planes = _newer(self._planes, version)
            hours = sorted(_newer(self._hours.values(), version), key=lambda each: each.start)
            alerts = _newer(self._alerts, version)
            return {
                "version": self.version,
                "clock": self.clock,
                "clock_text": local(self.clock) if self.clock else "",
                "first": self.first,
                "is_over": self.is_over,
                "problem": self.problem,
                "counts": dict(self.counts),
                "planes": [_plain(each) for each in planes if each.lands > self.clock],
                "hours": [_plain(each) for each in hours],
                "alerts": [_plain(each) for each in alerts],
                "airports": [self._airport(each) for each in AIRPORTS],
                "days": days(self.first, self.clock),
                "pipeline": self._pipeline(),
            }

    def _airport(self, airport: str) -> dict[str, Any]:
        """Return an airport's last closed hour, and what it has cancelled on this day."""
        hours = [each.value for (name, _), each in self._hours.items() if name == airport]
        last = max((each for each in hours if each.is_final), key=_start, default=None)
        today = _midnight(self.clock) if self.clock else 0
        return {
            "code": airport,
            "name": NAMES[airport],
            "last": None if last is None else _plain(last),
            "cancelled": sum(each.cancelled for each in hours if each.start >= today),
            "in_the_air": sum(
                each.value.origin == airport
                and each.value.departed <= self.clock < each.value.lands
                for each in self._planes
            ),
        }

    def _pipeline(self) -> dict[str, Any]:
        """Return how the pipeline does: sums of its queries."""
        found = list(self._queries.values())
        marks = [_unix(each.watermark) for each in found if each.watermark]
        latencies = [each.latency_p50_ms for each in found if each.latency_p50_ms is not None]
        hourly = self._queries.get("hourly")
        return {
            "queries": len(found),
            "started": sum(each.batch >= 0 for each in found),
            "running": sum(each.state == "running" for each in found),
            "failed": [each.query for each in found if each.state == "failed"],
            "batches": sum(each.batch + 1 for each in found),
            "rows": sum(each.rows for each in found),
            "late_rows": sum(each.late_rows for each in found),
            "latency_ms": max(latencies, default=None),
            "final_up_to": _unix(hourly.watermark)
            if hourly is not None and hourly.watermark
            else min(marks, default=None),
        }


_TAKERS: Mapping[str, Callable[[Live, Mapping[str, Any]], bool]] = {
    DEPARTURES: Live._departed,
    ARRIVALS: Live._arrived,
    HOURLY: Live._closed,
    ALERTS: Live._alerted,
}
TOPICS = (*_TAKERS, STATUSES)
"""The topics that the page reads."""


def days(first: int, clock: int) -> list[dict[str, Any]]:
    """Return the days of the timeline and the one behind them, with their begin in Unix seconds."""
    if not first:
        return []
    day = max(date_of(first), date_of(clock) - timedelta(days=DAYS - 1))
    found = (day + timedelta(days=number) for number in range(DAYS + 1))
    return [
        {
            "start": int(datetime.combine(each, time(), ORIGIN_ZONE).timestamp()),
            "text": f"{each:%a %-d %B}",
        }
        for each in found
    ]


def date_of(instant: int) -> date:
    """Return the date in New York."""
    return datetime.fromtimestamp(instant, ORIGIN_ZONE).date()


def _midnight(instant: int) -> int:
    return int(datetime.combine(date_of(instant), time(), ORIGIN_ZONE).timestamp())


def _start(hour: Hour) -> int:
    return hour.start


def local(instant: int) -> str:
    """Return a time in New York, for people."""
    return f"{datetime.fromtimestamp(instant, ORIGIN_ZONE):%A %-d %B %Y, %H:%M}"


LEVELS = (("under 5 minutes", 5.0), ("5 to 15", 15.0), ("15 to 30", 30.0), ("30 to 60", 60.0))
"""The levels of a delay below the last one, which is ``LONGEST``, with the bound of each."""
LONGEST = "an hour or more"


def level(delay: float) -> int:
    """Return the level of a delay in minutes: 0 is on time, 4 is an hour or more."""
    return sum(delay >= bound for _, bound in LEVELS)


def _plain(found: Plane | Hour | Alert) -> dict[str, Any]:
    plain = {name: getattr(found, name) for name in found.__slots__}
    plain["level"] = level(found.delay)
    if isinstance(found, (Hour, Alert)):
        start = datetime.fromtimestamp(found.start, ORIGIN_ZONE)
        plain["delay"] = round(found.delay, 1)
        plain["when"] = f"{start:%a %-d %b, %H}-{(start.hour + 1) % 24:02d}"
    return plain


def _newer(items: Iterable[_Versioned[T]], version: int) -> list[T]:
    return [each.value for each in items if each.version > version]


def _unix(text: str) -> int:
    """Return a time in Unix seconds that a page can show.

    Raises:
        ValueError: it is not one.
    """
    found = int(datetime.fromisoformat(text).timestamp())
    if not 0 < found < _LAST:
        raise ValueError("not a time of this century")
    return found


def _int(value: Any) -> int:
    if type(value) is not int or abs(value) > _MOST:
        raise ValueError("not a number of minutes or miles")
    return value


def _float(value: Any) -> float:
    if not isinstance(value, (int, float)) or not abs(value) <= _MOST:
        raise ValueError("not a number of minutes")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 40:
        raise ValueError("not a short text")
    return value
