"""The self-check compares the database with its edits, and what follows it with the database."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.demo.database.test_tables import REGISTRY, aircraft
from tidemill.demo import check_all
from tidemill.demo.check_all import Left, documents_of
from tidemill.demo.database.registry import AIRCRAFT, AIRLINES, Row
from tidemill.spark import TantivySink
from tidemill.spark.sinks.database.rows import Column, Layout

END = {
    table: list(rows.values())
    for table, rows in zip((AIRCRAFT, AIRLINES), REGISTRY.at_the_end(), strict=True)
}
LAYOUT = Layout(
    (
        Column("tail_number", "string"),
        Column("operator", "string"),
        Column("manufacturer", "string"),
        Column("model", "string"),
        Column("seats", "int"),
        Column("built", "int"),
        Column("changed_at", "timestamp"),
    ),
    ("tail_number",),
    deletes=True,
    versioned=True,
)


def bad(database: Any = END, captured: Any = END, index: Path | None = None) -> set[str]:
    left = Left(database, captured, index)
    return {each.query for each in check_all._tables(REGISTRY, left) if not each.ok}


def changed(**values: Any) -> dict[str, list[Row]]:
    first, *others = END[AIRCRAFT]
    return {**END, AIRCRAFT: [{**first, **values}, *others]}


def test_a_database_and_topics_that_agree_with_the_edits_are_good() -> None:
    assert bad() == set()


@pytest.mark.parametrize(
    "other",
    [
        changed(seats=1),
        changed(changed_at=5),
        {**END, AIRCRAFT: END[AIRCRAFT][1:]},
        {**END, AIRCRAFT: [*END[AIRCRAFT], aircraft("N9")]},
    ],
)
def test_a_row_that_differs_is_noticed_where_it_differs(other: Any) -> None:
    assert bad(captured=other) == {"aircraft: topic"}
    assert bad(database=other, captured=other) == {"aircraft: database"}
    assert bad(database=other) == {"aircraft: database", "aircraft: topic"}


def test_the_index_is_compared_with_the_database(tmp_path: Path) -> None:
    pytest.importorskip("tantivy")
    write(tmp_path, [(row, False) for row in END[AIRCRAFT]], version=1)
    assert bad(index=tmp_path) == set()
    write(tmp_path, [(END[AIRCRAFT][0], True)], version=2)
    assert len(list(documents_of(tmp_path))) == len(END[AIRCRAFT]) - 1
    assert bad(index=tmp_path) == {"search"}


def write(folder: Path, rows: list[tuple[Row, bool]], version: int) -> None:
    """Write rows, or their deletions, as the pipeline's sink does."""
    columns: dict[str, list[Any]] = {
        column.name: [row[column.name] for row, _ in rows] for column in LAYOUT.columns
    }
    columns["changed_at"] = [datetime.fromtimestamp(at, UTC) for at in columns["changed_at"]]
    table = pa.table(
        {
            **columns,
            "_deleted": [is_deleted for _, is_deleted in rows],
            "_version": pa.array([version] * len(rows), pa.int64()),
        }
    )
    store = TantivySink("tail_number", folder, text=("model",)).store()
    try:
        store.apply(table, LAYOUT, version)
    finally:
        store.close()
