"""What the page shows is taken from records: each change once, bounded, whatever a record has."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.demo.support import cancelled, flight, instant
from tidemill.demo.events import ARRIVALS, DEPARTURES, Report, clock_signal, reports
from tidemill.demo.flights import Flight, Stretch
from tidemill.demo.page.live import (
    AIRPORTS,
    ALERTS,
    DAYS,
    HOURLY,
    HOURS,
    MOST_ALERTS,
    MOST_PLANES,
    TOPICS,
    Live,
    days,
    level,
)
from tidemill.spark.pipelines.progress import TOPIC as STATUSES
from tidemill.spark.pipelines.progress import QueryStatus

DAY = Stretch(datetime(2013, 3, 8, tzinfo=UTC).date(), 1)
NOON = instant("2013-03-08T17:00:00Z")
HOUR = 3600


def send(live: Live, *found: Report) -> None:
    for each in found:
        live.take(each.topic, each.value, each.reported_at * 1000)


def reported(live: Live, *flights: Flight) -> None:
    send(live, *(each for each in reports(flights, DAY) if each.kind not in ("clock", "cut short")))


def put(live: Live, topic: str, content: object) -> None:
    live.take(topic, json.dumps(content).encode(), 0)


def closed(start: int, departures: int = 9, delay: float = 12.5, airport: str = "JFK") -> Any:
    window = {"start": datetime.fromtimestamp(start, UTC).isoformat()}
    return {
        "window": window,
        "airport": airport,
        "departures": departures,
        "mean_delay_minutes": delay,
    }


def alerted(start: int, delay: float = 80.0) -> Any:
    hour = {"start": datetime.fromtimestamp(start, UTC).isoformat()}
    return closed(start, delay=delay) | {"hour": hour, "usual_delay_minutes": 4.25}


def test_a_departure_is_a_plane_until_it_has_landed_and_moves_the_clock() -> None:
    live = Live()
    reported(live, flight(1, departed=NOON, delay=20))
    shown = live.since(0)
    (plane,) = shown["planes"]
    assert (plane["origin"], plane["destination"], plane["delay"]) == ("JFK", "BOS", 20)
    assert plane["departed"] == NOON < plane["lands"] < NOON + 2 * HOUR
    assert NOON <= shown["clock"] < NOON + 2 * HOUR
    reported(live, flight(2, departed=NOON + 5 * HOUR))
    assert [each["departed"] for each in live.since(0)["planes"]] == [NOON + 5 * HOUR]
    assert live.since(0)["counts"] == {"departures": 2}


def test_an_hour_is_open_until_its_window_is_closed() -> None:
    live = Live()
    reported(live, flight(1, departed=NOON, delay=10), flight(2, departed=NOON + 60, delay=30))
    reported(live, cancelled(3, scheduled=NOON + 120))
    (hour,) = live.since(0)["hours"]
    assert (hour["departures"], hour["delay"], hour["cancelled"]) == (2, 20, 1)
    assert not hour["is_final"]
    put(live, HOURLY, closed(NOON, departures=3, delay=25.04))
    reported(live, flight(4, departed=NOON + 180, delay=600))  # late: the window is closed
    (hour,) = live.since(0)["hours"]
    assert (hour["departures"], hour["delay"], hour["is_final"]) == (3, 25.0, True)
    assert hour["when"] == "Fri 8 Mar, 12-13"
    (jfk,) = (each for each in live.since(0)["airports"] if each["code"] == "JFK")
    assert (jfk["last"]["departures"], jfk["cancelled"]) == (3, 1)


def test_a_viewer_gets_each_change_once() -> None:
    live = Live()
    reported(live, flight(1, departed=NOON))
    put(live, ALERTS, alerted(NOON))
    first = live.since(0)
    assert [len(first[name]) for name in ("planes", "hours", "alerts")] == [1, 1, 1]
    nothing = live.since(first["version"])
    assert [nothing[name] for name in ("planes", "hours", "alerts")] == [[], [], []]
    put(live, HOURLY, closed(NOON))
    more = live.since(first["version"])
    assert [len(more[name]) for name in ("planes", "hours", "alerts")] == [0, 1, 0]
    assert more["version"] > first["version"]


def test_the_clock_signal_ends_the_replay_and_moves_no_clock() -> None:
    live = Live()
    reported(live, flight(1, departed=NOON))
    before = live.since(0)
    send(live, clock_signal(DEPARTURES, DAY), clock_signal(ARRIVALS, DAY))
    after = live.since(0)
    assert (before["is_over"], after["is_over"]) == (False, True)
    assert after["clock"] == before["clock"]
    assert after["counts"] == before["counts"]


def test_everything_is_bounded() -> None:
    live = Live()
    for number in range(3 * HOURS):
        for airport in AIRPORTS:
            put(live, HOURLY, closed(NOON + number * HOUR, airport=airport))
        put(live, ALERTS, alerted(NOON + number * HOUR))
    reported(live, *(flight(n, departed=NOON + n) for n in range(2 * MOST_PLANES)))
    put(live, HOURLY, closed(NOON, airport="XYZ"))  # another airport: not shown
    for number in range(200):
        live.take(STATUSES, QueryStatus("control-room", f"q{number}", "running").encode(), 0)
    shown = live.since(0)
    assert len(shown["hours"]) == len(AIRPORTS) * HOURS
    assert shown["hours"][0]["start"] > NOON  # the newest are kept
    assert len(shown["planes"]) <= MOST_PLANES
    assert (len(shown["alerts"]), shown["pipeline"]["queries"]) == (MOST_ALERTS, 50)


GOOD: dict[str, Any] = {
    DEPARTURES: {
        "type": "departure",
        "event_time": "2013-03-08T17:00:00Z",
        "airport": "JFK",
        "flight": "B61",
        "destination": "BOS",
        "delay_minutes": 3,
        "miles": 187,
    },
    ARRIVALS: {"type": "arrival", "event_time": "2013-03-08T17:00:00Z"},
    HOURLY: closed(NOON),
    ALERTS: alerted(NOON),
    STATUSES: {"pipeline": "control-room", "query": "hourly", "state": "running"},
}
HOSTILE: list[Any] = [
    None,
    [],
    {},
    -1,
    1e300,
    10**40,
    True,
    "",
    "x" * 10_000,
    "9999-12-31T23:59:59Z",
    "🌊",
]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_record_that_can_have_anything_harms_nothing(topic: str) -> None:
    live = Live()
    for data in (b"", b"\xff", b"[]", b"7", b"null", b"{", b'{"a":' * 9000):
        live.take(topic, data, -1)
    for name in GOOD[topic]:
        for value in HOSTILE:
            live.take(topic, json.dumps({**GOOD[topic], name: value}).encode(), 10**18)
    shown = live.since(0)
    assert shown["counts"]["unreadable"] >= 7
    assert json.dumps(shown, allow_nan=False)
    assert shown["clock"] == 0
    live.take(topic, json.dumps(GOOD[topic]).encode(), NOON * 1000)
    assert live.since(shown["version"])["version"] > shown["version"]


def test_the_pipeline_is_the_sum_of_its_queries() -> None:
    live = Live()
    hourly = QueryStatus("control-room", "hourly", "running", batch=4, rows=7, latency_p50_ms=900)
    for status in (
        QueryStatus("control-room", "trend", "failed", late_rows=2, watermark="2013-03-08T01:00Z"),
        hourly,
        QueryStatus("another", "x", "running", rows=1000),
    ):
        live.take(STATUSES, status.encode(), 0)
    found = live.since(0)["pipeline"]
    assert (found["queries"], found["running"], found["failed"]) == (2, 1, ["trend"])
    assert (found["rows"], found["batches"], found["late_rows"]) == (7, 5, 2)
    assert (found["latency_ms"], found["final_up_to"]) == (900, instant("2013-03-08T01:00:00Z"))


def test_the_timeline_has_the_first_days_and_then_the_last_ones() -> None:
    found = days(NOON, NOON)
    assert [each["text"] for each in found][:2] == ["Fri 8 March", "Sat 9 March"]
    lengths = [b["start"] - a["start"] for a, b in itertools.pairwise(found)]
    assert lengths == [24 * HOUR, 24 * HOUR, 23 * HOUR, 24 * HOUR, 24 * HOUR]  # clocks go forward
    later = days(NOON, NOON + 9 * 24 * HOUR)
    assert (len(later), later[-2]["text"]) == (DAYS + 1, "Sun 17 March")
    assert days(0, 0) == []


@pytest.mark.parametrize(
    ("delay", "expected"), [(-20, 0), (4.9, 0), (5, 1), (15, 2), (59, 3), (60, 4), (900, 4)]
)
def test_a_delay_has_a_level(delay: float, expected: int) -> None:
    assert level(delay) == expected
