"""The tables change during a stretch: each kind of edit occurs, and no two disagree."""

from __future__ import annotations

from collections import Counter
from datetime import date

import pytest

from tests.demo.support import skip_without_data_set
from tidemill.demo.database.registry import AIRCRAFT, AIRLINES, CHANGED_AT, Edit, Registry, registry
from tidemill.demo.flights import Stretch, flights

STRETCH = Stretch(date(2013, 3, 9), 2)


@pytest.fixture(scope="module")
def tables() -> Registry:
    skip_without_data_set()
    return registry(flights(STRETCH), STRETCH)


def test_all_edits_happen_within_the_stretch_and_in_order(tables: Registry) -> None:
    times = [edit.time for edit in tables.edits]
    assert times == sorted(times)
    assert all(time in STRETCH for time in times)


def test_the_tables_see_each_kind_of_edit(tables: Registry) -> None:
    kinds = Counter(
        (edit.table, "key" if edit.new_key != edit.key else edit.kind) for edit in tables.edits
    )
    assert {kind for kind, count in kinds.items() if count} == {
        (AIRLINES, "update"),
        (AIRLINES, "delete"),
        (AIRLINES, "insert"),
        (AIRCRAFT, "update"),
        (AIRCRAFT, "delete"),
        (AIRCRAFT, "insert"),
        (AIRCRAFT, "key"),
    }


def test_each_edit_finds_its_row(tables: Registry) -> None:
    there = {(table, key) for table in (AIRCRAFT, AIRLINES) for key in tables.first_rows(table)}
    for edit in tables.edits:
        assert ((edit.table, edit.key) in there) == (edit.kind != "insert"), edit
        there.discard((edit.table, edit.key))
        if edit.kind != "delete":
            assert (edit.table, edit.new_key) not in there, edit
            there.add((edit.table, edit.new_key))
    aircraft, airlines = tables.at_the_end()
    assert {(AIRCRAFT, key) for key in aircraft} | {(AIRLINES, key) for key in airlines} == there


def test_an_aircraft_that_flies_is_never_deleted(tables: Registry) -> None:
    flying = {flight.tail_number for flight in flights(STRETCH)}
    gone = {edit.key for edit in tables.edits if edit.table == AIRCRAFT and edit.kind == "delete"}
    abroad = {edit.key for edit in tables.edits if edit.new_key != edit.key}
    assert gone
    assert abroad
    assert not (gone | abroad) & flying


def test_aircraft_fly_before_and_after_their_edits(tables: Registry) -> None:
    """Else a join with the present row, or with the first one, would have the same result."""
    departed: dict[str, list[int]] = {}
    for flight in flights(STRETCH):
        if flight.departed is not None and flight.tail_number is not None:
            departed.setdefault(flight.tail_number, []).append(flight.departed)
    seen = Counter(
        (edit.kind, edit.new_key != edit.key, time >= edit.time)
        for edit in tables.edits
        if edit.table == AIRCRAFT
        for time in departed.get(edit.new_key, ())
    )
    for kind in (("update", False), ("update", True), ("insert", False)):
        assert seen[*kind, True] > 2, kind
        assert seen[*kind, False] > 2, kind


def test_versions_follow_each_other_and_a_new_key_ends_the_old_one() -> None:
    rows = {"N1": {"tail_number": "N1", "seats": 1, CHANGED_AT: 0}}
    edits = (
        Edit(1, AIRCRAFT, "update", "N1", {"seats": 2}),
        Edit(2, AIRCRAFT, "update", "N1", {"tail_number": "N2"}),
        Edit(3, AIRCRAFT, "delete", "N2", {}),
        Edit(4, AIRCRAFT, "insert", "N1", {"tail_number": "N1", "seats": 3}),
    )
    tables = Registry(rows, {}, edits)
    assert tables.versions(AIRCRAFT) == {
        "N1": [
            rows["N1"],
            {"tail_number": "N1", "seats": 2, CHANGED_AT: 1},
            None,
            {"tail_number": "N1", "seats": 3, CHANGED_AT: 4},
        ],
        "N2": [{"tail_number": "N2", "seats": 2, CHANGED_AT: 2}, None],
    }
    assert tables.at_the_end()[0] == {"N1": {"tail_number": "N1", "seats": 3, CHANGED_AT: 4}}
