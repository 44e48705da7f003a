"""The statements of the demo change the rows that they name, and are read as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.demo.database.registry import AIRCRAFT, AIRLINES, CHANGED_AT, Edit, Registry, Row
from tidemill.demo.database.sqlite import SqliteDatabase
from tidemill.demo.database.tables import DatabaseError, Tables, seconds


def aircraft(tail: str, seats: int | None = 150, changed_at: int = 1_362_546_000) -> Row:
    return {
        "tail_number": tail,
        "operator": "B6",
        "manufacturer": "AIRBUS",
        "model": "A320",
        "seats": seats,
        "built": None,
        CHANGED_AT: changed_at,
    }


AIRLINE = {"carrier": "B6", "name": "JetBlue", CHANGED_AT: 1_362_546_000}
EDITS = (
    Edit(1_362_546_001, AIRCRAFT, "update", "N1", {"seats": 160}),
    Edit(1_362_546_002, AIRCRAFT, "update", "N2", {"tail_number": "N3"}),
    Edit(1_362_546_003, AIRCRAFT, "delete", "N1", {}),
    Edit(
        1_362_546_004,
        AIRCRAFT,
        "insert",
        "N4",
        {name: value for name, value in aircraft("N4").items() if name != CHANGED_AT},
    ),
    Edit(1_362_546_005, AIRLINES, "update", "B6", {"name": 'it\'s "blue"; --'}),
)
REGISTRY = Registry(
    {"N1": aircraft("N1"), "N2": aircraft("N2", None)},
    {"B6": AIRLINE},
    EDITS,
)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    database = SqliteDatabase(tmp_path / "registry.db")
    database.prepare(reset=False)
    tables = database.open()
    tables.create(REGISTRY)
    return tables


def by_key(tables: Tables) -> tuple[dict[str, Row], dict[str, Row]]:
    return (
        {row["tail_number"]: row for row in tables.rows(AIRCRAFT)},
        {row["carrier"]: row for row in tables.rows(AIRLINES)},
    )


def test_the_rows_are_those_of_the_registry_before_and_after_its_edits(tables: Tables) -> None:
    assert by_key(tables) == (REGISTRY.aircraft, REGISTRY.airlines)
    for edit in EDITS:
        tables.make(edit)
    assert by_key(tables) == REGISTRY.at_the_end()
    assert set(by_key(tables)[0]) == {"N3", "N4"}
    tables.close()


@pytest.mark.parametrize("kind", ["update", "delete"])
def test_an_edit_without_its_row_is_an_error(tables: Tables, kind: str) -> None:
    values = {"seats": 1} if kind == "update" else {}
    with pytest.raises(DatabaseError, match=f"{kind} of aircraft N9 changed 0 rows"):
        tables.make(Edit(1, AIRCRAFT, kind, "N9", values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "time", ["2013-03-06T05:00:00Z", "2013-03-06T00:00:00-05:00", "2013-03-06 05:00:00"]
)
def test_times_are_read_in_each_form(time: str) -> None:
    assert seconds(time) == 1_362_546_000
