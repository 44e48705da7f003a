"""Values that are stored out of line are in every row, whether the update touched them or not."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.connect.cdc.postgres.reading import Reading
from tidemill.connect.cdc.errors import SetupError

LARGE = "CREATE TABLE t (id int PRIMARY KEY, n int, big text, other text)"
FILL = "SELECT string_agg(md5((i * %s)::text), '') FROM generate_series(1, 400) i"


@pytest.fixture
def big(sql: psycopg.Connection[Any]) -> tuple[str, str]:
    """Two large texts, in a table with two rows."""
    sql.execute(LARGE)
    texts = [str(sql.execute(FILL, (seed,)).fetchall()[0][0]) for seed in (1, 2)]
    for number, text in enumerate(texts):
        sql.execute("INSERT INTO t VALUES (%s, 0, %s, 'x')", (number, text))
    return texts[0], texts[1]


def test_an_update_reads_them_from_the_table(
    sql: psycopg.Connection[Any], started: Callable[..., Reading], big: tuple[str, str]
) -> None:
    read = started()
    sql.execute("UPDATE t SET n = n + 1")
    found = read.changes(2)
    assert [each.after for each in found] == [
        {"id": i, "n": 1, "big": big[i], "other": "x"} for i in range(2)
    ]
    assert list(found[0].after or {}) == ["id", "n", "big", "other"]


def test_a_changed_key_keeps_them(
    sql: psycopg.Connection[Any], started: Callable[..., Reading], big: tuple[str, str]
) -> None:
    read = started()
    sql.execute("UPDATE t SET id = 10 WHERE id = 1")
    (found,) = read.changes(1)
    assert found.before == {"id": 1}
    assert found.after == {"id": 10, "n": 0, "big": big[1], "other": "x"}


def test_full_replica_identity_gives_the_value_of_the_time(
    sql: psycopg.Connection[Any], started: Callable[..., Reading], big: tuple[str, str]
) -> None:
    sql.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    read = started()
    sql.execute("UPDATE t SET n = 1 WHERE id = 0")
    sql.execute("UPDATE t SET big = 'new' WHERE id = 0")
    sql.execute("DELETE FROM t WHERE id = 0")
    found = read.changes(3)
    assert [each.after["big"] if each.after else None for each in found] == [big[0], "new", None]
    assert found[1].before is not None
    assert found[1].before["big"] == big[0]


@pytest.mark.usefixtures("big")
def test_a_row_that_is_gone_lacks_them(
    sql: psycopg.Connection[Any], started: Callable[..., Reading]
) -> None:
    read = started()
    sql.execute("UPDATE t SET n = 1 WHERE id = 0")
    sql.execute("DELETE FROM t WHERE id = 0")
    update, delete = read.changes(2)
    assert update.after == {"id": 0, "n": 1, "other": "x"}
    assert delete.before == {"id": 0}


@pytest.mark.usefixtures("big")
def test_a_table_that_is_gone_stops_nothing(
    sql: psycopg.Connection[Any], started: Callable[..., Reading]
) -> None:
    read = started()
    sql.execute("UPDATE t SET n = 1 WHERE id = 0")
    sql.execute("ALTER TABLE t DROP COLUMN big")
    sql.execute("UPDATE t SET n = 2 WHERE id = 0")
    assert [each.after for each in read.changes(2)] == [
        {"id": 0, "n": 1, "other": "x"},
        {"id": 0, "n": 2, "other": "x"},
    ]
    sql.execute("DROP TABLE t")
    read.nothing()


@pytest.mark.usefixtures("big")
def test_a_column_that_is_gone_stops_nothing(
    sql: psycopg.Connection[Any], started: Callable[..., Reading], big: tuple[str, str]
) -> None:
    """Others are read all the same: of this table, and of the next one."""
    sql.execute("UPDATE t SET other = big")
    sql.execute("CREATE TABLE u (id int PRIMARY KEY, n int, big text)")
    sql.execute("INSERT INTO u VALUES (0, 0, %s)", (big[0],))
    sql.execute(
        "INSERT INTO t SELECT i, 0, big, big FROM t, generate_series(2, 600) i WHERE id = 1"
    )
    read = started()
    sql.execute("UPDATE t SET n = 1")
    sql.execute("UPDATE u SET n = 1")
    sql.execute("ALTER TABLE t DROP COLUMN big")
    found = read.changes(602)
    assert found[-1].after == {"id": 0, "n": 1, "big": big[0]}
    for each in found[:-1]:
        assert each.after is not None
        assert each.after.keys() == {"id", "n", "other"}


def test_a_key_that_is_of_another_type_stops_nothing(
    sql: psycopg.Connection[Any], started: Callable[..., Reading]
) -> None:
    sql.execute("CREATE TABLE t (id text PRIMARY KEY, n int, big text)")
    sql.execute(
        "INSERT INTO t SELECT 'a', 0, string_agg(md5(i::text), '') FROM generate_series(1, 400) i"
    )
    read = started()
    sql.execute("UPDATE t SET n = 1")
    sql.execute("DELETE FROM t")
    sql.execute("ALTER TABLE t ALTER id TYPE int USING 1")
    update, _ = read.changes(2)
    assert update.after == {"id": "a", "n": 1}


@pytest.mark.usefixtures("big")
def test_values_that_must_not_be_read_stop_the_source(
    sql: psycopg.Connection[Any], reading: Callable[..., Reading]
) -> None:
    """A placeholder would stay in the topic when the privilege is given back."""
    role, database = f"r{uuid.uuid4().hex[:8]}", sql.info.dbname
    sql.execute(f"CREATE ROLE {role} LOGIN REPLICATION".encode())
    try:
        sql.execute(f"GRANT CREATE ON DATABASE {database} TO {role}".encode())
        sql.execute(f"GRANT SELECT ON t TO {role}".encode())
        sql.execute("CREATE PUBLICATION own FOR TABLE t")
        read = reading(user=role, publication="own")
        read.start()
        sql.execute("UPDATE t SET n = 1 WHERE id = 0")
        sql.execute(f"REVOKE SELECT ON t FROM {role}".encode())
        with pytest.raises(SetupError) as caught:
            read.changes(1)
        assert "GRANT SELECT ON" in (caught.value.hint or "")
        read.source.close()
    finally:
        sql.execute(f"DROP OWNED BY {role}".encode())
        sql.execute(f"DROP ROLE {role}".encode())
