"""The self-check computes the right figures and notices each kind of difference."""

from __future__ import annotations

from datetime import date, datetime

import pytest

from tests.demo.support import CANCELLED, row
from tidemill.demo.check import WindowFigures, WindowKey, compare, expected_windows
from tidemill.demo.events import DEPARTURES, reports
from tidemill.demo.flights import DataSetMissingError, Stretch, data_folder, flights

DAY = Stretch(date(2013, 1, 1), 1)


def hour(airport: str, text: str) -> WindowKey:
    return airport, int(datetime.fromisoformat(text).timestamp())


def test_departures_are_counted_in_the_hour_in_which_they_really_left() -> None:
    rows = [
        row(),
        row(sched_dep_time="559", dep_delay="-5"),
        row(sched_dep_time="559", dep_delay="1"),
        row(origin="JFK", sched_dep_time="2359", dep_delay="-60"),
        row(**CANCELLED),
    ]
    assert expected_windows(DAY, rows) == {
        hour("EWR", "2013-01-01T05:00:00-05:00"): WindowFigures(2, -3, -1.5),
        hour("EWR", "2013-01-01T06:00:00-05:00"): WindowFigures(1, 1, 1.0),
        hour("JFK", "2013-01-01T22:00:00-05:00"): WindowFigures(1, -60, -60.0),
    }


def test_a_flight_that_left_after_the_stretch_is_not_counted() -> None:
    assert expected_windows(DAY, [row(sched_dep_time="2359", dep_delay="1")]) == {}


@pytest.mark.parametrize(
    ("month", "day", "scheduled", "instant"),
    [
        ("3", "10", "100", "2013-03-10T01:00:00-05:00"),
        ("3", "10", "500", "2013-03-10T05:00:00-04:00"),
        ("11", "3", "520", "2013-11-03T05:00:00-05:00"),
    ],
)
def test_hours_are_instants_also_where_clocks_change(
    month: str, day: str, scheduled: str, instant: str
) -> None:
    rows = [row(month=month, day=day, sched_dep_time=scheduled, dep_delay="0")]
    found = expected_windows(Stretch(date(2013, int(month), int(day)), 1), rows)
    assert list(found) == [hour("EWR", instant)]


KEY, OTHER = ("EWR", 0), ("JFK", 0)
FIGURES = WindowFigures(3, 10, 10 / 3)


def test_equal_windows_are_equal() -> None:
    found = compare({KEY: FIGURES}, {KEY: WindowFigures(3, 10, 10 / 3)})
    assert found.all_equal
    assert (found.equal, found.expected) == (1, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        WindowFigures(4, 10, 10 / 3),
        WindowFigures(3, 11, 10 / 3),
        WindowFigures(3, 10, 3.3333333333333),
    ],
)
def test_a_difference_in_any_figure_is_unequal(wrong: WindowFigures) -> None:
    found = compare({KEY: FIGURES}, {KEY: wrong})
    assert not found.all_equal
    assert found.unequal == {KEY: (FIGURES, wrong)}


def test_missing_and_unexpected_windows_are_named() -> None:
    found = compare({KEY: FIGURES}, {OTHER: FIGURES})
    assert not found.all_equal
    assert found.missing == {KEY: FIGURES}
    assert found.unexpected == {OTHER: FIGURES}
    assert (found.equal, found.expected) == (0, 1)


def test_nothing_expected_and_nothing_found_is_no_success() -> None:
    assert not compare({}, {}).all_equal


@pytest.mark.parametrize(
    "stretch", [Stretch(date(2013, 3, 9), 2), Stretch(date(2013, 11, 2), 2)], ids=str
)
def test_the_reports_of_real_days_add_up_to_the_expected_figures(stretch: Stretch) -> None:
    try:
        data_folder()
    except DataSetMissingError as missing:
        pytest.skip(str(missing))
    sums: dict[WindowKey, list[int]] = {}
    for report in reports(flights(stretch), stretch):
        if report.topic == DEPARTURES and report.flight is not None:
            key = (report.flight.origin, report.event_time // 3600 * 3600)
            sums.setdefault(key, []).append(report.flight.departure_delay)
    computed = {k: WindowFigures(len(d), sum(d), sum(d) / len(d)) for k, d in sums.items()}
    assert compare(expected_windows(stretch), computed).all_equal
