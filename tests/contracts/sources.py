"""The contract of a source of change data capture. Each source's tests subclass ``SourceContract``.

A subclass gives a ``SourceHarness``: a database with an empty schema, and sources on it. The
statements of the suite are common to all databases.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import pytest

from tidemill.connect.cdc.contract import NO_KEY, Batch, Change, Position, Row, Source, Table
from tidemill.connect.cdc.errors import PositionLostError

TIMEOUT_S = 90.0


class SourceHarness(Protocol):
    """A database for the suite."""

    def source(self, name: str = "contract", **capture: Any) -> Source:
        """Return a source that is not started; the harness closes it at the end.

        Args:
            name: the source's name.
            capture: fields of ``Capture`` that differ from the defaults.
        """
        ...

    def execute(self, *statements: str) -> None:
        """Execute statements in one transaction of a connection of its own, and commit."""
        ...

    def roll_back(self, *statements: str) -> None:
        """Execute statements in one transaction, and roll it back."""
        ...


def changes_until(source: Source, count: int) -> tuple[list[Change], Position | None]:
    """Poll until so many changes have come, and return them with the last position."""
    found: list[Change] = []
    position: Position | None = None
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} changes: {found}"
        batch = source.poll(0.2)
        if batch is not None:
            found += batch.changes
            position = batch.position
    return found, position


def quiet(source: Source, seconds: float = 0.3) -> list[Change]:
    """Return the changes that come although none should."""
    deadline = time.monotonic() + seconds
    found: list[Change] = []
    while time.monotonic() < deadline:
        batch = source.poll(0.05)
        found += batch.changes if batch is not None else []
    return found


def next_batch(source: Source) -> Batch:
    """Return the next batch."""
    deadline = time.monotonic() + TIMEOUT_S
    while (batch := source.poll(0.2)) is None:
        assert time.monotonic() < deadline
    return batch


def table_named(source: Source, name: str) -> Table:
    return next(each for each in source.tables() if each.name == name)


def brief(changes: Sequence[Change]) -> list[tuple[str, Row | None]]:
    return [(each.op, each.before if each.op == "d" else each.after) for each in changes]


class SourceContract:
    """Inherit it, and define the fixture ``harness``."""

    @pytest.fixture
    def harness(self) -> SourceHarness:
        raise NotImplementedError

    @pytest.fixture
    def source(self, harness: SourceHarness) -> Source:
        """A started source on a table ``t`` with three rows."""
        harness.execute(
            "CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, note TEXT)",
            "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        )
        source = harness.source()
        source.start(None)
        return source

    def test_a_table_without_a_key_that_is_made_later_is_left_out_and_reported(
        self, harness: SourceHarness, source: Source
    ) -> None:
        assert source.left_out() == {}
        harness.execute("CREATE TABLE later (v INTEGER)")
        harness.execute("INSERT INTO later VALUES (1)", "INSERT INTO t VALUES (4, 'd')")
        (change,), position = changes_until(source, 1)
        assert change.table is not None
        assert change.table.name == "t"
        schema = change.table.schema
        assert source.left_out() == {f"{schema}.later": NO_KEY}
        assert [each.name for each in source.tables()] == ["t"]
        source.close()
        again = harness.source()
        again.start(position)  # it stops nobody
        harness.execute("INSERT INTO t VALUES (5, 'e')")
        ((change,), _) = changes_until(again, 1)
        assert change.after == {"id": 5, "note": "e"}
        harness.execute("DROP TABLE later")
        assert again.left_out() == {}

    def test_a_database_that_fits_has_no_errors(
        self, harness: SourceHarness, source: Source
    ) -> None:
        assert [each for each in source.check() if each.severity == "error"] == []
        (table,) = source.tables()
        assert table.key == ("id",)
        assert [(each.name, each.kind) for each in table.columns] == [
            ("id", "int"),
            ("note", "text"),
        ]

    def test_changes_come_in_commit_order(self, harness: SourceHarness, source: Source) -> None:
        before_ms = time.time() * 1000
        harness.execute("INSERT INTO t VALUES (4, 'd')", "UPDATE t SET note = 'x' WHERE id = 4")
        harness.execute("DELETE FROM t WHERE id = 1")
        found, _ = changes_until(source, 3)
        assert brief(found) == [
            ("c", {"id": 4, "note": "d"}),
            ("u", {"id": 4, "note": "x"}),
            ("d", found[2].before),
        ]
        assert found[2].before is not None
        assert found[2].before["id"] == 1
        assert all(before_ms - 2_000 < each.ts_ms < time.time() * 1000 + 2_000 for each in found)

    def test_what_is_rolled_back_never_comes(self, harness: SourceHarness, source: Source) -> None:
        harness.roll_back("INSERT INTO t VALUES (4, 'd')", "DELETE FROM t")
        harness.execute(
            "INSERT INTO t VALUES (5, 'e')",
            "SAVEPOINT s",
            "INSERT INTO t VALUES (6, 'f')",
            "ROLLBACK TO SAVEPOINT s",
            "INSERT INTO t VALUES (7, 'g')",
        )
        found, _ = changes_until(source, 2)
        assert [row and row["id"] for _, row in brief(found)] == [5, 7]
        assert quiet(source) == []

    def test_an_update_of_the_key_has_the_old_and_the_new_key(
        self, harness: SourceHarness, source: Source
    ) -> None:
        harness.execute("UPDATE t SET id = 9 WHERE id = 3")
        (change,), _ = changes_until(source, 1)
        assert change.op == "u"
        assert change.before is not None
        assert change.before["id"] == 3
        assert change.after == {"id": 9, "note": "c"}

    def test_a_new_source_continues_at_a_position(
        self, harness: SourceHarness, source: Source
    ) -> None:
        harness.execute("INSERT INTO t VALUES (4, 'd')")
        _, position = changes_until(source, 1)
        assert position is not None
        source.confirm(position)
        harness.execute("INSERT INTO t VALUES (5, 'e')")  # read, and not confirmed
        changes_until(source, 1)
        source.close()
        harness.execute("INSERT INTO t VALUES (6, 'f')")
        again = harness.source()
        again.start(position)
        found, last = changes_until(again, 2)
        assert [row and row["id"] for _, row in brief(found)] == [5, 6]
        assert quiet(again) == []
        assert last is not None
        assert again.reached(last, position)
        assert not again.reached(position, last)
        assert again.reached(last, last)

    def test_a_table_is_found_by_its_name(self, harness: SourceHarness, source: Source) -> None:
        table = table_named(source, "t")
        found = source.find_table(table.schema, "t")
        assert found is not None
        assert found.looks_like(table)
        assert source.find_table(table.schema, "nothing") is None
        harness.execute("DROP TABLE t")
        quiet(source)
        assert source.find_table(table.schema, "t") is None

    def test_chunks_have_all_rows_in_key_order(
        self, harness: SourceHarness, source: Source
    ) -> None:
        table = table_named(source, "t")
        first = source.read_chunk(table, None, 2)
        assert [row["id"] for row in first.rows] == [1, 2]
        assert first.last_key is not None
        second = source.read_chunk(table, first.last_key, 2)
        assert [row["id"] for row in second.rows] == [3]
        assert second.last_key is None
        assert source.estimate(table) >= 0

    def test_a_chunk_has_all_that_was_polled_and_nothing_above_high(
        self, harness: SourceHarness, source: Source
    ) -> None:
        table = table_named(source, "t")
        for number in range(10, 20):
            harness.execute(f"INSERT INTO t VALUES ({number}, 'n')")
            _, position = changes_until(source, 1)
            chunk = source.read_chunk(table, None, 100)
            assert number in {row["id"] for row in chunk.rows}
            harness.execute(f"UPDATE t SET note = 'later' WHERE id = {number}")
            (change,), position = changes_until(source, 1)
            assert position is not None
            # The row was read before the update, so the stream passes high with it at the latest.
            assert source.reached(position, chunk.high)
            assert change.after == {"id": number, "note": "later"}

    def test_a_consistent_read_joins_the_stream_without_a_gap(self, harness: SourceHarness) -> None:
        harness.execute("CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, note TEXT)")
        harness.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        source = harness.source()
        source.start(None)
        with source.read_consistent(source.tables()) as read:
            harness.execute("INSERT INTO t VALUES (3, 'c')")
            rows = [row["id"] for _, part in read.rows for row in part]
        found, _ = changes_until(source, 1) if 3 not in rows else ([], None)
        assert sorted([*rows, *(each.after["id"] for each in found if each.after)]) == [1, 2, 3]
        assert quiet(source) == []

    def test_lag_is_zero_when_all_is_confirmed(
        self, harness: SourceHarness, source: Source
    ) -> None:
        harness.execute("INSERT INTO t VALUES (4, 'd')")
        _, position = changes_until(source, 1)
        assert position is not None
        assert (source.lag().ms or 0) >= 0
        source.confirm(position)
        quiet(source)
        assert source.lag().changes in (0, None)

    def test_drop_removes_everything_and_a_position_is_lost(
        self, harness: SourceHarness, source: Source
    ) -> None:
        harness.execute("INSERT INTO t VALUES (4, 'd')")
        _, position = changes_until(source, 1)
        source.drop()
        source.drop()
        source.close()
        harness.execute("INSERT INTO t VALUES (5, 'e')")
        again = harness.source()
        with pytest.raises(PositionLostError) as lost:
            again.start(position)
        assert lost.value.hint

    def test_a_column_that_is_added_comes_with_the_next_changes(
        self, harness: SourceHarness, source: Source
    ) -> None:
        harness.execute("ALTER TABLE t ADD COLUMN more TEXT")
        quiet(source, 0.1)
        harness.execute("INSERT INTO t VALUES (4, 'd', 'm')")
        (change,), _ = changes_until(source, 1)
        assert change.after == {"id": 4, "note": "d", "more": "m"}
        assert change.table is not None
        assert [each.name for each in change.table.columns] == ["id", "note", "more"]
