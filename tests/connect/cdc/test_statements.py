"""What statements in the binary log mean for the rows of tables."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemill.connect.cdc.binlog.statements import Effect, Statement, parse_statement


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("BEGIN", Statement("begin")),
        ("begin;", Statement("begin")),
        ("COMMIT", Statement("commit")),
        ("ROLLBACK", Statement("rollback")),
        ("ROLLBACK TO `a``b`", Statement("rollback_to", name="a`b")),
        ("ROLLBACK WORK TO SAVEPOINT a", Statement("rollback_to", name="a")),
        ("SAVEPOINT a", Statement("savepoint", name="a")),
        ("truncate t", Statement("truncate", "", "t")),
        ("TRUNCATE TABLE `a b`.`t`", Statement("truncate", "a b", "t")),
        ("/* x */ -- y\n# z\n TRUNCATE TABLE t", Statement("truncate", "", "t")),
        ("/*!50100 TRUNCATE t */", Statement("truncate", "", "t")),
        ("/*M!100100 INSERT INTO t VALUES (1) */", Statement("change")),
        ("insert into t values (1)", Statement("change")),
        ("SET STATEMENT lock_wait_timeout=5 FOR TRUNCATE t", Statement("truncate", "", "t")),
        (
            "SET STATEMENT sql_mode='for', a=(SELECT 1 FOR UPDATE), b=\"\" for TRUNCATE t",
            Statement("truncate", "", "t"),
        ),
        ("SET STATEMENT binlog_format='STATEMENT' FOR UPDATE t SET a = 1", Statement("change")),
        ("SET STATEMENT a=1", Statement("other", unread=True)),
        ("SET STATEMENT a=1 FOR " * 1000, Statement("other")),
        ("SET PASSWORD = 'x'", Statement("other")),
        ("DELETE FROM `d`.`t`", Statement("truncate", "d", "t")),
        ("DELETE FROM t WHERE i = 1", Statement("change")),
        ("INSERTED", Statement("other")),
        ("XA PREPARE 'x'", Statement("xa")),
        ("XA START 'x'", Statement("xa_start")),
        ("/* never closed", Statement("other")),
        ("", Statement("other")),
        (";", Statement("other")),
        ("CREATE TEMPORARY TABLE t (i INT)", Statement("other")),
        ("CREATE USER a", Statement("other")),
        ("DROP VIEW t", Statement("other")),
        ("ALTER DATABASE d CHARACTER SET latin1", Statement("other")),
        ("ALTER TABLE 'text' ADD c INT", Statement("other", unread=True)),
        ("RENAME TABLE a b", Statement("other", unread=True)),
        ("TRUNCATE", Statement("other", unread=True)),
    ],
)
def test_the_meaning_of_statements(text: str, statement: Statement) -> None:
    assert parse_statement(text) == statement


CHANGING = [
    "ADD COLUMN n INT NOT NULL DEFAULT 42",
    "ADD n INT",
    "ADD INDEX (a), ADD n INT FIRST",
    "DROP COLUMN n",
    "DROP n",
    "MODIFY s SET('b', 'a')",
    "CHANGE a b INT",
    "RENAME COLUMN a TO b",
    "CONVERT TO CHARACTER SET utf8mb4",
    "DROP PRIMARY KEY, ADD PRIMARY KEY (b)",
    "ADD CONSTRAINT PRIMARY KEY (b)",
    "ADD CONSTRAINT c PRIMARY KEY (b)",
    "DROP INDEX `primary`",
    "DROP CONSTRAINT PRIMARY",
    "DROP PARTITION p0, p1",
    "TRUNCATE PARTITION ALL",
    "DISCARD PARTITION p0 TABLESPACE",
    "IMPORT PARTITION p0 TABLESPACE",
    "DISCARD TABLESPACE",
    "IMPORT TABLESPACE",
    "REPAIR PARTITION ALL",
    "ENGINE = BLACKHOLE",
    "COMMENT = 'x' ENGINE = MEMORY",
    "UNION = (a, b)",
    "ADD SYSTEM VERSIONING",
    "a clause that nobody has written yet",
]

KEEPING = [
    "",
    "ADD INDEX i (a, b), ALGORITHM=INPLACE, LOCK=NONE",
    "ADD UNIQUE KEY (a)",
    "ADD FULLTEXT (a)",
    "ADD CONSTRAINT FOREIGN KEY (a) REFERENCES u (a)",
    "DROP INDEX i",
    "DROP FOREIGN KEY f",
    "RENAME INDEX a TO b",
    "ALTER COLUMN a SET DEFAULT (1, 2)",
    "ALTER a DROP DEFAULT",
    "ALTER INDEX i INVISIBLE",
    "ENGINE=InnoDB",
    "FORCE",
    "COMMENT='ENGINE = x, DROP COLUMN a'",
    "AUTO_INCREMENT = 5",
    "DEFAULT CHARACTER SET utf8mb4",
    "ADD PARTITION (PARTITION p VALUES LESS THAN (3), PARTITION q VALUES LESS THAN MAXVALUE)",
    "REORGANIZE PARTITION a INTO (PARTITION x VALUES LESS THAN (3))",
    "COALESCE PARTITION 2",
    "REMOVE PARTITIONING",
    "REBUILD PARTITION ALL",
    "PARTITION BY RANGE (i) (PARTITION p VALUES LESS THAN (3))",
]


@pytest.mark.parametrize("head", ["ALTER TABLE t", "/* c */ alter online table `t` nowait"])
@pytest.mark.parametrize("clauses", CHANGING)
def test_clauses_after_which_rows_can_differ(clauses: str, head: str) -> None:
    found = parse_statement(f"{head} {clauses};").effects
    assert [each[:3] for each in found] == [("changed", "", "t")]
    assert all("changed" in each.why for each in found)


@pytest.mark.parametrize("clauses", KEEPING)
def test_clauses_after_which_rows_are_the_same(clauses: str) -> None:
    assert parse_statement(f"ALTER TABLE d.t {clauses}").effects == (Effect("look", "d", "t"),)


def effects_of(text: str) -> list[tuple[str, str, str]]:
    return [each[:3] for each in parse_statement(text).effects]


@pytest.mark.parametrize(
    ("text", "effects"),
    [
        ("ALTER IGNORE TABLE t ADD UNIQUE (a)", "changed .t"),
        ("ALTER TABLE IF EXISTS t WAIT 5 ADD a INT", "changed .t"),
        ('ALTER TABLE "a ""b" ADD a INT', 'changed .a "b'),
        ("ALTER TABLE t RENAME u", "dropped .t, changed .u"),
        ("ALTER TABLE t RENAME TO d.u, ADD INDEX (a)", "dropped .t, changed d.u"),
        ("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE d.u", "changed .t, changed d.u"),
        ("ALTER TABLE t CONVERT PARTITION p TO TABLE u", "changed .t, changed .u"),
        ("ALTER TABLE t CONVERT TABLE u TO PARTITION p VALUES (1)", "changed .t, changed .u"),
        (
            "RENAME TABLE t TO _t_del, `_t_gho` TO t",
            "dropped .t, changed ._t_del, dropped ._t_gho, changed .t",
        ),
        ("RENAME TABLES IF EXISTS a.t WAIT 3 TO b.t", "dropped a.t, changed b.t"),
        ("DROP TABLE IF EXISTS `a`, b.`c` /* generated by server */", "dropped .a, dropped b.c"),
        ("DROP TEMPORARY TABLE a", ""),
        ("DROP DATABASE IF EXISTS `d`", "dropped d."),
        ("CREATE TABLE t (i INT)", "created .t"),
        ("CREATE OR REPLACE TABLE d.t LIKE u", "created d.t"),
        ("CREATE TABLE IF NOT EXISTS t AS SELECT 1", "created_if_missing .t"),
        ("DROP INDEX `PRIMARY` ON t", "changed .t"),
        ("DROP INDEX i ON t", ""),
        ("REPAIR TABLE a, d.b", "changed .a, changed d.b"),
        ("ANALYZE TABLE a", ""),
    ],
)
def test_statements_name_the_tables_that_they_concern(text: str, effects: str) -> None:
    found = ", ".join(f"{action} {database}.{name}" for action, database, name in effects_of(text))
    assert found == effects


def test_a_table_whose_rows_follow_begins_a_transaction() -> None:
    text = "CREATE TABLE `t` (\n  `id` int\n) ENGINE=InnoDB START TRANSACTION"
    assert parse_statement(text) == Statement(
        "begin", effects=(Effect("created", "", "t", "it was created again"),)
    )


NAMES = st.text(min_size=1, max_size=8).filter(lambda name: "\0" not in name)


@given(database=NAMES, name=NAMES, comment=st.text(max_size=9))
def test_any_quoted_name_is_found(database: str, name: str, comment: str) -> None:
    quoted = ".".join("`" + each.replace("`", "``") + "`" for each in (database, name))
    comment = comment.replace("*/", "").strip("!*/M+")
    text = f"ALTER/* {comment} */TABLE {quoted} DROP COLUMN c"
    assert effects_of(text) == [("changed", database, name)]


@given(st.text(alphabet="ALTER TABLE t(,;)'\"`\\/*!M#-\n.1é", max_size=80))
@example("/*" * 300_000)
@example("ALTER TABLE t ADD " + "(," * 300_000)
@example("INSERT INTO t VALUES " + "('x')," * 300_000)
@example("`" * 999_999)
@example("ALTER TABLE " + "\\'" * 300_000)
def test_any_text_is_read_in_a_bounded_time(text: str) -> None:
    begin = time.monotonic()
    parse_statement(text)
    assert time.monotonic() - begin < 20
