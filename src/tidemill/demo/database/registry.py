"""Make the rows of the demo's two tables, aircraft and airlines, and the edits of both.

The first rows are those of the data set. The edits are invented, and the same in each run: an
airline gets a new name, one closes and opens again, one closes for good. Aircraft are sold, get
other seats, are delivered, come from abroad and get a new registration (a new key), or are
retired, and some of those return. An aircraft that flies within the stretch is never deleted.
Each row has the time from which it is valid, in the column ``changed_at``, because the edits are
made in the time of the flights, in 2013. This module must not know databases, brokers or Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tidemill.demo.flights import Flight, Stretch, raw_rows

AIRCRAFT = "aircraft"
AIRLINES = "airlines"

KEYS = {AIRLINES: "carrier", AIRCRAFT: "tail_number"}
"""The primary key of each table."""
COLUMNS = {
    AIRLINES: ("carrier", "name"),
    AIRCRAFT: ("tail_number", "operator", "manufacturer", "model", "seats", "built"),
}
"""The columns of each table, besides ``CHANGED_AT``."""
CHANGED_AT = "changed_at"
"""The column with the time from which a row is valid, in Unix seconds."""

Row = Mapping[str, Any]
Kind = Literal["insert", "update", "delete"]

# One in so many of the aircraft that fly within the stretch, or of the others, has such an edit.
# These numbers and the starts of the slices below let no aircraft have two kinds of edits.
_SOLD_EVERY = 60
_REFITTED_EVERY = 12
_DELIVERED_EVERY = 50
_IMPORTED_EVERY = 48
_RETIRED_EVERY = 30


@dataclass(frozen=True, slots=True)
class Edit:
    """A statement that changes one row.

    Attributes:
        time: when it is made, in Unix seconds.
        table: the table.
        kind: what it does.
        key: the primary key of the row before it; of an insert, that of the new row.
        values: the columns that it sets. An update that sets the primary key changes it.
    """

    time: int
    table: str
    kind: Kind
    key: str
    values: Row

    @property
    def new_key(self) -> str:
        """The primary key of the row after an insert or an update."""
        return str(self.values.get(KEYS[self.table], self.key))


@dataclass(frozen=True)
class Registry:
    """Both tables during a stretch."""

    aircraft: Mapping[str, Row]
    airlines: Mapping[str, Row]
    edits: tuple[Edit, ...]

    def first_rows(self, table: str) -> Mapping[str, Row]:
        """Return the rows of a table at the start of the stretch, by key."""
        return self.aircraft if table == AIRCRAFT else self.airlines

    def at_the_end(self) -> tuple[dict[str, Row], dict[str, Row]]:
        """Return the aircraft and the airlines after all edits."""
        aircraft, airlines = (
            {key: versions[-1] for key, versions in self.versions(table).items()}
            for table in (AIRCRAFT, AIRLINES)
        )
        return _present(aircraft), _present(airlines)

    def versions(self, table: str) -> dict[str, list[Row | None]]:
        """Return the rows that each key of a table has one after the other; None: deleted."""
        found: dict[str, list[Row | None]] = {
            key: [row] for key, row in self.first_rows(table).items()
        }
        for edit in self.edits:
            if edit.table != table:
                continue
            before = found.setdefault(edit.key, [])
            row = before[-1] if before else None
            if edit.kind == "delete" or edit.new_key != edit.key:
                before.append(None)
            if edit.kind != "delete":
                after = {**(row or {}), **edit.values, CHANGED_AT: edit.time}
                found.setdefault(edit.new_key, []).append(after)
        return found


def registry(flights: Iterable[Flight], stretch: Stretch) -> Registry:
    """Return the registry of a stretch.

    Args:
        flights: the flights near the stretch. The first carrier that flies an aircraft is its
            operator. An aircraft that does not fly has none.
        stretch: the days.
    """
    operators: dict[str, str] = {}
    for flight in sorted(flights, key=lambda each: each.scheduled):
        if flight.tail_number is not None:
            operators.setdefault(flight.tail_number, flight.carrier)
    aircraft = {
        str(plane["tailnum"]): aircraft_row(plane, operators.get(str(plane["tailnum"])), stretch)
        for plane in raw_rows("planes")
    }
    airlines = {
        str(row["carrier"]): {**row, CHANGED_AT: stretch.start} for row in raw_rows("airlines")
    }
    flying = [row for tail, row in aircraft.items() if tail in operators]
    parked = [row for tail, row in aircraft.items() if tail not in operators]
    new = list(_delivered(flying, stretch))
    moved = list(_imported(flying, stretch))
    edits = [
        *_airlines(airlines, stretch),
        *_sold(flying, sorted(airlines), stretch),
        *_refitted(flying, stretch),
        *_retired(parked, stretch),
        *new,
        *moved,
    ]
    edits.sort(key=lambda edit: edit.time)
    for edit in (*new, *moved):
        row = aircraft.pop(edit.new_key)
        if edit.kind == "update":  # it comes under another registration
            aircraft[edit.key] = {**row, "tail_number": edit.key}
    return Registry(aircraft, airlines, tuple(edits))


def aircraft_row(plane: Mapping[str, str | None], operator: str | None, stretch: Stretch) -> Row:
    """Return a row of the table, made from a row of the data set."""
    return {
        "tail_number": plane["tailnum"],
        "operator": operator,
        "manufacturer": plane["manufacturer"],
        "model": plane["model"],
        "seats": None if plane["seats"] is None else int(plane["seats"]),
        "built": None if plane["year"] is None else int(plane["year"]),
        CHANGED_AT: stretch.start,
    }


def _airlines(airlines: Mapping[str, Row], stretch: Stretch) -> Iterator[Edit]:
    def edit(share: float, kind: Kind, carrier: str, /, **values: Any) -> Edit:
        return Edit(_moment(stretch, share), AIRLINES, kind, carrier, values)

    yield edit(0.2, "update", "FL", name="AirTran, a part of Southwest")
    yield edit(0.4, "delete", "B6")
    yield edit(0.6, "insert", "B6", **_without_time(airlines["B6"]))
    yield edit(0.8, "delete", "YV")


def _sold(flying: list[Row], carriers: list[str], stretch: Stretch) -> Iterator[Edit]:
    for number, (time, row) in enumerate(_spread(flying[::_SOLD_EVERY], stretch)):
        buyer = {"operator": carriers[number % len(carriers)]}
        yield Edit(time, AIRCRAFT, "update", row["tail_number"], buyer)


def _refitted(flying: list[Row], stretch: Stretch) -> Iterator[Edit]:
    """Yield two changes of the seats for each aircraft, so that it flies in three versions."""
    chosen = flying[1::_REFITTED_EVERY]
    for number, row in enumerate(chosen):
        first = 0.5 * (number + 0.5) / len(chosen)
        for share, seats in ((first, 10), (first + 0.4, 20)):
            values = {"seats": (row["seats"] or 0) + seats}
            yield Edit(_moment(stretch, share), AIRCRAFT, "update", row["tail_number"], values)


def _delivered(flying: list[Row], stretch: Stretch) -> Iterator[Edit]:
    """Yield the first registration of some aircraft: before it, the table does not have them."""
    for time, row in _spread(flying[2::_DELIVERED_EVERY], stretch):
        yield Edit(time, AIRCRAFT, "insert", row["tail_number"], _without_time(row))


def _imported(flying: list[Row], stretch: Stretch) -> Iterator[Edit]:
    """Yield new registrations of some aircraft, which change their primary key."""
    for time, row in _spread(flying[3::_IMPORTED_EVERY], stretch):
        tail = row["tail_number"]
        yield Edit(time, AIRCRAFT, "update", f"C-{tail}", {"tail_number": tail})


def _retired(parked: list[Row], stretch: Stretch) -> Iterator[Edit]:
    chosen = parked[::_RETIRED_EVERY]
    for number, row in enumerate(chosen):
        tail, share = row["tail_number"], 0.7 * number / len(chosen)
        yield Edit(_moment(stretch, share), AIRCRAFT, "delete", tail, {})
        if number % 3 == 0:
            back = {**_without_time(row), "operator": "OO"}
            yield Edit(_moment(stretch, share + 0.25), AIRCRAFT, "insert", tail, back)


def _spread(rows: list[Row], stretch: Stretch) -> Iterator[tuple[int, Row]]:
    """Yield rows with times that are spread evenly over the stretch."""
    for number, row in enumerate(rows):
        yield _moment(stretch, (number + 0.5) / len(rows)), row


def _without_time(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != CHANGED_AT}


def _present(rows: Mapping[str, Row | None]) -> dict[str, Row]:
    return {key: row for key, row in rows.items() if row is not None}


def _moment(stretch: Stretch, share: float) -> int:
    return stretch.start + int((stretch.end - stretch.start) * share)
