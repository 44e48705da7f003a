"""What airports report: flights as events, in the order in which the reports come in.

Each flight gives a *departure* event when it leaves and an *arrival* event when it lands. Nobody
hears of it at that moment: the airport's report follows with a latency. So events come late and out
of order in event time, as in life; how late is decided by a hash of the flight, so that each replay
of a stretch is the same.

The model promises one thing, on which the pipeline's watermark rests: a report is never later than
``MAX_LATENESS`` after its event, and reports are sent in order. So when a report is read, no event
older than that report's time minus ``MAX_LATENESS`` can follow.

Knows nothing of topics' partitions, brokers or Spark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson

from tidemill.demo.flights import Flight, Stretch

DEPARTURES = "departures"
ARRIVALS = "arrivals"

MINUTE = 60
HOUR = 3600

MAX_LATENESS = 2 * HOUR
"""Seconds within which each event is reported."""

# Shares of all reports in per mille, and the latencies in seconds between which they lie: most come
# by data link, some by radio when somebody has time, a few are handed in on paper.
_LATENCIES = (
    (850, 0, 4 * MINUTE),
    (120, 5 * MINUTE, 30 * MINUTE),
    (30, 30 * MINUTE, MAX_LATENESS),
)


@dataclass(frozen=True, slots=True)
class Report:
    """An event and when it was heard of. Instants are Unix time in seconds.

    Attributes:
        topic: ``DEPARTURES`` or ``ARRIVALS``.
        flight: the flight, or ``None`` in a clock signal.
        event_time: when it happened.
        reported_at: when the report was sent; the record's timestamp.
    """

    topic: str
    flight: Flight | None
    event_time: int
    reported_at: int

    @property
    def key(self) -> bytes | None:
        """The record's key: the flight's name, so that a topic could be partitioned by it."""
        return None if self.flight is None else self.flight.name.encode()

    def value(self) -> bytes:
        """The record's value: a JSON object, instants in ISO 8601 (UTC)."""
        common = {"event_time": iso(self.event_time), "reported_at": iso(self.reported_at)}
        flight = self.flight
        if flight is None:
            return orjson.dumps({"type": "clock", **common})
        departure = self.topic == DEPARTURES
        return orjson.dumps(
            {
                "type": "departure" if departure else "arrival",
                **common,
                "airport": flight.origin if departure else flight.destination,
                "flight": flight.name,
                "carrier": flight.carrier,
                "tail_number": flight.tail_number,
                "origin": flight.origin,
                "destination": flight.destination,
                "scheduled_departure": iso(flight.scheduled),
                "delay_minutes": flight.departure_delay if departure else flight.arrival_delay,
                "miles": flight.miles,
            }
        )


def reports(flights: Iterable[Flight], stretch: Stretch) -> list[Report]:
    """Reports of all events that happened within the stretch, in the order they were sent.

    The last report in ``DEPARTURES`` is a clock signal (see ``clock_signal``).
    """
    found = []
    for flight in flights:
        if flight.departed in stretch:
            found.append(_report(DEPARTURES, flight, flight.departed))
        if flight.arrived is not None and flight.arrived in stretch:
            found.append(_report(ARRIVALS, flight, flight.arrived))
    found.sort(key=lambda report: report.reported_at)
    found.append(clock_signal(stretch))
    return found


def clock_signal(stretch: Stretch) -> Report:
    """A report that nothing happened, sent when all events of the stretch have been reported.

    A window is final once the watermark has passed its end, and only events move the watermark: the
    last windows of a stretch would stay open for ever. So the replay ends with a clock signal (in
    other systems: heartbeat, punctuation) whose event time is ``MAX_LATENESS`` after the stretch,
    which puts the watermark exactly at the stretch's end. It names no airport, and the window that
    it falls into itself is never closed; it adds nothing to any result.
    """
    time = stretch.end + MAX_LATENESS
    return Report(DEPARTURES, None, event_time=time, reported_at=time)


def latency(topic: str, flight: Flight) -> int:
    """Seconds between an event of a flight and its report; the same at each call.

    Always less than ``MAX_LATENESS``.
    """
    identity = f"{topic}|{flight.name}|{flight.origin}|{flight.scheduled}"
    digest = hashlib.blake2b(identity.encode(), digest_size=8).digest()
    share = int.from_bytes(digest[:4], "big") % 1000
    spread = int.from_bytes(digest[4:], "big")
    for part, low, high in _LATENCIES:
        if share < part:
            return low + spread % (high - low)
        share -= part
    raise AssertionError("the shares of _LATENCIES add up to 1000")


def iso(instant: int) -> str:
    """Unix time in seconds as ISO 8601 in UTC, for example ``2013-03-08T17:05:00Z``."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _report(topic: str, flight: Flight, event_time: int) -> Report:
    return Report(topic, flight, event_time, event_time + latency(topic, flight))


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
        out_of_order += report.event_time < newest.get(report.topic, 0)
        newest[report.topic] = max(report.event_time, newest.get(report.topic, 0))
        longest = max(longest, report.reported_at - report.event_time)
    return Lateness(out_of_order, longest)
