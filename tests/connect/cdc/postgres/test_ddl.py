"""Changes of tables are followed, and tables whose topics can lack something are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.connect.cdc.postgres.reading import Reading

Sql = psycopg.Connection[Any]
Make = Callable[..., Reading]


@pytest.fixture
def read(sql: Sql, started: Make) -> Reading:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    sql.execute("INSERT INTO t VALUES (1, 'x')")
    return started()


def news(read: Reading) -> tuple[list[list[str]], list[str]]:
    """Return the columns of changed tables, and the tables to read again."""
    schemas = [[c.name for c in each.columns] for batch in read.batches for each in batch.schemas]
    return schemas, [each for batch in read.batches for each in batch.resync]


def test_an_unchanged_table_has_no_news(sql: Sql, read: Reading) -> None:
    sql.execute("INSERT INTO t VALUES (2, 'y')")
    sql.execute("ANALYZE t")
    sql.execute("INSERT INTO t VALUES (3, 'z')")
    read.changes(2)
    assert news(read) == ([], [])


@pytest.mark.parametrize(
    ("statement", "columns", "is_read_again"),
    [
        ("ALTER TABLE t ADD COLUMN b int", ["id", "a", "b"], False),
        ("ALTER TABLE t ADD COLUMN b int DEFAULT 7", ["id", "a", "b"], True),
        ("ALTER TABLE t DROP COLUMN a", ["id"], False),
        ("ALTER TABLE t RENAME COLUMN a TO b", ["id", "b"], True),
        ("ALTER TABLE t ALTER COLUMN a TYPE bytea USING a::bytea", ["id", "a"], True),
    ],
)
def test_a_changed_column_is_followed(
    sql: Sql, read: Reading, statement: str, columns: list[str], is_read_again: bool
) -> None:
    sql.execute("INSERT INTO t VALUES (2, 'y')")
    with sql.transaction():
        sql.execute("INSERT INTO t VALUES (3, 'y')")
        sql.execute(statement.encode())
        sql.execute("INSERT INTO t (id) VALUES (4)")
    found = read.changes(3)
    assert list(found[1].after or {}) == ["id", "a"]
    assert list(found[2].after or {}) == columns
    assert news(read) == ([columns], ["public.t"] if is_read_again else [])
    (table,) = read.source.tables()
    rows = read.source.read_chunk(table, None, 10).rows
    assert found[2].after in rows


def test_a_table_that_is_dropped_and_created_again_is_read_again(
    sql: Sql, read: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.connect.cdc.postgres.source._REFRESH_S", 0.0)
    sql.execute("INSERT INTO t VALUES (2, 'y')")
    read.changes(1)
    sql.execute("DROP TABLE t")
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, other int)")
    sql.execute("INSERT INTO t VALUES (5, 5)")
    for _ in range(3):
        read.source._due["refresh"] = 0.0
        batch = read.source.poll(0.1)
        if batch is not None:
            read.take(batch)
    assert "public.t" in news(read)[1]
    sql.execute("INSERT INTO t VALUES (6, 6)")
    assert read.changes(1)[0].after == {"id": 6, "other": 6}


def test_a_new_table_is_added_and_read(sql: Sql, read: Reading) -> None:
    sql.execute("CREATE TABLE fresh (id int PRIMARY KEY)")
    sql.execute("INSERT INTO fresh VALUES (1)")
    batch = read.look()
    assert batch.resync == ["public.fresh"]
    assert [each.id for each in batch.schemas] == ["public.fresh"]
    sql.execute("INSERT INTO fresh VALUES (2)")
    assert read.changes(1)[0].after == {"id": 2}


def test_a_new_table_that_is_being_written_is_added_later(
    sql: Sql, dsn: str, read: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.connect.cdc.postgres.publication._LOCK_TIMEOUT_MS", 20)
    sql.execute("CREATE TABLE fresh (id int PRIMARY KEY)")
    with psycopg.connect(dsn) as other:
        other.execute("INSERT INTO fresh VALUES (1)")
        read.source._due["refresh"] = 0.0
        batch = read.source.poll(0)
        assert batch is None or batch.resync == []
    assert read.look().resync == ["public.fresh"]


def test_a_renamed_table_is_read_again_under_its_new_name(sql: Sql, read: Reading) -> None:
    sql.execute("INSERT INTO t VALUES (2, 'y')")
    sql.execute("ALTER TABLE t RENAME TO n")
    sql.execute("INSERT INTO n VALUES (3, 'z')")
    found = read.changes(2)
    assert [each.table.id for each in found if each.table] == ["public.t", "public.n"]
    assert news(read) == ([["id", "a"]], ["public.n"])


def test_a_changed_primary_key_is_followed(sql: Sql, read: Reading) -> None:
    sql.execute("INSERT INTO t VALUES (2, 'y')")
    read.changes(1)
    sql.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a)")
    sql.execute("INSERT INTO t VALUES (3, 'z')")
    (found,) = read.changes(1)
    assert found.table is not None
    assert found.table.key == ("a",)
    assert news(read) == ([["id", "a"]], ["public.t"])
    sql.execute("INSERT INTO t VALUES (4, 'aa')")
    read.changes(1)
    assert news(read)[1] == ["public.t"]


def test_a_changed_primary_key_without_a_row_after_it_is_noticed(sql: Sql, started: Make) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL)")
    read = started()
    sql.execute("INSERT INTO t VALUES (2, 3)")
    read.changes(1)
    sql.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a)")
    batch = read.look()
    assert batch.resync == ["public.t"]
    assert [each.key for each in batch.schemas] == [("a",)]


@pytest.mark.parametrize("is_running", [True, False])
def test_a_change_without_a_row_after_it_is_noticed(
    sql: Sql, read: Reading, is_running: bool
) -> None:
    """Also if it happens while no source runs."""
    sql.execute("INSERT INTO t VALUES (2, 'y')")
    read.changes(1)
    if not is_running:
        read.source.close()
    sql.execute("ALTER TABLE t ADD COLUMN b int DEFAULT 7")
    if not is_running:
        read = read.again()
    batch = read.look()
    assert batch.resync == ["public.t"]
    sql.execute("INSERT INTO t VALUES (3, 'z')")
    read.changes(1)
    assert read.batches[-1].resync == []
    read = read.again(batch.position)
    assert read.changes(1)[0].after == {"id": 3, "a": "z", "b": 7}
    assert news(read)[1] == []
    read.source.close()


def test_changed_tables_are_named_again_if_a_crash_comes_before_the_first_batch(
    sql: Sql, read: Reading
) -> None:
    """The worker can store the position of the start before it has polled."""
    sql.execute("INSERT INTO t VALUES (2, 'y')")
    read.changes(1)
    read.source.close()
    sql.execute("ALTER TABLE t ADD COLUMN b int DEFAULT 7")
    read = read.again()
    read = read.again(read.position)
    batch = read.source.poll(60)
    assert batch is not None
    assert batch.resync == ["public.t"]
    read.remember(batch)
    read = read.again(batch.position)
    sql.execute("INSERT INTO t VALUES (3, 'z')")
    read.changes(1)
    assert news(read)[1] == []
    read.source.close()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_rows_from_before_a_change_that_was_announced_do_not_announce_it_again(
    sql: Sql, read: Reading, is_restarted: bool
) -> None:
    """After a pause, the stream still has rows in the shape before the change."""
    sql.execute("INSERT INTO t VALUES (2, 'y')")
    read.changes(1)
    read.source.close()
    sql.execute("INSERT INTO t VALUES (3, 'y')")
    sql.execute("ALTER TABLE t ADD COLUMN b int DEFAULT 7")
    read = read.again()
    batch = read.source._batch()  # of the look at the start: nothing is received yet
    assert batch.resync == ["public.t"]
    read.remember(batch)
    if is_restarted:
        read = read.again(batch.position)
    sql.execute("INSERT INTO t VALUES (4, 'z')")
    found = read.changes(2)
    assert [each.after for each in found] == [
        {"id": 3, "a": "y"},
        {"id": 4, "a": "z", "b": 7},
    ]
    assert news(read)[1] == []
    # What changes now is announced.
    sql.execute("ALTER TABLE t ADD COLUMN c int DEFAULT 8")
    sql.execute("INSERT INTO t VALUES (5, 'z')")
    read.changes(1)
    assert news(read)[1] == ["public.t"]
    read.source.close()


def test_a_table_that_a_crashed_worker_has_published_is_read(
    sql: Sql, reading: Make, read: Reading
) -> None:
    """The table is older than the source, and was excluded until now."""
    sql.execute("CREATE TABLE other (id int PRIMARY KEY)")
    sql.execute("INSERT INTO other VALUES (1)")
    first = reading(include=("t",))
    position = first.start()
    first.source.close()
    second = reading(name=first.capture.name, include=("t", "other"))
    second.start(position)
    second.source.close()  # before its first batch was stored
    third = second.again(position)
    batch = third.source.poll(60)
    assert batch is not None
    assert batch.resync == ["public.other"]
    third.source.close()


def test_a_table_that_is_added_to_a_publication_by_hand_is_read(sql: Sql, started: Make) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    sql.execute("CREATE TABLE other (id int PRIMARY KEY)")
    sql.execute("CREATE PUBLICATION theirs FOR TABLE t")
    read = started(publication="theirs")
    sql.execute("INSERT INTO t VALUES (1)")
    read.changes(1)
    sql.execute("ALTER PUBLICATION theirs ADD TABLE other")
    assert read.look().resync == ["public.other"]


def test_a_table_is_found_as_it_is_now(sql: Sql, read: Reading) -> None:
    sql.execute("ALTER TABLE t ADD COLUMN b int DEFAULT 7")
    found = read.source.find_table("public", "t")
    assert found is not None
    assert [each.name for each in found.columns] == ["id", "a", "b"]
    assert read.source.read_chunk(found, None, 10).rows == [{"id": 1, "a": "x", "b": 7}]
    sql.execute("CREATE TABLE fresh (id int PRIMARY KEY)")
    assert read.source.find_table("public", "fresh") is None, "it is not published"
    assert read.source.find_table("public", "nothing") is None
