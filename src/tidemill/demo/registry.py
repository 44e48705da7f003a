"""Make the two tables of the demo, aircraft and airlines, and their changes.

The tables are changelogs: the last record of a key is its row, and a record without a value deletes
it. The first rows are those of the data set. The changes are invented, and the same in each run: an
airline gets a new name, one closes and opens again, one closes for good. Aircraft get other
operators, or are retired, and some of those return. An aircraft that flies within the stretch is
never retired, and only its operator changes. This module must not know brokers or Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tidemill.demo.events import Report
from tidemill.demo.flights import Flight, Stretch, raw_airlines, raw_planes

AIRCRAFT = "aircraft"
AIRLINES = "airlines"

Row = Mapping[str, Any]

# One in so many of the aircraft that fly within the stretch is sold, and of the others retired.
_SOLD_EVERY = 60
_RETIRED_EVERY = 30


@dataclass(frozen=True, slots=True)
class Change:
    """A row of a table from ``time`` on. The row ``None`` deletes it."""

    time: int
    table: str
    key: str
    row: Row | None


@dataclass(frozen=True)
class Registry:
    """Both tables during a stretch.

    Attributes:
        aircraft: the rows at the start of the stretch, by tail number.
        airlines: the rows at the start of the stretch, by carrier.
        changes: the changes during the stretch, in order.
    """

    aircraft: Mapping[str, Row]
    airlines: Mapping[str, Row]
    changes: tuple[Change, ...]

    def loaded(self, time: int) -> Iterator[Report]:
        """Yield a report of each first row."""
        for table, rows in ((AIRLINES, self.airlines), (AIRCRAFT, self.aircraft)):
            for key, row in rows.items():
                yield _report(Change(time, table, key, row))

    def reports(self) -> list[Report]:
        """Return a report of each change."""
        return [_report(change) for change in self.changes]

    def at_the_end(self) -> tuple[dict[str, Row], dict[str, Row]]:
        """Return the aircraft and the airlines after all changes."""
        tables = {AIRCRAFT: dict(self.aircraft), AIRLINES: dict(self.airlines)}
        for change in self.changes:
            if change.row is None:
                tables[change.table].pop(change.key, None)
            else:
                tables[change.table][change.key] = change.row
        return tables[AIRCRAFT], tables[AIRLINES]


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
        str(plane["tailnum"]): aircraft_row(plane, operators.get(str(plane["tailnum"])))
        for plane in raw_planes()
    }
    airlines = {
        str(row["carrier"]): {"carrier": row["carrier"], "name": row["name"]}
        for row in raw_airlines()
    }
    changes = [
        *_airlines(airlines, stretch),
        *_sold([row for tail, row in aircraft.items() if tail in operators], airlines, stretch),
        *_retired([row for tail, row in aircraft.items() if tail not in operators], stretch),
    ]
    changes.sort(key=lambda change: change.time)
    return Registry(aircraft, airlines, tuple(changes))


def aircraft_row(plane: Mapping[str, str | None], operator: str | None) -> Row:
    """Return a row of the table, made from a row of the data set."""
    return {
        "tail_number": plane["tailnum"],
        "operator": operator,
        "manufacturer": plane["manufacturer"],
        "model": plane["model"],
        "seats": None if plane["seats"] is None else int(plane["seats"]),
        "built": None if plane["year"] is None else int(plane["year"]),
    }


def _airlines(airlines: Mapping[str, Row], stretch: Stretch) -> Iterator[Change]:
    renamed = {"carrier": "FL", "name": "AirTran, a part of Southwest"}
    yield Change(_moment(stretch, 0.2), AIRLINES, "FL", renamed)
    yield Change(_moment(stretch, 0.4), AIRLINES, "B6", None)
    yield Change(_moment(stretch, 0.6), AIRLINES, "B6", airlines["B6"])
    yield Change(_moment(stretch, 0.8), AIRLINES, "YV", None)


def _sold(flying: list[Row], airlines: Mapping[str, Row], stretch: Stretch) -> Iterator[Change]:
    chosen, carriers = flying[::_SOLD_EVERY], sorted(airlines)
    for number, row in enumerate(chosen):
        buyer = carriers[number % len(carriers)]
        time = _moment(stretch, (number + 0.5) / len(chosen))
        yield Change(time, AIRCRAFT, row["tail_number"], {**row, "operator": buyer})


def _retired(parked: list[Row], stretch: Stretch) -> Iterator[Change]:
    chosen = parked[::_RETIRED_EVERY]
    for number, row in enumerate(chosen):
        tail, share = row["tail_number"], 0.7 * number / len(chosen)
        yield Change(_moment(stretch, share), AIRCRAFT, tail, None)
        if number % 3 == 0:
            back = {**row, "operator": "OO"}
            yield Change(_moment(stretch, share + 0.25), AIRCRAFT, tail, back)


def _moment(stretch: Stretch, share: float) -> int:
    return stretch.start + int((stretch.end - stretch.start) * share)


def _report(change: Change) -> Report:
    value = None if change.row is None else orjson.dumps(change.row)
    key = change.key.encode()
    return Report("registry", change.table, change.time, change.time, key, value)
