"""Compare everything that a run has left with what is expected.

The queries' results are compared with those that ``check_results`` computes from the data set. The
database is compared with the list of edits, and what follows it with the database: the topics of
the captured tables, replayed by key, and the search index. This module must not know brokers or
Spark.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tidemill.demo import check_results
from tidemill.demo.check import Check, Record, compare
from tidemill.demo.database.registry import AIRCRAFT, AIRLINES, KEYS, Registry, Row
from tidemill.demo.database.tables import seconds
from tidemill.demo.events import Report
from tidemill.demo.flights import Stretch
from tidemill.demo.results import Results

_KEY = "_key"
_OF_INDEX = (_KEY, "_version")
"""Fields that the index has for itself."""


@dataclass(frozen=True)
class Left:
    """The tables and followers that a run has left, besides the results of the queries."""

    database: Mapping[str, Iterable[Row]]
    captured: Mapping[str, Iterable[Row]]
    index: Path | None


def check_all(
    stretch: Stretch,
    registry: Registry,
    reports: Sequence[Report],
    results: Results,
    left: Left,
) -> list[Check]:
    """Return the comparison of each query, table and follower."""
    facts = check_results.Facts(stretch, check_results.legs(stretch), registry)
    found = [
        compare(query, expected(facts), results.records[query], identity)
        for query, (expected, identity) in check_results.EXPECTED.items()
    ]
    found += _tables(registry, left)
    for topic, values in results.unreadable.items():
        cut_short = [
            report.value
            for report in reports
            if report.kind == "cut short" and f"{report.topic}.dlq" == topic
        ]
        found.append(compare(topic, _texts(cut_short), _texts(values), ("value",)))
    return found


def _tables(registry: Registry, left: Left) -> Iterator[Check]:
    edited = dict(zip((AIRCRAFT, AIRLINES), registry.at_the_end(), strict=True))
    for table in (AIRCRAFT, AIRLINES):
        stored = list(_records(left.database[table]))
        identity = (KEYS[table],)
        yield compare(f"{table}: database", _records(edited[table].values()), stored, identity)
        yield compare(f"{table}: topic", stored, _records(left.captured[table]), identity)
    if left.index is not None:
        stored = list(_records(left.database[AIRCRAFT]))
        yield compare("search", stored, documents_of(left.index), (KEYS[AIRCRAFT],))


def _records(rows: Iterable[Row]) -> Iterator[Record]:
    return (check_results.record_of(row) for row in rows)


def _texts(values: Iterable[bytes]) -> list[Record]:
    return [{"value": value.decode(errors="replace")} for value in values]


# --- the search index, which the package tantivy keeps in a folder --------------------------------


def index_can_be_kept() -> bool:
    """Return whether the package of the index is installed."""
    return importlib.util.find_spec("tantivy") is not None


def documents_of(folder: Path) -> Iterator[Record]:
    """Yield the documents of an index, as results have them; not those that were deleted."""
    import tantivy

    index = tantivy.Index.open(str(folder / "current"))
    searcher = index.searcher()
    found = searcher.search(tantivy.Query.all_query(), limit=max(1, searcher.num_docs)).hits
    for _, address in found:
        fields: dict[str, Any] = searcher.doc(address).to_dict()
        if _KEY in fields:
            yield {
                name: _value(values[0])
                for name, values in fields.items()
                if name not in _OF_INDEX and values
            }


def _value(value: Any) -> Any:
    return check_results.text(seconds(value)) if isinstance(value, datetime) else value
