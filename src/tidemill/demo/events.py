"""What airports report: flights as events, in the order in which the reports come in.

Each flight gives a *departure* event when it leaves and an *arrival* event when it lands at its
destination; a cancelled one gives a *cancellation* event at the time of its scheduled departure.
Nobody hears of it at that moment: the airport's report follows with a latency. So events come late
and out of order in event time, as in life; how late is decided by a hash of the flight, so that
each replay of a stretch is the same. A few reports are cut short on their way and sent once more.

The model promises one thing, on which the pipeline's watermarks rest: a report is never later than
``MAX_LATENESS`` after its event, and reports are sent in order. So when a report is read, no event
older than that report's time minus ``MAX_LATENESS`` can follow.

Knows nothing of topics' partitions, brokers or Spark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from tidemill.demo.flights import Flight, Stretch

DEPARTURES = "departures"
ARRIVALS = "arrivals"

MINUTE = 60
HOUR = 3600

MAX_LATENESS = 2 * HOUR
"""Seconds within which each event is reported."""

CLOCK_MARGIN = 30
"""Seconds by which the last watermark passes the stretch's end. Events happen at whole minutes, so
the end of no window and the bound of no join lies on the watermark itself."""

# Shares of all reports in per mille, and the latencies in seconds between which they lie: most come
# by data link, some by radio when somebody has time, a few are handed in on paper.
_LATENCIES = (
    (850, 0, 4 * MINUTE),
    (120, 5 * MINUTE, 30 * MINUTE),
    (30, 30 * MINUTE, MAX_LATENESS),
)

_CUT_SHORT_PER_MILLE = 2

Kind = Literal["departure", "cancellation", "arrival", "clock", "cut short", "registry"]


@dataclass(frozen=True, slots=True)
class Report:
    """A record to be sent. Instants are Unix time in seconds.

    Attributes:
        kind: what it tells.
        topic: where it goes.
        event_time: when that happened.
        reported_at: when the report was sent; the record's timestamp.
        key: the record's key, or ``None``.
        value: the record's value; ``None`` deletes the key from a table.
    """

    kind: Kind
    topic: str
    event_time: int
    reported_at: int
    key: bytes | None
    value: bytes | None


def reports(flights: Iterable[Flight], stretch: Stretch) -> list[Report]:
    """Reports of all events that happened within the stretch, in the order they were sent.

    The last one in each topic is a clock signal (see ``clock_signal``).
    """
    found: list[Report] = []
    for flight in flights:
        if flight.departed is None:
            if flight.scheduled in stretch:
                found += _reports("cancellation", DEPARTURES, flight, flight.scheduled)
            continue
        if flight.departed in stretch:
            found += _reports("departure", DEPARTURES, flight, flight.departed)
        # Of a diverted flight the data set may know when its passengers came at last. Its
        # destination reports no arrival: nothing was waited for any more.
        if flight.arrived is not None and not flight.is_diverted and flight.arrived in stretch:
            found += _reports("arrival", ARRIVALS, flight, flight.arrived)
    found.sort(key=lambda report: report.reported_at)
    return [*found, clock_signal(DEPARTURES, stretch), clock_signal(ARRIVALS, stretch)]


def clock_signal(topic: str, stretch: Stretch) -> Report:
    """A report that nothing happened, sent when all events of the stretch have been reported.

    A window is final once the watermark has passed its end, and only events move the watermark: the
    last windows of a stretch would stay open for ever. So the replay ends with a clock signal (in
    other systems: heartbeat, punctuation) whose event time is ``MAX_LATENESS`` after the stretch
    and a little, which puts the watermark just behind the stretch's end. The windows that it falls
    into itself are never final; it adds nothing to any result. Its columns are empty and not null:
    a join leaves rows without a key out before the watermark has seen them. Its flight is one that
    no other topic knows.
    """
    time = stretch.end + MAX_LATENESS + CLOCK_MARGIN
    names = ("airport", "carrier", "tail_number", "origin", "destination")
    content = {
        "type": "clock",
        "event_time": iso(time),
        "reported_at": iso(time),
        **dict.fromkeys(names, ""),
        "flight": topic,
        "scheduled_departure": iso(time),
    }
    return Report("clock", topic, time, time, None, orjson.dumps(content))


def latency(topic: str, flight: Flight) -> int:
    """Seconds between an event of a flight and its report; the same at each call.

    Always less than ``MAX_LATENESS``.
    """
    share, spread = _dice("latency", topic, flight)
    for part, low, high in _LATENCIES:
        if share < part:
            return low + spread % (high - low)
        share -= part
    raise AssertionError("the shares of _LATENCIES add up to 1000")


def iso(instant: int) -> str:
    """Unix time in seconds as ISO 8601 in UTC, for example ``2013-03-08T17:05:00Z``."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _reports(kind: Kind, topic: str, flight: Flight, event_time: int) -> Iterator[Report]:
    """The report of an event; before it the same one cut short, if that happened to it."""
    reported_at = event_time + latency(topic, flight)
    value = orjson.dumps(_content(kind, flight, event_time, reported_at))
    # Keyed by the flight's name, so that a topic could be partitioned by it.
    key = flight.name.encode()
    if _dice("cut short", topic, flight)[0] < _CUT_SHORT_PER_MILLE:
        yield Report("cut short", topic, event_time, reported_at, key, value[: len(value) // 2])
    yield Report(kind, topic, event_time, reported_at, key, value)


def _content(kind: Kind, flight: Flight, event_time: int, reported_at: int) -> dict[str, Any]:
    arrival = kind == "arrival"
    return {
        "type": kind,
        "event_time": iso(event_time),
        "reported_at": iso(reported_at),
        "airport": flight.destination if arrival else flight.origin,
        "flight": flight.name,
        "carrier": flight.carrier,
        "tail_number": flight.tail_number,
        "origin": flight.origin,
        "destination": flight.destination,
        "scheduled_departure": iso(flight.scheduled),
        "delay_minutes": flight.arrival_delay if arrival else flight.departure_delay,
        "miles": flight.miles,
    }


def _dice(what: str, topic: str, flight: Flight) -> tuple[int, int]:
    """Two numbers by chance, the same for a flight each time: one below 1000, and one of 32 bit."""
    identity = f"{what}|{topic}|{flight.name}|{flight.origin}|{flight.scheduled}"
    digest = hashlib.blake2b(identity.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "big") % 1000, int.from_bytes(digest[4:], "big")


@dataclass(frozen=True, slots=True)
class Lateness:
    """How far the order of reports is from the order of events.

    Attributes:
        out_of_order: reports of an event older than one that was reported before, per topic.
        longest: the longest time between an event and its report, in seconds.
    """

    out_of_order: int
    longest: int


def lateness(sent: Iterable[Report]) -> Lateness:
    """The lateness of reports, given in the order in which they are sent."""
    newest: dict[str, int] = {}
    out_of_order = longest = 0
    for report in sent:
        if report.kind in ("clock", "registry"):
            continue
        out_of_order += report.event_time < newest.get(report.topic, 0)
        newest[report.topic] = max(report.event_time, newest.get(report.topic, 0))
        longest = max(longest, report.reported_at - report.event_time)
    return Lateness(out_of_order, longest)
