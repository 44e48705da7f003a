"""Reports are late and out of order, never later than the bound, and the same in each run."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.demo.support import cancelled, flight
from tidemill.demo.events import (
    ARRIVALS,
    CLOCK_MARGIN,
    DEPARTURES,
    HOUR,
    MAX_LATENESS,
    Lateness,
    Report,
    latency,
    lateness,
    reports,
)
from tidemill.demo.flights import Stretch

STRETCH = Stretch(date(2013, 1, 1), 1)
START = STRETCH.start

minutes = st.lists(st.integers(-600, 2400), max_size=60)


def content(report: Report) -> dict[str, Any]:
    assert report.value is not None
    found: dict[str, Any] = json.loads(report.value)
    return found


@given(minutes)
def test_when_a_report_is_sent_no_event_older_than_the_bound_can_follow(
    departures: list[int],
) -> None:
    made = [flight(n, departed=START + m * 60) for n, m in enumerate(departures)]
    newest = 0
    for report in reports(made, STRETCH):
        # The watermark after the reports before this one: its window is still open.
        assert report.event_time >= newest - MAX_LATENESS
        newest = max(newest, report.event_time)


@given(minutes)
def test_reports_are_in_the_order_in_which_they_were_sent(departures: list[int]) -> None:
    made = [
        flight(n, departed=START + m * 60, arrived=START + m * 60 + HOUR)
        for n, m in enumerate(departures)
    ]
    sent = [report.reported_at for report in reports(made, STRETCH)]
    assert sent == sorted(sent)


def test_latencies_differ_but_are_the_same_each_time() -> None:
    made = [flight(n, departed=START) for n in range(2000)]
    first = [latency(DEPARTURES, f) for f in made]
    assert first == [latency(DEPARTURES, f) for f in made]
    assert first != [latency(ARRIVALS, f) for f in made]
    assert 0 <= min(first) < 60
    assert MAX_LATENESS * 0.9 < max(first) < MAX_LATENESS


def test_some_reports_come_out_of_order() -> None:
    made = [flight(n, departed=START + n * 60) for n in range(1000)]
    found = lateness(reports(made, STRETCH))
    assert found.out_of_order > 100
    assert HOUR < found.longest < MAX_LATENESS


def test_order_is_counted_by_topic_and_of_flights_only() -> None:
    def report(topic: str, event_time: int, kind: Any = "departure") -> Report:
        return Report(kind, topic, event_time, 100, None, b"")

    sent = [
        report(DEPARTURES, 50),
        report(ARRIVALS, 40),
        report(ARRIVALS, 60),
        report(DEPARTURES, 0, "clock"),
        report(DEPARTURES, 45),
    ]
    assert lateness(sent) == Lateness(out_of_order=1, longest=60)


def test_only_events_within_the_stretch_are_reported() -> None:
    made = [
        flight(1, departed=START - 60, arrived=START),
        flight(2, departed=STRETCH.end - 60, arrived=STRETCH.end),
        flight(3, departed=START, arrived=None),
        cancelled(4, scheduled=START),
        cancelled(5, scheduled=STRETCH.end),
    ]
    found = {(r.topic, r.kind, r.key) for r in reports(made, STRETCH) if r.kind != "clock"}
    assert found == {
        (ARRIVALS, "arrival", b"B61"),
        (DEPARTURES, "departure", b"B62"),
        (DEPARTURES, "departure", b"B63"),
        (DEPARTURES, "cancellation", b"B64"),
    }


def test_a_report_says_what_happened_when_and_where() -> None:
    made = [flight(7, departed=START, arrived=START + HOUR, delay=5, tail_number="N1")]
    departure, arrival = (content(r) for r in reports(made, STRETCH) if r.kind != "clock")
    common = {"flight": "B67", "carrier": "B6", "tail_number": "N1", "delay_minutes": 5}
    for found, kind, airport in ((departure, "departure", "JFK"), (arrival, "arrival", "BOS")):
        assert found.items() >= {**common, "type": kind, "airport": airport}.items()
    assert departure["event_time"] == "2013-01-01T05:00:00Z"
    assert departure["scheduled_departure"] == "2013-01-01T04:55:00Z"
    assert arrival["event_time"] == "2013-01-01T06:00:00Z"


def test_a_diverted_flight_has_no_arrival_report() -> None:
    from dataclasses import replace

    diverted = replace(flight(1, departed=START, arrived=START + HOUR), arrival_delay=None)
    assert [r.kind for r in reports([diverted], STRETCH)] == ["departure", "clock", "clock"]


def test_a_report_that_was_cut_short_is_sent_again_in_full() -> None:
    made = [flight(n, departed=START + n) for n in range(2000)]
    sent = reports(made, STRETCH)
    found = [index for index, report in enumerate(sent) if report.kind == "cut short"]
    assert found
    for index in found:
        cut, whole = sent[index].value, sent[index + 1].value
        assert cut is not None
        assert whole is not None
        assert whole.startswith(cut)
        assert len(cut) < len(whole)
        assert sent[index + 1].kind == "departure"


def test_the_clock_signals_come_last_and_move_both_watermarks_behind_the_end() -> None:
    sent = reports([flight(departed=STRETCH.end - 1)], STRETCH)
    assert [(r.topic, r.kind) for r in sent[-2:]] == [(DEPARTURES, "clock"), (ARRIVALS, "clock")]
    for signal in sent[-2:]:
        time = datetime.fromisoformat(content(signal)["event_time"]).astimezone(UTC).timestamp()
        assert time - MAX_LATENESS == STRETCH.end + CLOCK_MARGIN
        # A filter on a column that is null would take it away before the watermark has seen it.
        assert None not in content(signal).values()
    assert content(sent[-1])["flight"] != content(sent[-2])["flight"]
