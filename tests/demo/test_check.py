"""The self-check computes what each query should publish, and notices each kind of difference."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Any

import pytest

from tests.demo.support import CANCELLED, instant, row, skip_without_data_set
from tidemill.demo import check_results
from tidemill.demo.check import Record, compare
from tidemill.demo.check_results import Facts, Leg, legs
from tidemill.demo.database.registry import AIRCRAFT, AIRLINES, Edit, Registry
from tidemill.demo.events import DEPARTURES, reports
from tidemill.demo.flights import Stretch, airport_zones, flight_of, flights

DAY = Stretch(date(2013, 1, 1), 1)
NO_REGISTRY = Registry({}, {}, ())


@pytest.fixture(autouse=True)
def _needs_the_data_set() -> None:
    skip_without_data_set()


def leg(left: str | None, delay: int = 0, **changes: Any) -> Leg:
    """A flight of 1 January that left New York at a time on its clock."""
    time = instant(f"2013-01-01T{left or '12:00'}:00-05:00")
    given: dict[str, Any] = {
        "flight": "B61",
        "origin": "JFK",
        "destination": "BOS",
        "tail_number": "N1",
        "miles": 100,
        "scheduled": time,
        "left": time if left else None,
        "delay": delay if left else None,
        "landed": None,
        "arrival_delay": None,
    }
    return Leg(**(given | changes))


def facts(*given: Leg, registry: Registry = NO_REGISTRY) -> Facts:
    return Facts(DAY, list(given), registry)


def at(clock: str) -> str:
    """A time on New York's clock of 1 January as results have it."""
    return check_results.text(instant(f"2013-01-01T{clock}:00-05:00"))


def brief(records: Iterable[Record], *fields: str) -> list[tuple[Any, ...]]:
    """Start of each record's window, and some fields, in order."""
    return sorted((record["window"]["start"], *(record[f] for f in fields)) for record in records)


# --- what is expected ----------------------------------------------------------------------------


def test_departures_are_counted_in_the_hour_in_which_they_really_left() -> None:
    rows = [
        row(),
        row(sched_dep_time="559", dep_delay="-5"),
        row(sched_dep_time="559", dep_delay="1"),
        row(origin="JFK", sched_dep_time="2359", dep_delay="-60"),
        row(**CANCELLED),
        row(sched_dep_time="2359", dep_delay="1"),  # left after the stretch
    ]
    found = check_results.hourly(Facts(DAY, legs(DAY, rows), NO_REGISTRY))
    assert brief(found, "airport", "departures", "delay_minutes", "mean_delay_minutes") == [
        (at("05:00"), "EWR", 2, -3, -1.5),
        (at("06:00"), "EWR", 1, 1, 1.0),
        (at("22:00"), "JFK", 1, -60, -60.0),
    ]


@pytest.mark.parametrize(
    ("month", "day", "scheduled", "instants"),
    [
        ("3", "10", "100", "2013-03-10T01:00:00-05:00"),
        ("3", "10", "500", "2013-03-10T05:00:00-04:00"),
        ("11", "3", "520", "2013-11-03T05:20:00-05:00"),
    ],
)
def test_times_are_instants_also_where_clocks_change(
    month: str, day: str, scheduled: str, instants: str
) -> None:
    [found] = legs(DAY, [row(month=month, day=day, sched_dep_time=scheduled, dep_delay="0")])
    assert found.left == instant(instants)


def test_a_departure_belongs_to_six_windows_of_three_hours_every_half_an_hour() -> None:
    found = check_results.trend(facts(leg("12:30", 6), leg("12:59", 3), leg("15:00", 100)))
    assert brief(found, "departures", "mean_delay_minutes") == [
        *((at(clock), 2, 4.5) for clock in ("10:00", "10:30", "11:00", "11:30", "12:00")),
        (at("12:30"), 3, 109 / 3),
        *((at(clock), 1, 100.0) for clock in ("13:00", "13:30", "14:00", "14:30", "15:00")),
    ]


def test_windows_that_end_after_the_stretch_are_not_final() -> None:
    found = check_results.trend(facts(leg("23:30")))
    assert [start for start, *_ in brief(found)] == [at("21:00")]
    assert not list(check_results.bursts(facts(leg("18:00"), leg("19:00"))))


def test_departures_in_the_gaps_are_in_no_sample() -> None:
    found = check_results.sample(facts(*(leg(f"12:0{minute}") for minute in range(10))))
    assert brief(found, "departures", "miles") == [(at("12:00"), 6, 600)]


