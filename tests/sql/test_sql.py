"""SQL on topics gives what DuckDB gives over the same rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb", minversion="1.5", reason="the extra tidemill[sql] needs it")

from confluent_kafka import Producer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.interop.common import wait_for
from tests.sql.conftest import Topics
from tests.support.effort import examples
from tests.support.hidden_packages import python_without
from tests.support.topics import remove_before
from tidemill import extras, sql
from tidemill.errors import DataLossError, NotAllowedError, TidemillError, UnreachableError
from tidemill.sql.errors import (
    QueryEndedError,
    SqlError,
    StatementRefusedError,
    TooMuchToReadError,
    UnknownTableError,
)
from tidemill.sql.session import Connection
from tidemill.sql.topics import Topics as SqlTopics
from tidemill.sql.views.definition import Definition
from tidemill.sql.views.store import check


@pytest.fixture
def connection(topics: Topics) -> Iterator[Connection]:
    with sql.connect(topics.servers) as made:
        yield made


def one(connection: Connection, statement: str) -> Any:
    ((value,),) = connection.execute(statement).fetchall()
    return value


CONDITIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("_offset"),
            st.sampled_from(["<", "<=", ">", ">=", "="]),
            st.integers(-5, 60).map(str),
        ),
        st.tuples(st.just("_partition"), st.sampled_from(["=", ">"]), st.sampled_from("0123")),
        st.tuples(
            st.just("_timestamp"),
            st.sampled_from(["<", "<=", ">", ">=", "="]),
            st.integers(-1, 12).map(lambda s: f"epoch_ms({s * 1000})"),
        ),
    ),
    min_size=1,
    max_size=3,
)
TIMES = [(n * 37 % 11) * 1000 for n in range(150)]
"""Not in order: a later record can have an earlier time."""


@pytest.fixture(scope="module")
def timed(sql_broker: Any) -> str:
    from tidemill.confluent.clients import Kafka

    topics = Topics(Kafka(sql_broker.bootstrap_servers))
    rows = [(f"k{n}", {"n": n}) for n in range(150)]
    never = {"retention.ms": "-1"}
    return topics.fill(rows, partitions=3, times=[t + 1 for t in TIMES], configs=never)


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(conditions=CONDITIONS, word=st.sampled_from([" AND ", " OR "]))
def test_what_is_not_read_changes_no_result(
    connection: Connection, timed: str, conditions: list[tuple[str, str, str]], word: str
) -> None:
    """The same condition in a place where it is no bound gives the same rows."""
    where = word.join(" ".join(each) for each in conditions)
    columns = "n, _partition, _offset, epoch_ms(_timestamp)"
    pruned = connection.execute(f"SELECT {columns} FROM {timed} WHERE {where}").fetchall()
    everything = f"(SELECT * FROM {timed})"
    whole = connection.execute(f"SELECT {columns} FROM {everything} WHERE {where}").fetchall()
    assert sorted(pruned) == sorted(whole)


def test_less_is_read_where_a_condition_allows_it(connection: Connection, table: str) -> None:
    (whole,) = connection.plan(f"SELECT n FROM {table}")
    assert (whole.offsets, whole.columns) == (1000, ("n",))
    (part,) = connection.plan(f"SELECT x FROM {table} WHERE _partition = 1 AND _offset >= 300")
    assert (part.offsets, part.columns) == (33, ("x",))
    assert part.bytes < whole.bytes / 10
    (row,) = connection.execute(f"EXPLAIN SELECT x FROM {table} WHERE _partition = 1").fetchall()
    assert row[:3] == (table, 1, 333)


def test_columns_of_the_record(connection: Connection, topics: Topics) -> None:
    topic = topics.fill([("k", {"n": 1}), (None, b"text"), ("k", None)], times=[1000, 2000, 3000])
    rows = connection.execute(
        f"SELECT _key, _partition, _offset, epoch_ms(_timestamp), _value FROM {topic}"
    ).fetchall()
    assert rows == [
        ("k", 0, 0, 1000, b'{"n": 1}'),
        (None, 0, 1, 2000, b"text"),
        ("k", 0, 2, 3000, None),
    ]


def test_values_that_do_not_fit_are_null_and_reported(
    connection: Connection, topics: Topics
) -> None:
    rows: list[Any] = [("k", {"n": n}) for n in range(1000)]
    rows[500] = ("k", {"n": "text"})
    rows[501] = ("k", b"no json")
    topic = topics.fill(rows)
    cursor = connection.execute(f"SELECT count(*), count(n) FROM {topic}")
    assert cursor.fetchall() == [(1000, 998)]
    (sampled,) = cursor.notes
    assert "taken from 200 records" in sampled
    (misfits,) = cursor.warnings
    assert misfits.startswith("2 values do not fit the columns, which are null there")
    assert f"the first: {topic}-0 offset 500" in misfits


def test_declared_columns_are_used_instead_of_a_sample(topics: Topics) -> None:
    topic = topics.fill([("k", {"n": 1, "at": "2026-01-02T03:04:05Z"})])
    schemas = {topic: 'n DOUBLE, "at" TIMESTAMP, missing VARCHAR'}
    connection = sql.connect(topics.servers, schemas=schemas)
    cursor = connection.execute(f'SELECT n, year("at"), missing FROM {topic}')
    assert cursor.fetchall() == [(1.0, 2026, None)]
    assert cursor.notes == []
    with pytest.raises(SqlError, match="invalid columns"):
        sql.connect(topics.servers, schemas={"t": "n NOTATYPE"})


def test_the_latest_record_of_each_key_without_deleted_ones(
    connection: Connection, topics: Topics
) -> None:
    rows = [(f"k{n % 10}", {"n": n}) for n in range(100)]
    topic = topics.fill([*rows, ("k3", None), (None, {"n": -1})])
    found = connection.execute(f"SELECT _key, n FROM {topic}$latest ORDER BY n").fetchall()
    assert found == [(f"k{n % 10}", n) for n in range(90, 100) if n != 93]
    assert one(connection, f"SELECT count(*) FROM {topic}$latest WHERE _offset < 95") == 4


@pytest.mark.parametrize("column", ["n", "n, _timestamp", "*"])
def test_the_latest_record_is_the_last_in_its_partition_whatever_its_time(
    topics: Topics, connection: Connection, column: str
) -> None:
    rows = [("k", {"n": 1}), ("k", {"n": 2}), ("j", {"n": 3}), ("j", None)]
    topic = topics.fill(rows, times=[9000, 1000, 9000, 1000], configs={"retention.ms": "-1"})
    found = connection.execute(f"SELECT {column} FROM {topic}$latest").fetchall()
    assert [row[0] for row in found] == [2]


def test_a_key_in_two_partitions_has_the_later_record(
    topics: Topics, connection: Connection
) -> None:
    rows = [("k", {"n": 1}), ("k", {"n": 2})]
    kept = {"retention.ms": "-1"}
    topic = topics.fill(rows, partitions=2, times=[9000, 1000], configs=kept)
    assert connection.execute(f"SELECT n FROM {topic}$latest").fetchall() == [(1,)]


def test_a_captured_table_shows_its_rows(connection: Connection, topics: Topics) -> None:
    def change(op: str, before: Any, after: Any) -> dict[str, Any]:
        return {"op": op, "before": before, "after": after, "source": {"table": "t"}, "ts_ms": 1}

    one_row, two = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}
    other = {"id": 2, "name": "c"}
    topic = topics.fill(
        [
            ("1", change("c", None, one_row)),
            ("2", change("r", None, other)),
            ("1", change("u", one_row, two)),
            ("2", change("d", other, None)),
            ("2", None),
        ]
    )
    rows = connection.execute(f"SELECT id, name, _op, _deleted FROM {topic}").fetchall()
    assert rows == [
        (1, "a", "c", False),
        (2, "c", "r", False),
        (1, "b", "u", False),
        (2, "c", "d", True),
        (None, None, None, True),
    ]
    assert connection.execute(f"SELECT id, name FROM {topic}$latest").fetchall() == [(1, "b")]


def test_only_committed_records_are_seen(connection: Connection, topics: Topics) -> None:
    topic = topics.fill([("k", {"n": 1})])
    producer = Producer({"bootstrap.servers": topics.servers, "transactional.id": topic})
    producer.init_transactions(60)
    for number, end in ((2, producer.abort_transaction), (3, producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, b'{"n": %d}' % number)
        end(60)
    producer.begin_transaction()
    producer.produce(topic, b'{"n": 4}')
    producer.flush(60)
    assert one(connection, f"SELECT list(n ORDER BY n) FROM {topic}") == [1, 3]
    producer.abort_transaction(60)


def test_a_row_as_a_whole_has_all_its_columns(connection: Connection, topics: Topics) -> None:
    topic = topics.fill([("k", {"n": 1, "s": "a"})])
    row = one(connection, f"SELECT o FROM {topic} o")
    assert (row["n"], row["s"], row["_key"], row["_offset"]) == (1, "a", "k", 0)


def test_topics_that_differ_in_case_only_are_not_mixed_up(
    connection: Connection, topics: Topics
) -> None:
    lower = topics.fill([("k", {"n": 1})])
    upper = topics.fill([("k", {"n": 2})], name=lower.upper())
    assert one(connection, f"SELECT n FROM {lower}") == 1
    assert one(connection, f"SELECT n FROM {upper}") == 2
    with pytest.raises(StatementRefusedError, match="differ in case only"):
        connection.execute(f"SELECT * FROM {upper}$latest, {lower}")


def test_fields_with_the_names_of_other_columns_get_a_prefix(
    connection: Connection, topics: Topics
) -> None:
    topic = topics.fill([("k", {"_key": "x", "n": 1})])
    assert connection.execute(f'SELECT _key, "value._key" FROM {topic}').fetchall() == [("k", "x")]
    row = {"_key": "x", "_op": "y", "n": 1}
    captured = topics.fill([("k", {"op": "c", "before": None, "after": row})])
    found = connection.execute(
        f'SELECT _key, "value._key", _op, "value._op" FROM {captured}$latest'
    ).fetchall()
    assert found == [("k", "x", "c", "y")]


def test_absurd_names_of_fields_harm_no_other_field(connection: Connection, topics: Topics) -> None:
    absurd = b'"": 7, "\\u0000": 8, "a\\u0000b": 9, "o": {"": 1, "p": 2, "p\\u0000": 3}'
    topic = topics.fill(
        [
            ("k", b'{"a\\u0000b": 0, "a": 1, %s}' % absurd),
            ("k", b'{"a": 2, "\\ud800": 3, "o": {"\\udfff": 4}}'),
            ("k", b'{"a": 3, "value._key": 4, "_key": 5, "a": 6}'),
        ]
    )
    cursor = connection.execute(f"SELECT a, o.p FROM {topic}")
    assert cursor.fetchall() == [(1, 2), (None, None), (6, None)]
    assert "1 value does not fit" in cursor.warnings[0]
    assert len(connection.execute(f"SELECT * FROM {topic}").fetchall()) == 3


def test_statements_with_any_spacing_comments_and_letters(
    connection: Connection, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.fill([])
    insert = f"/* \u00e9 */ INSERT INTO {topic} SELECT '\u00e9\U0001f600' AS s -- \u00e9\n;;"
    assert connection.execute(insert).fetchall() == [(1,)]
    assert one(connection, f"SELECT s FROM {topic};") == "\u00e9\U0001f600"
    shown = connection.execute(f"explain\n\tSELECT s FROM {topic} -- \u00e9").fetchall()
    assert shown[0][:2] == (topic, 1)
    assert (topic,) in connection.execute("show /* all of them */ Tables;").fetchall()
    files = sql.connect(topics.servers, files=tmp_path)
    assert files.execute("COPY (SELECT '\u00e9' AS s) TO '\u00e9.csv' (HEADER false)").rowcount == 1
    assert (tmp_path / "\u00e9.csv").read_text() == "\u00e9\n"


def test_explain_changes_nothing(connection: Connection, topics: Topics) -> None:
    topic = topics.fill([("k", {"n": 1})])
    (row,) = connection.execute(f"EXPLAIN INSERT INTO {topic} SELECT n FROM {topic}").fetchall()
    assert row[:3] == (topic, 1, 1)
    assert one(connection, f"SELECT count(*) FROM {topic}") == 1
    for statement in (f"CREATE MATERIALIZED VIEW v AS SELECT n FROM {topic}", "SHOW TABLES"):
        with pytest.raises(StatementRefusedError, match="EXPLAIN is for"):
            connection.execute(f"EXPLAIN {statement}")
    with pytest.raises(StatementRefusedError, match="EXPLAIN is for"):
        connection.execute("EXPLAIN DROP MATERIALIZED VIEW v")


WINDOW = "tumble(near, _timestamp, INTERVAL 1 MINUTE)"
MISTYPED = [
    ("execute", "SELECT prize FROM near"),
    ("execute", "SELECT prize FROM near$latest WHERE _offset > ?"),
    ("execute", "INSERT INTO near SELECT prize FROM near"),
    ("execute", "COPY (SELECT prize FROM near) TO 'x.csv'"),
    ("execute", f"SELECT prize FROM {WINDOW}"),
    ("follow", "SELECT prize FROM near WHERE _offset > ?"),
    ("follow", f"SELECT window_end, sum(prize) FROM {WINDOW} GROUP BY 1"),
]


@pytest.mark.parametrize(("way", "statement"), MISTYPED)
def test_a_name_that_is_not_a_column_gets_the_nearest_columns(
    topics: Topics, tmp_path: Path, way: str, statement: str
) -> None:
    with sql.connect(topics.servers, files=tmp_path) as connection:
        if ("near",) not in connection.execute("SHOW TABLES").fetchall():
            topics.fill([("k", {"item": "lamp", "price": 2})], name="near")
        with pytest.raises(SqlError, match=r'"prize" not found[^"]*"price"'):
            getattr(connection, way)(statement, [0] * statement.count("?"))


def test_names_with_other_characters_are_quoted(connection: Connection, topics: Topics) -> None:
    topic = topics.fill([("k", {"n": 1})], name="demo.main.air-craft")
    assert one(connection, f'SELECT n FROM "{topic}"') == 1
    assert one(connection, f'SELECT n FROM "{topic}$latest"') == 1
    topics.fill([], name="plain.dotted")
    with pytest.raises(UnknownTableError) as raised:
        connection.execute("SELECT * FROM plain.dotted")
    assert '"plain.dotted"' in raised.value.hint
    assert (topic,) in connection.execute("SHOW TABLES").fetchall()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM sniff_csv('/etc/passwd')",
        "SELECT getenv('HOME')",
        "COPY (SELECT 1) TO '/tmp/tidemill-sql-test.csv'",
        "ATTACH '/tmp/tidemill-sql-test.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '64GB'",
        "PRAGMA database_list",
        "PIVOT t ON n USING sum(n)",
        "CREATE TABLE x AS SELECT 1",
        "DROP TABLE x",
        "INSERT INTO t VALUES (1)",
        "EXPORT DATABASE '/tmp/x'",
        "CALL pragma_version()",
        "SELECT 1; SELECT 2",
        "EXPLAIN ANALYZE SELECT 1",
        "BEGIN",
        "CREATE MACRO m() AS 1",
        "SELECT secret FROM (SELECT * FROM topics_of_python)",
        "",
        "nonsense",
        "SELECT '\ud800'",
        "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    ],
)
def test_hostile_statements_are_refused(connection: Connection, statement: str) -> None:
    topics_of_python = [("secret",)]
    with pytest.raises(SqlError):
        connection.execute(statement).fetchall()
    assert topics_of_python
    assert not Path("/tmp/tidemill-sql-test.csv").exists()


NESTED = [
    "SELECT " + "1+(" * 400 + "1" + ")" * 400,
    "SELECT * FROM " + "(SELECT * FROM " * 300 + "t" + ")" * 300,
    "SELECT " + "[" * 900 + "1" + "]" * 900,
    "SELECT " + "NOT " * 900 + "a FROM tumble(t, a, INTERVAL 1 MINUTE)",
]


@pytest.mark.parametrize("statement", NESTED, ids=["sum", "subquery", "list", "window"])
def test_statements_that_are_nested_too_deeply_are_refused(
    topics: Topics, connection: Connection, statement: str
) -> None:
    for run in (connection.execute, connection.plan, connection.follow):
        with pytest.raises(StatementRefusedError, match="nested too deeply"):
            run(statement)
    with pytest.raises(StatementRefusedError, match="nested too deeply"):
        check(Definition(name="v", query=statement), SqlTopics(topics.kafka))


def test_an_endless_statement_ends_at_its_time_limit(topics: Topics) -> None:
    connection = sql.connect(topics.servers, timeout_s=0.5)
    began = time.monotonic()
    with pytest.raises(QueryEndedError):
        connection.execute("SELECT count(*) FROM range(100000000) a, range(100000000) b").fetchall()
    assert time.monotonic() - began < 20
    assert one(connection, "SELECT 1") == 1


def test_a_statement_can_be_cancelled(connection: Connection) -> None:
    cursor = connection.execute("SELECT count(*) FROM range(100000000) a, range(100000000) b")
    threading.Timer(0.3, cursor.cancel).start()
    with pytest.raises(QueryEndedError):
        cursor.fetchall()


def test_a_statement_that_writes_can_be_cancelled(topics: Topics, tmp_path: Path) -> None:
    topic = topics.fill([])
    connection = sql.connect(topics.servers, files=tmp_path, timeout_s=60)
    endless = "SELECT a.range AS n FROM range(99999999) a, range(99999999) b"
    for statement in (f"INSERT INTO {topic} {endless}", f"COPY ({endless}) TO 'n.csv'"):
        cursor = connection.cursor()

        def cancel(cursor: Any = cursor) -> None:
            wait_for(lambda: cursor._running is not None, "the statement runs")
            cursor.cancel()

        threading.Thread(target=cancel).start()
        began = time.monotonic()
        with pytest.raises(QueryEndedError):
            cursor.execute(statement)
        assert time.monotonic() - began < 50
    assert one(connection, f"SELECT count(*) FROM {topic}") == 0


def test_memory_is_bounded(topics: Topics) -> None:
    connection = sql.connect(topics.servers, memory="50MB")
    with pytest.raises(SqlError, match=r"(?i)out of memory") as raised:
        connection.execute("SELECT list(range) FROM range(100000000)").fetchall()
    assert "--memory" in raised.value.hint


def test_a_statement_that_needs_more_memory_writes_no_files(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    connection = sql.connect(topics.servers, memory="30MB")
    with pytest.raises(SqlError, match=r"(?i)out of memory"):
        connection.execute("SELECT * FROM range(10000000) ORDER BY hash(range)").fetchall()
    assert list(tmp_path.iterdir()) == []


def test_reading_too_much_is_refused_before_it_begins(topics: Topics, table: str) -> None:
    connection = sql.connect(topics.servers, max_bytes=1000)
    with pytest.raises(TooMuchToReadError) as raised:
        connection.execute(f"SELECT * FROM {table}")
    assert raised.value.bytes > 1000
    assert (
        one(connection, f"SELECT count(*) FROM {table} WHERE _partition = 0 AND _offset < 3") == 3
    )


def test_errors_name_what_is_wrong(
    connection: Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownTableError) as raised:
        connection.execute(f"SELECT * FROM {table[:-1]}")
    assert table in raised.value.hint
    with pytest.raises(SqlError, match='"nosuch"'):
        connection.execute(f"SELECT nosuch FROM {table}")
    with pytest.raises(StatementRefusedError, match="DELETE"):
        connection.execute(f"DELETE FROM {table}")
    with pytest.raises(SqlError, match="no result"):
        connection.cursor().fetchall()
    monkeypatch.setattr("tidemill.confluent.clients.REQUEST_S", 0.5)
    with pytest.raises(UnreachableError):
        sql.connect("127.0.0.1:1").execute("SELECT * FROM t")


def test_records_that_are_removed_meanwhile_are_reported(
    connection: Connection, topics: Topics
) -> None:
    topic = topics.fill([("k", {"n": n}) for n in range(10)])
    cursor = connection.execute(f"SELECT n FROM {topic}")
    remove_before(topics.servers, topic, 5)
    with pytest.raises(DataLossError) as raised:
        cursor.fetchall()
    assert "again" in raised.value.hint


def test_rows_come_in_the_forms_of_db_api_arrow_and_pandas(
    connection: Connection, table: str
) -> None:
    cursor = connection.cursor()
    cursor.execute(f"SELECT n, s FROM {table} WHERE n < ? ORDER BY n", [5])
    assert [each[0] for each in cursor.description or ()] == ["n", "s"]
    assert cursor.fetchone() == (0, None)
    assert cursor.fetchmany(2) == [(1, "s1"), (2, "s2")]
    assert list(cursor) == [(3, "s3"), (4, "s4")]
    assert cursor.fetchone() is None
    statement = f"SELECT n FROM {table} WHERE n < 3 ORDER BY n"
    assert connection.execute(statement).arrow()["n"].to_pylist() == [0, 1, 2]
    assert list(connection.execute(statement).df()["n"]) == [0, 1, 2]
    assert sum(b.num_rows for b in connection.execute(f"SELECT * FROM {table}").batches()) == 1000
    cursor.close()


def test_a_data_frame_without_pandas_says_what_to_install_and_reads_nothing(
    connection: Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor = connection.execute(f"SELECT n FROM {table} WHERE n = 1")
    with monkeypatch.context() as patched:
        patched.setattr(extras, "is_installed", lambda module: module != "pandas")
        with pytest.raises(TidemillError, match="the package pandas is not installed") as raised:
            cursor.df()
    assert raised.value.hint == "Install it: pip install pandas."
    assert cursor.fetchall() == [(1,)]


def test_an_empty_topic_has_the_columns_of_the_record(
    connection: Connection, topics: Topics
) -> None:
    topic = topics.fill([])
    cursor = connection.execute(f"SELECT * FROM {topic}")
    assert cursor.fetchall() == []
    assert [each[0] for each in cursor.description or ()][:3] == ["_key", "_partition", "_offset"]


def test_a_small_limit_reads_little(connection: Connection, table: str) -> None:
    assert len(connection.execute(f"SELECT * FROM {table} LIMIT 5").fetchall()) == 5


def test_without_duckdb_it_says_what_to_install() -> None:
    done = python_without(["duckdb"], "import tidemill.sql; tidemill.sql.connect()")
    assert "pip install 'tidemill[sql]'" in done.stderr


def test_rows_of_a_query_become_records_of_a_topic(connection: Connection, topics: Topics) -> None:
    source = topics.fill([(f"k{n}", {"n": n, "s": f"text {n}"}) for n in range(3000)], partitions=2)
    target = topics.fill([], partitions=3)
    cursor = connection.execute(
        f"INSERT INTO {target} SELECT _key, n, s, n / 4 AS x, n = 1 AS b FROM {source} WHERE n < ?",
        [2500],
    )
    assert (cursor.rowcount, cursor.fetchall()) == (2500, [(2500,)])
    rows = connection.execute(f"SELECT _key, n, s, x, b FROM {target} ORDER BY n").fetchall()
    assert rows == [(f"k{n}", n, f"text {n}", n / 4, n == 1) for n in range(2500)]


def test_each_type_is_read_back_as_it_was_written(connection: Connection, topics: Topics) -> None:
    target = topics.fill([])
    columns = {
        "b": ("true", "BOOLEAN"),
        "n": ("9223372036854775807", "BIGINT"),
        "x": ("'-inf'::DOUBLE", "DOUBLE"),
        "nan": ("'nan'::DOUBLE", "DOUBLE"),
        "d": ("1.10::DECIMAL(4, 2)", "DECIMAL(4, 2)"),
        "t": ("'a\"\U0001f600'", "VARCHAR"),
        "raw": ("'\\x00\\xff'::BLOB", "BLOB"),
        "day": ("DATE '2026-01-02'", "DATE"),
        "at": ("TIMESTAMP '2026-01-02 03:04:05.123456'", "TIMESTAMP"),
        "zone": ("TIMESTAMPTZ '2026-01-02 03:04:05+02'", "TIMESTAMP"),
        "l": ("[1.5::DOUBLE, NULL]", "DOUBLE[]"),
        "s": ("{'a': 1}", "STRUCT(a BIGINT)"),
        "nothing": ("NULL::BIGINT", "BIGINT"),
    }
    wanted = ", ".join(f'{value} AS "{name}"' for name, (value, _) in columns.items())
    connection.execute(f"INSERT INTO {target} SELECT {wanted}")
    schemas = {target: ", ".join(f'"{name}" {kind}' for name, (_, kind) in columns.items())}
    back = sql.connect(topics.servers, schemas=schemas)
    names = ", ".join(f'"{name}"' for name in columns)
    cursor = back.execute(f"SELECT {names} FROM {target}")
    found, original = cursor.fetchall(), connection.execute(f"SELECT {wanted}").fetchall()
    assert cursor.warnings == []
    zone = original[0][9].replace(tzinfo=None)
    expected = (*original[0][:9], zone, *original[0][10:])
    assert repr(found) == repr([expected])


def test_records_are_written_with_all_that_they_have(
    connection: Connection, topics: Topics
) -> None:
    target = topics.fill([], configs={"retention.ms": "-1"})
    connection.execute(
        f"INSERT INTO {target} (_key, _value, _timestamp, _headers) VALUES "
        "('k', '\\x00\\x01'::BLOB, TIMESTAMP '2026-01-02 03:04:05.123', MAP {'a': 'b'}), "
        "('gone', NULL, TIMESTAMP '2026-01-02 03:04:06', NULL)"
    )
    rows = connection.execute(f"SELECT _key, _value, _timestamp, _headers FROM {target}").fetchall()
    moment = datetime(2026, 1, 2, 3, 4, 5, 123000)
    assert rows[0] == ("k", b"\x00\x01", moment, [{"key": "a", "value": b"b"}])
    assert rows[1][:2] == ("gone", None)
    other = topics.fill([])
    connection.execute(f"INSERT INTO {other} SELECT _key, _value, _headers FROM {target}")
    again = connection.execute(f"SELECT _key, _value, _headers FROM {other}").fetchall()
    assert [row[:2] for row in again] == [row[:2] for row in rows]
    assert again[0][2] == rows[0][3]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("INSERT INTO nosuch SELECT 1 AS n", "no topic nosuch"),
        ("INSERT INTO {t} SELECT * FROM {t}", "can't be written: the broker decides it"),
        ("INSERT INTO {t} SELECT _value, 1 AS n FROM {t}", "_value and other columns: n"),
        ("INSERT INTO {t} SELECT 1 AS n, 2 AS n", "two columns have the name n"),
        ("INSERT INTO {t} (a, b) SELECT 1", "names 2 columns"),
        ("INSERT INTO {t} SELECT _key FROM {t}", "no value"),
        ("INSERT INTO {t} SELECT ['nan'::DOUBLE] AS l", "NaN inside of a value"),
        ("INSERT INTO {t} SELECT 1 AS n RETURNING n", "syntax error"),
        ("INSERT INTO {t} DEFAULT VALUES", "no query"),
        ("INSERT INTO a.b SELECT 1 AS n", "tables have no schema"),
        ("INSERT INTO {t} SELECT error('stop') AS n FROM {t}", "stop"),
        ("INSERT INTO {t} SELECT 1 AS n; SELECT 2", "2 statements"),
        ("INSERT INTO {t} SELECT 'x' AS _headers, 1 AS n", "_headers is not"),
        ("INSERT INTO {t} SELECT TIMESTAMP '1970-01-01' AS _timestamp, 1 AS n", "after 1970"),
        ("INSERT INTO {t} SELECT TIMESTAMP '1969-01-01' AS _timestamp, 1 AS n", "after 1970"),
    ],
)
def test_an_insert_that_fails_writes_nothing(
    connection: Connection, table: str, topics: Topics, statement: str, said: str
) -> None:
    with pytest.raises(SqlError, match=said):
        connection.execute(statement.format(t=table))
    assert one(connection, f"SELECT count(*) FROM {table}") == 1000


def test_a_failure_amid_an_insert_leaves_nothing_visible(
    connection: Connection, topics: Topics, table: str
) -> None:
    target = topics.fill([])
    late = f"CASE WHEN n = 999 THEN error('too late') ELSE n END AS n FROM {table} ORDER BY _offset"
    with pytest.raises(SqlError, match="too late"):
        connection.execute(f"INSERT INTO {target} SELECT {late}")
    assert one(connection, f"SELECT count(*) FROM {target}") == 0


def test_rows_are_copied_to_files_of_a_folder_and_nowhere_else(
    topics: Topics, table: str, tmp_path: Path
) -> None:
    folder = tmp_path / "it's"
    folder.mkdir()
    connection = sql.connect(topics.servers, files=folder)
    cursor = connection.execute(f"COPY {table} TO 'x.parquet'")
    assert cursor.fetchall() == [(1000,)]
    query = f"COPY (SELECT n FROM {table} WHERE n < ? ORDER BY n) TO 'x.csv' (HEADER false)"
    assert connection.execute(query, [3]).rowcount == 3
    assert (folder / "x.csv").read_text().split() == ["0", "1", "2"]
    path = str(folder / "x.parquet").replace("'", "''")
    joined = f"SELECT count(*) FROM {table} t JOIN read_parquet('{path}') p ON t.n = p.n"
    assert one(connection, joined) == 1000
    (tmp_path / "secret").write_text("secret")
    for statement in (
        f"COPY {table} TO '../y.csv'",
        f"COPY {table} TO '{tmp_path}/y.csv'",
        f"COPY {table} TO 's3://bucket/y.csv'",
        f"SELECT * FROM read_text('{tmp_path}/secret')",
        f"COPY {table} FROM 'x.csv'",
        f"ATTACH '{path}.db'",
        f"COPY {table} TO 'z.csv' (HEADER false); COPY {table} TO 'w.csv'",
    ):
        with pytest.raises(SqlError):
            connection.execute(statement).fetchall()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["it's", "secret"]


def test_files_are_off_unless_a_folder_is_named(connection: Connection, table: str) -> None:
    with pytest.raises(StatementRefusedError, match="files are off"):
        connection.execute(f"COPY {table} TO 'x.csv'")


def test_a_connection_that_only_reads_refuses_to_write(topics: Topics, table: str) -> None:
    connection = sql.connect(topics.servers, read_only=True)
    with pytest.raises(StatementRefusedError, match="only queries"):
        connection.execute(f"INSERT INTO {table} SELECT 1 AS n")


def test_a_long_statement_prints_no_progress(topics: Topics) -> None:
    with sql.connect(topics.servers) as connection:
        shown = one(connection, "SELECT current_setting('enable_progress_bar')")
    assert shown is False


HIDDEN = [
    'SELECT * FROM "{t}"',
    'SELECT count(*) FROM "{t}$latest" AS t',
    'SELECT (SELECT max(s) FROM "{t}")',
    'SELECT 1 WHERE EXISTS (FROM "{t}")',
    'FROM plain AS a JOIN "{t}" AS b USING (s)',
    'WITH a AS (SELECT * FROM "{t}") SELECT * FROM a',
    'WITH "{t}" AS (SELECT s FROM "{t}") SELECT * FROM "{t}"',
    'WITH RECURSIVE a AS (SELECT s FROM "{t}" UNION FROM a) SELECT * FROM a',
    'SELECT s FROM plain UNION ALL SELECT s FROM "{t}"',
    'SELECT count(*) FROM tumble("{t}", _timestamp, INTERVAL 1 MINUTE)',
    'EXPLAIN SELECT * FROM "{t}"',
    'DESCRIBE "{t}"',
    'SUMMARIZE "{t}"',
    "SELECT * FROM query('FROM \"{t}\"')",
    "SELECT * FROM query_table('{t}')",
    "SELECT * FROM query_table(['plain', '{t}'])",
    'SELECT * FROM memory.main."{t}"',
    'PIVOT "{t}" ON s USING count(*)',
]


@pytest.mark.parametrize("statement", HIDDEN)
def test_hidden_topics_are_not_read(topics: Topics, secret: str, statement: str) -> None:
    connection = sql.connect(topics.servers, views=False)
    connection.hidden = ["secret-*"]
    for name in (secret, secret.upper(), secret.capitalize()):
        query = statement.format(t=name).replace("plain", "plain1")
        with pytest.raises(TidemillError) as caught:
            connection.execute(query).fetchall()
        assert "4111" not in str(caught.value) + caught.value.hint
    with pytest.raises(NotAllowedError, match="fields that are hidden"):
        connection.plan(f'SELECT s FROM "{secret}"')
    found = connection.execute("SELECT s FROM plain1").fetchall()
    assert found == [("yes",)]  # other topics are


@pytest.fixture(scope="module")
def secret(sql_broker: Any) -> str:
    """A topic whose name begins with ``secret-``, beside one that begins with ``plain``."""
    from tidemill.confluent.clients import Kafka

    topics = Topics(Kafka(sql_broker.bootstrap_servers))
    topics.fill([(None, {"s": "yes"})], name="plain1")
    return topics.fill([(None, {"s": "4111"})], name="secret-1")
