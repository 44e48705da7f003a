"""What a statement reads, from the tree that DuckDB makes of it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("duckdb", minversion="1.5", reason="the extra tidemill[sql] needs it")


from tidemill.sql.database import open_database, tree_of, value_of
from tidemill.sql.statement import Needed, needed, uses


def parse(statement: str) -> tuple[Any, Any]:
    database = open_database("100MB", 1)
    return database, uses(tree_of(database, statement))


def places(statement: str, table: str = "t") -> list[Needed]:
    database, found = parse(statement)
    return [
        needed(bounds, lambda node, column: value_of(database, node, column))
        for bounds in found.tables[table]
    ]


ALL = Needed()


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("_offset >= 10", Needed(first=10)),
        ("_offset > 10 AND _offset <= 20", Needed(first=11, end=21)),
        ("10 < _offset AND 20 > _offset", Needed(first=11, end=20)),
        ("_offset = 7", Needed(first=7, end=8)),
        ("_offset BETWEEN 3 AND 5", Needed(first=3, end=6)),
        ("_offset IN (5, 2, 9)", Needed(first=2, end=10)),
        ("_offset >= 2 + 3", Needed(first=5)),
        ("_offset >= 0", Needed(first=0)),
        ("_offset >= -4", Needed(first=0)),
        ("_partition = 1", Needed(partitions=frozenset({1}))),
        ("_partition IN (1, 2) AND _partition = 2", Needed(partitions=frozenset({2}))),
        ("_timestamp >= TIMESTAMP '1970-01-01 00:00:02'", Needed(since_ms=2000)),
        ("_timestamp > epoch_ms(5000)", Needed(since_ms=5000)),
        ("T._offset > 1", Needed(first=2)),
        # Not bounds: later records can have earlier times, and these conditions keep all records.
        ("_timestamp < TIMESTAMP '1970-01-01 00:00:02'", ALL),
        ("_offset > 10 OR n = 1", ALL),
        ("NOT _offset > 10", ALL),
        ("_offset > n", ALL),
        ("_offset + 1 > 10", ALL),
        ("_partition > 1", ALL),
        ("_offset > (SELECT 3)", ALL),
        ("_offset > 10 * random()", ALL),
        ("_offset > ?", ALL),
        ("_offset > 'x'::BIGINT", ALL),
        ("_offset > 1.6", ALL),
        ("_offset < 2.5", ALL),
        ("_partition = 0.6", ALL),
    ],
)
def test_a_condition_bounds_what_is_read_or_nothing(where: str, expected: Needed) -> None:
    assert places(f"SELECT * FROM t WHERE {where}") == [expected]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM t TABLESAMPLE reservoir(3) WHERE _offset > 10",
        "SELECT * FROM t POSITIONAL JOIN u WHERE t._offset > 10",
        "SELECT * FROM u ASOF JOIN t ON u.n >= t.n WHERE t._offset > 10",
        "SELECT * FROM t JOIN u USING (n) WHERE _offset > 10",
        "SELECT count(*) FROM t HAVING count(*) > 10",
        "SELECT * FROM t QUALIFY row_number() OVER () > 10",
        "SELECT * FROM u WHERE _offset > 10 AND n IN (SELECT n FROM t)",
        "SELECT * FROM (SELECT * FROM t) WHERE _offset > 10",
        "SELECT * FROM t AS o(_offset) WHERE _offset > 10",
        "SELECT * FROM t AS o(_offset) WHERE o._offset > 10",
    ],
)
def test_where_a_condition_would_change_the_result_nothing_is_left_out(statement: str) -> None:
    assert places(statement) == [ALL]


def test_each_place_of_a_table_has_its_own_bounds() -> None:
    found = places(
        "SELECT * FROM t a JOIN t b USING (n) LEFT JOIN u ON true "
        "WHERE a._offset > 5 AND b._partition = 1 UNION ALL SELECT * FROM t WHERE _offset < 3"
    )
    assert found == [Needed(first=6), Needed(partitions=frozenset({1})), Needed(end=3)]


def test_names_that_are_not_topics_are_left_out() -> None:
    _, found = parse('WITH x AS (SELECT 1) SELECT * FROM x, t, "a.b-c", range(3), (SELECT 1 AS y)')
    assert set(found.tables) == {"t", "a.b-c"}


def test_the_columns_that_are_used_are_found_everywhere() -> None:
    _, found = parse(
        "SELECT a, o.b.c, sum(D) FILTER (e > 1) OVER (PARTITION BY f ORDER BY g) FROM t AS o "
        "JOIN u USING (h) WHERE i IN (SELECT j FROM v) GROUP BY ALL HAVING max(k) > 1 ORDER BY l"
    )
    assert not found.all_columns
    assert set("abcdefghijkl") <= found.names


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM t",
        "FROM t",
        "SELECT t.* FROM t",
        "SELECT COLUMNS('a.*') FROM t",
        "SELECT * EXCLUDE a FROM t",
        "SELECT n FROM t NATURAL JOIN u",
        "DESCRIBE t",
        "SUMMARIZE t",
        "SELECT x FROM t AS o(x)",
        "SELECT t FROM t",
        "SELECT to_json(O) FROM t o",
        "SELECT (SELECT unnest(o)) FROM t AS o",
        "SELECT w FROM tumble(t, seen, INTERVAL 1 MINUTE) w",
    ],
)
def test_statements_that_need_all_columns_are_known(statement: str) -> None:
    _, found = parse(statement)
    assert found.all_columns


def test_the_topic_of_a_window_is_not_its_row() -> None:
    _, found = parse("SELECT window_start, n FROM tumble(t, seen, INTERVAL 1 MINUTE)")
    assert not found.all_columns
    assert {"seen", "n"} <= found.names


def test_counting_needs_no_column() -> None:
    _, found = parse("SELECT count(*) FROM t")
    assert not found.all_columns
    assert found.names == set()