def test_a_burst_lasts_as_long_as_each_departure_is_within_six_hours_of_the_one_before() -> None:
    clocks = ("01:00", "07:00", "13:01", "15:00")
    other = leg("02:00", tail_number="N2")
    found = list(check_results.bursts(facts(other, *(leg(clock) for clock in clocks))))
    assert brief(found, "tail_number", "departures", "miles") == [
        (at("01:00"), "N1", 2, 200),
        (at("13:01"), "N1", 2, 200),
    ]
    assert {record["window"]["end"] for record in found} == {at("13:00"), at("21:00")}


def test_a_flight_arrived_was_cancelled_or_diverted_and_open_ones_are_left_out() -> None:
    arrived = instant("2013-01-01T13:00:00-05:00")
    late = instant("2013-01-01T23:01:00-05:00")
    found = check_results.outcomes(
        facts(
            leg("10:00", flight="A", landed=arrived, arrival_delay=3),
            leg("10:00", flight="B"),
            leg(None, flight="C", scheduled=instant("2013-01-01T09:00:00-05:00")),
            leg("11:00", flight="D"),
            leg("11:01", flight="E"),
            leg("10:00", flight="F", landed=late, arrival_delay=600),
            leg("23:00", flight="G", landed=DAY.end, arrival_delay=0),
        )
    )
    assert {(record["flight"], record["outcome"], record["landed"]) for record in found} == {
        ("A", "arrived", at("13:00")),
        ("B", "diverted", None),
        ("C", "cancelled", None),
        ("D", "diverted", None),
        ("F", "diverted", None),
    }


START = {"changed_at": DAY.start}
AIRCRAFT_1 = {"tail_number": "N1", "operator": "B6", "model": "A320", "seats": 150, **START}
B6 = {"carrier": "B6", "name": "JetBlue", **START}


def test_a_departure_is_enriched_with_the_version_that_its_aircraft_had() -> None:
    refitted = instant("2013-01-01T11:00:00-05:00")
    delivered = {name: value for name, value in AIRCRAFT_1.items() if name != "changed_at"}
    registry = Registry(
        {"N1": AIRCRAFT_1},
        {},
        (
            Edit(refitted, AIRCRAFT, "update", "N1", {"seats": 160}),
            Edit(refitted, AIRCRAFT, "insert", "N3", {**delivered, "tail_number": "N3"}),
        ),
    )
    given = [
        leg(clock, tail_number=tail) for tail in ("N1", "N2", "N3") for clock in ("10:59", "11:00")
    ]
    found = [
        (each["tail_number"], each["seats"], each["changed_at"])
        for each in check_results.enriched(facts(*given, registry=registry))
    ]
    assert found == [
        ("N1", 150, at("00:00")),
        ("N1", 160, at("11:00")),
        ("N2", None, None),
        ("N2", None, None),
        ("N3", None, None),
        ("N3", 150, at("11:00")),
    ]


SINCE = {"changed_at": check_results.text(DAY.start)}
JETBLUE = {"airline_name": "JetBlue", "airline_changed_at": check_results.text(DAY.start)}
NO_AIRLINE = {"airline_name": None, "airline_changed_at": None}
GONE = Edit(1, AIRCRAFT, "delete", "N1", {})


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([], [{**AIRCRAFT_1, **SINCE, **JETBLUE}]),
        ([Edit(1, AIRLINES, "delete", "B6", {})], [{**AIRCRAFT_1, **SINCE, **NO_AIRLINE}]),
        ([GONE], []),
        (
            [GONE, Edit(2, AIRCRAFT, "insert", "N1", AIRCRAFT_1)],
            [{**AIRCRAFT_1, "changed_at": check_results.text(2), **JETBLUE}],
        ),
        (
            [Edit(1, AIRCRAFT, "update", "N1", {"tail_number": "N2"})],
            [{**AIRCRAFT_1, "tail_number": "N2", "changed_at": check_results.text(1), **JETBLUE}],
        ),
    ],
)
def test_the_fleet_is_the_join_of_both_tables_after_all_edits(
    edits: list[Edit], expected: list[Record]
) -> None:
    registry = Registry({"N1": AIRCRAFT_1}, {"B6": B6}, tuple(edits))
    assert list(check_results.fleet(facts(registry=registry))) == expected


def hour_of(clock: int, delays: list[int]) -> list[Leg]:
    return [leg(f"{clock:02}:{minute:02}", delay) for minute, delay in enumerate(delays)]


