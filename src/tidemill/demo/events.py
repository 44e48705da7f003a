"""Make the reports of the airports: flights as events, in the order in which they are reported.

Each flight has a *departure* event when it leaves and an *arrival* event when it lands at its
destination. A cancelled flight has a *cancellation* event at its scheduled departure. The airport
reports an event later, with a latency, so reports are late and out of order in event time. A hash
of the flight decides the latency, so that each replay of a stretch is the same. A few reports are
cut short, and sent a second time in full.

The pipeline's watermarks depend on one property: a report is at most ``MAX_LATENESS`` later than
its event, and reports are sent in order. So after a report, no event can follow that is older than
the report's time minus ``MAX_LATENESS``.

This module must not know partitions, brokers or Spark.
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
"""The longest time between an event and its report, in seconds."""

CLOCK_MARGIN = 30
"""Seconds by which the last watermark passes the end of the stretch.

Events happen at whole minutes, so no window's end and no join's bound is equal to the watermark.
"""

# Shares of all reports in per mille, and the bounds of their latency in seconds. Most reports use a
# data link, some the radio, and a few are on paper.
_LATENCIES = (
    (850, 0, 4 * MINUTE),
    (120, 5 * MINUTE, 30 * MINUTE),
    (30, 30 * MINUTE, MAX_LATENESS),
)

_CUT_SHORT_PER_MILLE = 2

Kind = Literal["departure", "cancellation", "arrival", "clock", "cut short"]


@dataclass(frozen=True, slots=True)
class Report:
    """A record to send. Times are in Unix seconds; ``reported_at`` is the record's timestamp."""

    kind: Kind
    topic: str
    event_time: int
    reported_at: int
    key: bytes | None
    value: bytes


def reports(flights: Iterable[Flight], stretch: Stretch) -> list[Report]:
    """Return the reports of all events within the stretch, in the order in which they are sent.

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
        # The data set may have the time at which the passengers of a diverted flight arrived. Its
        # destination does not report that.
        if flight.arrived is not None and not flight.is_diverted and flight.arrived in stretch:
            found += _reports("arrival", ARRIVALS, flight, flight.arrived)
    found.sort(key=lambda report: report.reported_at)
    return [*found, clock_signal(DEPARTURES, stretch), clock_signal(ARRIVALS, stretch)]


def clock_signal(topic: str, stretch: Stretch) -> Report:
    """Return a report without an event, to be sent after all others.

    A window is final when the watermark passes its end, and only records move the watermark, so the
    last windows of a stretch would never be final. The replay therefore ends with a clock signal
    (other systems call it heartbeat or punctuation). Its event time is ``MAX_LATENESS`` and
    ``CLOCK_MARGIN`` after the stretch, which moves the watermark to just after the end. The windows
    that contain the signal are never final, so it is in no result. Its columns are empty and not
    null, because a join drops rows without a key before they reach the watermark. Its flight occurs
    in no other topic.
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
    """Return the seconds between an event of a flight and its report: the same in each call.

    They are less than ``MAX_LATENESS``.
    """
    share, spread = _dice("latency", topic, flight)
    for part, low, high in _LATENCIES:
        if share < part:
            return low + spread % (high - low)
        share -= part
    raise AssertionError("the shares of _LATENCIES add up to 1000")


def iso(instant: int) -> str:
    """Return a Unix time in seconds as ISO 8601 in UTC, for example ``2013-03-08T17:05:00Z``."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _reports(kind: Kind, topic: str, flight: Flight, event_time: int) -> Iterator[Report]:
    """Yield the report of an event, and before it the same report cut short, for a few events."""
    reported_at = event_time + latency(topic, flight)
    value = orjson.dumps(_content(kind, flight, event_time, reported_at))
    # The key is the flight's name, so that a topic can be partitioned by it.
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
    """Return two pseudo-random numbers of a flight: one below 1000, and one of 32 bits."""
    identity = f"{what}|{topic}|{flight.name}|{flight.origin}|{flight.scheduled}"
    digest = hashlib.blake2b(identity.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "big") % 1000, int.from_bytes(digest[4:], "big")


@dataclass(frozen=True, slots=True)
class Lateness:
    """The difference between the order of reports and the order of events.

    Attributes:
        out_of_order: the number of reports of an event that is older than an earlier report's.
        longest: the longest time between an event and its report, in seconds.
    """

    out_of_order: int
    longest: int


def lateness(sent: Iterable[Report]) -> Lateness:
    """Return the lateness of reports that are given in the order in which they are sent."""
    newest: dict[str, int] = {}
    out_of_order = longest = 0
    for report in sent:
        if report.kind == "clock":
            continue
        out_of_order += report.event_time < newest.get(report.topic, 0)
        newest[report.topic] = max(report.event_time, newest.get(report.topic, 0))
        longest = max(longest, report.reported_at - report.event_time)
    return Lateness(out_of_order, longest)
