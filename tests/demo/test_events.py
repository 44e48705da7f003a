"""Reports come late and out of order, but never later than promised, and always the same."""

from __future__ import annotations

import json
from datetime import date

from hypothesis import given
from hypothesis import strategies as st

from tests.demo.support import flight
from tidemill.demo.events import (
    ARRIVALS,
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
    found = lateness(reports(made, STRETCH)[:-1])
    assert found.out_of_order > 100
    assert HOUR < found.longest < MAX_LATENESS


def test_order_is_counted_by_topic() -> None:
    def report(topic: str, event_time: int) -> Report:
        return Report(topic, None, event_time, 100)

    sent = [
        report(DEPARTURES, 50),
        report(ARRIVALS, 40),
        report(ARRIVALS, 60),
        report(DEPARTURES, 45),
    ]
    assert lateness(sent) == Lateness(out_of_order=1, longest=60)


def test_only_events_within_the_stretch_are_reported() -> None:
    made = [
        flight(1, departed=START - 60, arrived=START),
        flight(2, departed=STRETCH.end - 60, arrived=STRETCH.end),
        flight(3, departed=START, arrived=None),
    ]
    found = {(r.topic, r.flight.number) for r in reports(made, STRETCH) if r.flight is not None}
    assert found == {(ARRIVALS, 1), (DEPARTURES, 2), (DEPARTURES, 3)}


def test_the_last_report_puts_the_watermark_at_the_end_of_the_stretch() -> None:
    last = reports([], STRETCH)[-1]
    assert last.topic == DEPARTURES
    assert last.key is None
    assert last.event_time - MAX_LATENESS == STRETCH.end
    assert json.loads(last.value()) == {
        "type": "clock",
        "event_time": "2013-01-02T07:00:00Z",
        "reported_at": "2013-01-02T07:00:00Z",
    }


def test_a_departure_names_the_airport_it_left_and_an_arrival_the_one_it_reached() -> None:
    one = flight(7, departed=START, arrived=START + HOUR, delay=-3)
    departure, arrival = sorted(reports([one], STRETCH)[:-1], key=lambda r: r.event_time)
    assert departure.key == arrival.key == b"B67"
    assert json.loads(departure.value()) == {
        "type": "departure",
        "event_time": "2013-01-01T05:00:00Z",
        "reported_at": json.loads(departure.value())["reported_at"],
        "airport": "JFK",
        "flight": "B67",
        "carrier": "B6",
        "tail_number": None,
        "origin": "JFK",
        "destination": "BOS",
        "scheduled_departure": "2013-01-01T05:03:00Z",
        "delay_minutes": -3,
        "miles": 187,
    }
    assert json.loads(arrival.value())["airport"] == "BOS"
    assert json.loads(arrival.value())["event_time"] == "2013-01-01T06:00:00Z"