def test_an_hour_whose_delay_differs_from_the_day_before_gives_an_alert() -> None:
    usual = [leg for clock in (8, 9) for leg in hour_of(clock, [-10, 10] * 25)]
    [alert] = check_results.alerts(facts(*usual, *hour_of(10, [30] * 5)))
    assert alert["hour"]["start"] == at("10:00")
    assert (alert["departures"], alert["mean_delay_minutes"]) == (5, 30.0)
    assert (alert["usual_departures"], alert["usual_delay_minutes"]) == (100, 0.0)
    assert alert["deviation"] == 10.0


@pytest.mark.parametrize("delays", [[17] * 5, [1000] * 4])
def test_an_hour_as_usual_or_of_few_departures_gives_none(delays: list[int]) -> None:
    usual = [leg for clock in (8, 9) for leg in hour_of(clock, [-10, 10] * 25)]
    assert not list(check_results.alerts(facts(*usual, *hour_of(10, delays))))


# --- against the replay --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stretch", [Stretch(date(2013, 3, 9), 2), Stretch(date(2013, 11, 2), 2)], ids=str
)
def test_both_ways_to_read_the_data_set_find_the_same_instants(stretch: Stretch) -> None:
    one = {
        (each.name, each.origin, each.scheduled): (each.departed, each.arrived)
        for each in flights(stretch)
        if not each.is_diverted
    }
    two = {
        (each.flight, each.origin, each.scheduled): (each.left, each.landed)
        for each in legs(stretch)
        if each.left is None or each.landed is not None
    }
    assert one == two
    assert len(one) > 1000


def test_both_ways_agree_on_flights_without_an_arrival() -> None:
    diverted = row(arr_delay=None, air_time=None, arr_time="1400")
    [found] = legs(DAY, [diverted])
    assert found.landed is None
    assert flight_of(diverted, airport_zones()).is_diverted


@pytest.mark.parametrize("stretch", [Stretch(date(2013, 3, 9), 2)], ids=str)
def test_the_reports_of_real_days_add_up_to_the_expected_hours(stretch: Stretch) -> None:
    counts: dict[str, int] = {}
    for report in reports(flights(stretch), stretch):
        if report.topic == DEPARTURES and report.kind == "departure":
            hour = check_results.text(report.event_time // 3600 * 3600)
            counts[hour] = counts.get(hour, 0) + 1
    expected: dict[str, int] = {}
    for record in check_results.hourly(Facts(stretch, legs(stretch), NO_REGISTRY)):
        hour = record["window"]["start"]
        expected[hour] = expected.get(hour, 0) + record["departures"]
    assert counts == expected


# --- differences ---------------------------------------------------------------------------------

ONE = {"airport": "EWR", "window": {"start": "a", "end": "b"}, "mean": 10 / 3}
TWO = {"airport": "JFK", "window": {"start": "a", "end": "b"}, "mean": 1.0}
IDENTITY = ("airport", "window")
KEY = ("EWR", "a/b")


def test_equal_records_are_equal_and_fields_without_a_value_do_not_count() -> None:
    found = compare("q", [ONE, {**TWO, "more": None}], [TWO, {**ONE, "mean": 10 / 3}], IDENTITY)
    assert found.ok
    assert (found.equal, found.expected) == (2, 2)


@pytest.mark.parametrize("changes", [{"mean": 3.3333333333333}, {"mean": None}, {"more": 1}])
def test_a_difference_in_any_field_is_unequal(changes: dict[str, Any]) -> None:
    found = compare("q", [ONE], [{**ONE, **changes}], IDENTITY)
    assert not found.ok
    assert list(found.unequal) == [KEY]
    assert (found.equal, found.expected) == (0, 1)


def test_missing_and_unexpected_records_are_named() -> None:
    found = compare("q", [ONE], [TWO], IDENTITY)
    assert not found.ok
    assert found.missing == {KEY: ONE}
    assert found.unexpected == {("JFK", "a/b"): TWO}


def test_a_record_that_was_published_twice_is_a_failure_even_if_it_is_equal() -> None:
    found = compare("q", [ONE], [ONE, ONE], IDENTITY)
    assert not found.ok
    assert (found.equal, found.repeated) == (1, (KEY,))


def test_an_identity_that_two_records_share_is_an_error() -> None:
    with pytest.raises(ValueError, match="two records"):
        compare("q", [ONE, {**ONE, "mean": 1}], [], IDENTITY)
