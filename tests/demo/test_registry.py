"""The tables change during a stretch, except for the rows of aircraft that fly."""

from __future__ import annotations

import json
from datetime import date

import pytest

from tidemill.demo.flights import DataSetMissingError, Stretch, data_folder, flights
from tidemill.demo.registry import AIRCRAFT, AIRLINES, Registry, registry

STRETCH = Stretch(date(2013, 3, 9), 2)


@pytest.fixture(scope="module")
def tables() -> Registry:
    try:
        data_folder()
    except DataSetMissingError as missing:
        pytest.skip(str(missing))
    return registry(flights(STRETCH), STRETCH)


def test_all_changes_happen_within_the_stretch_and_in_order(tables: Registry) -> None:
    times = [change.time for change in tables.changes]
    assert times == sorted(times)
    assert all(time in STRETCH for time in times)


def test_both_tables_see_updates_deletions_and_returns(tables: Registry) -> None:
    for table, rows in ((AIRCRAFT, tables.aircraft), (AIRLINES, tables.airlines)):
        changes = [change for change in tables.changes if change.table == table]
        gone: set[str] = set()
        seen = set()
        for change in changes:
            if change.row is None:
                gone.add(change.key)
                seen.add("deleted")
            elif change.key in gone:
                seen.add("returned")
            elif change.row != rows[change.key]:
                seen.add("updated")
        assert seen == {"deleted", "returned", "updated"}


def test_only_the_operator_of_an_aircraft_that_flies_changes(
    tables: Registry,
) -> None:
    flying = {flight.tail_number for flight in flights(STRETCH)}
    for change in tables.changes:
        if change.table == AIRCRAFT and change.key in flying:
            assert change.row is not None
            before = tables.aircraft[change.key]
            assert {**change.row, "operator": None} == {**before, "operator": None}


def test_the_tables_at_the_end_are_what_the_records_add_up_to(tables: Registry) -> None:
    found: dict[str, dict[str, object]] = {AIRCRAFT: {}, AIRLINES: {}}
    for report in [*tables.loaded(STRETCH.start), *tables.reports()]:
        assert report.key is not None
        key = report.key.decode()
        if report.value is None:
            found[report.topic].pop(key, None)
        else:
            found[report.topic][key] = json.loads(report.value)
    assert (found[AIRCRAFT], found[AIRLINES]) == tables.at_the_end()
