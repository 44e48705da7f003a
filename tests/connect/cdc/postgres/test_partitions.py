"""The topic of a partitioned table has the rows of its partitions, whatever becomes of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.connect.cdc.postgres.folding import Folded, assert_equal
from tests.connect.cdc.postgres.reading import Reading
from tests.support.effort import in_nightly_runs

Sql = psycopg.Connection[Any]
Make = Callable[..., Reading]

CREATE = """
CREATE TABLE m (id int, day int, v text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (10) TO (20);
CREATE TABLE m2 PARTITION OF m FOR VALUES FROM (20) TO (30);
CREATE TABLE m3 PARTITION OF m FOR VALUES FROM (30) TO (40) PARTITION BY LIST (id);
CREATE TABLE m3a PARTITION OF m3 FOR VALUES IN (1, 2, 3);
CREATE TABLE m3b PARTITION OF m3 DEFAULT;
CREATE TABLE rest PARTITION OF m DEFAULT;
CREATE TABLE child (id int PRIMARY KEY, m_id int, m_day int,
  FOREIGN KEY (m_id, m_day) REFERENCES m);
INSERT INTO m SELECT i, 10 * (1 + i % 4), 'first' FROM generate_series(1, 16) i;
INSERT INTO child SELECT i, 1, 20 FROM generate_series(1, 3) i;
CREATE TABLE apart (v text, id int, day int, gone int, PRIMARY KEY (id, day));
ALTER TABLE apart DROP COLUMN gone;
INSERT INTO apart (id, day, v) VALUES (1, 50, 'apart'), (2, 51, 'apart');
CREATE TABLE roots (id int, day int, v text, PRIMARY KEY (id, day)) PARTITION BY LIST (id);
CREATE TABLE roots1 PARTITION OF roots FOR VALUES IN (1, 2);
INSERT INTO roots VALUES (1, 60, 'below'), (2, 61, 'below');
"""
EMPTY_REST = "DELETE FROM rest WHERE day >= 40"
CASES = {
    "attach": [EMPTY_REST, "ALTER TABLE m ATTACH PARTITION apart FOR VALUES FROM (50) TO (60)"],
    "attach a tree": ["ALTER TABLE m ATTACH PARTITION roots FOR VALUES FROM (60) TO (70)"],
    "detach": ["ALTER TABLE child DROP CONSTRAINT child_m_id_m_day_fkey",
               "ALTER TABLE m DETACH PARTITION m1"],
    "detach concurrently": ["DROP TABLE child", "DROP TABLE rest",
                            "ALTER TABLE m DETACH PARTITION m1 CONCURRENTLY"],
    "detach a tree": ["DROP TABLE child", "ALTER TABLE m DETACH PARTITION m3"],
    "drop": ["DROP TABLE child", "DROP TABLE m1"],
    "drop the default": ["DROP TABLE child", "DROP TABLE rest"],
    "drop within a tree": ["DROP TABLE child", "DROP TABLE m3a"],
    "truncate a partition": ["DROP TABLE child", "TRUNCATE m2"],
    "truncate within a tree": ["DROP TABLE child", "TRUNCATE m3b"],
    "truncate a tree": ["DROP TABLE child", "TRUNCATE m3"],
    "truncate the root": ["DROP TABLE child", "TRUNCATE m"],
    "truncate a partition with cascade": ["TRUNCATE m2 CASCADE"],
    "truncate the root with cascade": ["TRUNCATE m CASCADE"],
    "detach, write and attach": [
        "DROP TABLE child",
        "ALTER TABLE m DETACH PARTITION m1",
        "UPDATE m1 SET v = 'while it was detached'",
        "ALTER TABLE m ATTACH PARTITION m1 FOR VALUES FROM (10) TO (20)",
    ],
    "exchange": [
        "DROP TABLE child",
        EMPTY_REST,
        "UPDATE apart SET day = 11",
        "BEGIN; ALTER TABLE m DETACH PARTITION m1;"
        " ALTER TABLE m ATTACH PARTITION apart FOR VALUES FROM (10) TO (20); COMMIT",
    ],
    # All as before in the catalog, but rows that were written meanwhile are in the other topic.
    "attach, write and detach": [
        "DROP TABLE child",
        EMPTY_REST,
        "ALTER TABLE m ATTACH PARTITION apart FOR VALUES FROM (50) TO (60)",
        "INSERT INTO m VALUES (9, 55, 'as a partition')",
        "DELETE FROM m WHERE day = 51",
        "UPDATE m SET v = 'as a partition' WHERE day = 50",
        "ALTER TABLE m DETACH PARTITION apart",
    ],
    "rewrite": ["ALTER TABLE m ALTER v TYPE text USING v || ' and more'"],
}  # fmt: skip


def in_schema(sql: Sql, number: int, *statements: str) -> None:
    sql.execute(f"CREATE SCHEMA IF NOT EXISTS s{number}".encode())
    sql.execute(f"SET search_path = s{number}".encode())
    for statement in statements:
        sql.execute(statement.encode())


WRITTEN = """
UPDATE m SET v = 'second' WHERE id IN (2, 5);
DELETE FROM m WHERE id = 7;
UPDATE m SET day = CASE day WHEN 30 THEN 32 ELSE 30 END WHERE id = 6;
INSERT INTO m SELECT i, 30, 'third' FROM generate_series(100, 102) i;
"""
"""Rows of each partition, and one that moves to another partition."""


@pytest.mark.parametrize("is_running", [True, *in_nightly_runs(False)])
def test_the_topic_of_the_root_has_the_rows_of_its_partitions(
    sql: Sql, reading: Make, is_running: bool
) -> None:
    """Each case has a schema. A source that does not run crashes once more before it stores."""
    for number in range(len(CASES)):
        in_schema(sql, number, CREATE)
    folded = Folded(reading(include=("*.m", "*.apart", "*.m1")))
    for number in range(len(CASES)):
        in_schema(sql, number, WRITTEN)
    if not is_running:
        folded.follow()
        folded.reading.source.close()
    for number, statements in enumerate(CASES.values()):
        last = "INSERT INTO m VALUES (200, 31, 'last')"
        in_schema(sql, number, *statements, last)
    if not is_running:
        folded.crash(before_a_batch=True)
    folded.follow(looks=True)
    for number in range(len(CASES)):
        assert_equal(folded, sql, f"s{number}.m")
        assert (f"s{number}.m", "it is new") not in folded.reasons
    assert_equal(folded, sql, f"s{list(CASES).index('attach, write and detach')}.apart")
    before = len(folded.reasons)
    for number in range(len(CASES)):
        in_schema(sql, number, "UPDATE m SET v = 'after' WHERE id = 200")
    folded.follow(looks=True)
    folded.crash()
    folded.follow(looks=True)
    for number in range(len(CASES)):
        assert_equal(folded, sql, f"s{number}.m")
    assert folded.reasons[before:] == [], "a table is read again once"
    folded.reading.source.close()


def test_a_detached_partition_is_a_table_of_its_own(sql: Sql, reading: Make) -> None:
    sql.execute(CREATE)
    folded = Folded(reading())
    sql.execute("DROP TABLE child; ALTER TABLE m DETACH PARTITION m1")
    sql.execute("UPDATE m1 SET v = 'alone'")
    folded.follow(looks=True)
    sql.execute("DELETE FROM m1 WHERE id = 4")
    folded.follow()
    assert_equal(folded, sql, "m1")
    assert_equal(folded, sql, "m")


def test_the_first_partition_of_a_table_is_read(sql: Sql, reading: Make) -> None:
    sql.execute("CREATE TABLE m (id int PRIMARY KEY, v text) PARTITION BY LIST (id)")
    sql.execute("CREATE TABLE m1 (id int PRIMARY KEY, v text); INSERT INTO m1 VALUES (1, 'x')")
    folded = Folded(reading())
    sql.execute("ALTER TABLE m ATTACH PARTITION m1 FOR VALUES IN (1, 2)")
    folded.follow(looks=True)
    assert_equal(folded, sql, "m")
    sql.execute("DROP TABLE m1")
    folded.follow(looks=True)
    assert_equal(folded, sql, "m")


def test_a_partitioned_table_that_an_earlier_version_captured_is_read_again(
    sql: Sql, reading: Make
) -> None:
    """It has stored a position, but not which partitions there were."""
    sql.execute("CREATE TYPE mood AS ENUM ('ok')")
    sql.execute("CREATE TABLE m (id int PRIMARY KEY) PARTITION BY LIST (id)")
    sql.execute("CREATE TABLE m1 PARTITION OF m FOR VALUES IN (1)")
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    sql.execute("CREATE TABLE e (id mood PRIMARY KEY)")
    sql.execute("INSERT INTO m VALUES (1); INSERT INTO e VALUES ('ok')")
    folded = Folded(reading())
    folded.reading.source.close()
    folded.reading.notes.clear()
    sql.execute("DROP TABLE m1; ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'")
    folded.crash(before_a_batch=True)
    folded.follow()
    assert {each for each, _ in folded.reasons} == {"public.m", "public.e"}
    assert_equal(folded, sql, "m")
    assert_equal(folded, sql, "e")


def test_inherited_tables_are_tables_of_their_own(sql: Sql, reading: Make) -> None:
    """The topic of a parent has what SELECT FROM ONLY gives. TRUNCATE empties all."""
    sql.execute("CREATE TABLE p (id int PRIMARY KEY, v text)")
    sql.execute("CREATE TABLE c (PRIMARY KEY (id)) INHERITS (p)")
    sql.execute("CREATE TABLE d (id int NOT NULL PRIMARY KEY, v text)")
    sql.execute("INSERT INTO p VALUES (1, 'p'); INSERT INTO c VALUES (2, 'c')")
    sql.execute("INSERT INTO d VALUES (3, 'd')")
    folded = Folded(reading())
    sql.execute("ALTER TABLE d INHERIT p")
    sql.execute("UPDATE p SET v = v || ' later'")
    folded.follow(looks=True)
    assert folded.rows("public.p") == [{"id": 1, "v": "p later"}]
    assert folded.rows("public.c") == [{"id": 2, "v": "c later"}]
    assert folded.rows("public.d") == [{"id": 3, "v": "d later"}]
    sql.execute("ALTER TABLE d NO INHERIT p")
    sql.execute("TRUNCATE p")
    folded.follow(looks=True)
    assert [folded.rows(f"public.{each}") for each in "pc"] == [[], []]
    assert_equal(folded, sql, "d")


def test_partitions_that_a_publication_lists_one_by_one_have_topics(
    sql: Sql, reading: Make
) -> None:
    """A publication of the user, without publish_via_partition_root."""
    sql.execute(CREATE)
    sql.execute("CREATE PUBLICATION theirs FOR TABLE m")
    folded = Folded(reading(publication="theirs"))
    sql.execute("DROP TABLE child; TRUNCATE m2; DELETE FROM rest WHERE day >= 40")
    sql.execute("ALTER TABLE m ATTACH PARTITION apart FOR VALUES FROM (50) TO (60)")
    sql.execute("UPDATE m SET v = 'later' WHERE id IN (1, 4)")
    folded.follow(looks=True)
    for partition in ("m1", "m2", "m3a", "m3b", "rest", "apart"):
        assert_equal(folded, sql, partition)
    assert folded.rows("public.m") == []


def test_old_rows_come_by_the_replica_identity_of_the_partition(sql: Sql, reading: Make) -> None:
    """The stream describes that of the root. Values that were not sent are not invented."""
    sql.execute("CREATE TABLE m (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    sql.execute("CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (0) TO (100)")
    sql.execute("CREATE TABLE m2 PARTITION OF m FOR VALUES FROM (100) TO (200)")
    sql.execute("ALTER TABLE m REPLICA IDENTITY FULL; ALTER TABLE m2 REPLICA IDENTITY FULL")
    large = "(SELECT string_agg(md5((i * %s)::text), '') FROM generate_series(1, 300) i)"
    sql.execute(f"INSERT INTO m VALUES (1, {large}), (101, {large}), (2, 'x')".encode(), (3, 4))
    folded = Folded(reading())
    sql.execute("UPDATE m SET id = id + 10 WHERE id IN (1, 101)")
    sql.execute("DELETE FROM m WHERE id = 2")
    folded.follow()
    assert_equal(folded, sql, "m")
    (gone,) = [
        change
        for batch in folded.reading.batches
        for change in batch.changes
        if change.op == "d" and change.before and change.before["id"] == 2
    ]
    assert gone.before == {"id": 2}
    sql.execute("ALTER TABLE m1 REPLICA IDENTITY FULL; INSERT INTO m VALUES (3, 'y')")
    sql.execute("DELETE FROM m WHERE id = 3")
    (_, gone) = folded.reading.changes(2)
    assert gone.before == {"id": 3, "v": "y"}


def test_a_table_whose_partition_has_no_replica_identity_is_left_out(
    sql: Sql, started: Make
) -> None:
    """Its updates and deletes would fail once it is published, and so they do not."""
    sql.execute("CREATE TABLE m (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    sql.execute("CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (0) TO (100)")
    sql.execute("INSERT INTO m VALUES (1, 'x')")
    read = started()
    assert [each.id for each in read.source.tables()] == ["public.m"]
    sql.execute("ALTER TABLE m1 REPLICA IDENTITY NOTHING")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        sql.execute("UPDATE m SET v = 'y'")
    read.source._due["refresh"] = 0.0
    read.source.poll(0)
    sql.execute("UPDATE m SET v = 'y'")
    assert read.source.tables() == []
    assert [each.fix for each in read.source.check() if each.severity == "error"] == [
        'ALTER TABLE "public"."m1" REPLICA IDENTITY DEFAULT;'
    ]
    sql.execute("ALTER TABLE m1 REPLICA IDENTITY DEFAULT")
    batch = read.look()
    assert batch.reasons == {"public.m": "it is new"}
