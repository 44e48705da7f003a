"""Materialized views have the result of their query, whatever happens to their worker."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb", minversion="1.5", reason="the extra tidemill[sql] needs it")

import duckdb
from confluent_kafka.admin import AdminClient

from tests.interop.common import wait_for
from tests.sql.conftest import Topics
from tests.support.topics import remove_before, write
from tidemill import sql
from tidemill.confluent.clients import Kafka
from tidemill.connect.base import manager as base_manager
from tidemill.connect.base.board import Board, BoardWriter
from tidemill.connect.base.errors import DefinitionExistsError, TakenOverError
from tidemill.connect.base.orders import pause
from tidemill.errors import DataLossError
from tidemill.sql import feed
from tidemill.sql.errors import (
    MalformedStatementError,
    SqlError,
    StatementRefusedError,
    UnknownTableError,
)
from tidemill.sql.session import Connection
from tidemill.sql.topics import Topics as SqlTopics
from tidemill.sql.views import files, running
from tidemill.sql.views.definition import Definition
from tidemill.sql.views.manager import manager
from tidemill.sql.views.store import Store, check
from tidemill.sql.views.topics import VIEWS

CHILD = Path(__file__).parent / "views_child.py"
GROUPS = "SELECT who, count(*) AS c, sum(n) AS s, avg(n) AS a, max(n) AS m FROM {t} GROUP BY who"
QUERIES = [
    GROUPS,
    "SELECT n, who FROM {t} WHERE n % 3 = 0",
    "SELECT window_end, who, count(*) FROM tumble({t}, moment, INTERVAL 1 MINUTE) GROUP BY ALL",
    "SELECT who, n FROM {t}$latest WHERE n > 10 ORDER BY n",
    "SELECT a.who, count(*) FROM {t}$latest a JOIN {t}$latest b ON a.n >= b.n GROUP BY 1",
]


@pytest.fixture
def connection(topics: Topics) -> Iterator[Connection]:
    with sql.connect(topics.servers, threads=1) as made:
        yield made


def rows_of(first: int, count: int) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"u{n % 7}", {"n": n, "who": f"u{n % 7}", "moment": f"2026-01-01T00:{n % 60:02}:00"})
        for n in range(first, first + count)
    ]


def add(topics: Topics, topic: str, rows: list[tuple[str, Any]]) -> None:
    write(topics.servers, topic, *rows)


@contextlib.contextmanager
def opened(topics: Topics, folder: Path, query: str, **more: Any) -> Iterator[Store]:
    definition = Definition(name="v", query=query, **more)
    with Store(folder, definition, topics.kafka, threading.Event()) as store:
        yield store


def settled(store: Store) -> list[tuple[Any, ...]]:
    while store.advance():
        pass
    return sorted(store.rows(), key=repr)


def test_views_have_the_results_of_their_queries_after_each_start(
    connection: Connection, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "BATCH", 60)
    topic = topics.fill(rows_of(0, 150), partitions=2)
    for more in ([*rows_of(150, 50), ("u1", None)], None):
        for number, query in enumerate(each.format(t=topic) for each in QUERIES):
            with opened(topics, tmp_path / str(number), query) as store:
                found = settled(store)
            assert found == sorted(connection.execute(query).fetchall(), key=repr)
            assert found
        if more:
            add(topics, topic, more)


def test_a_view_of_many_topics_is_opened_with_one_client_for_all_questions(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (topics.fill(rows_of(0, 3)) for _ in range(2))
    made, admin = [], Kafka.admin

    def counted(kafka: Kafka, client: str) -> AdminClient:
        made.append(client)
        return admin(kafka, client)

    monkeypatch.setattr(Kafka, "admin", counted)
    query = f"SELECT a.n FROM {one}$latest a JOIN {two}$latest b ON a.n = b.n"
    with opened(topics, tmp_path, query) as store:
        assert settled(store) == [(0,), (1,), (2,)]
    assert len(made) == 1


def kill_series(topics: Topics, folder: Path, kills: int) -> None:
    """Kill the process of a view at random points while records come, then compare."""
    topic, chance = topics.fill(rows_of(0, 400), partitions=3), random.Random(7)
    query = GROUPS.format(t=topic)
    command = [sys.executable, str(CHILD), topics.servers, str(folder), "v", query]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for number in range(kills):
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        assert child.stdout is not None
        add(topics, topic, rows_of(400 + 100 * number, 100))
        for _ in range(chance.randrange(1, 3)):
            assert child.stdout.readline() == "batch\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    with opened(topics, folder, query) as store, sql.connect(topics.servers) as connection:
        assert settled(store) == sorted(connection.execute(query).fetchall(), key=repr)


def test_kills_lose_nothing_and_count_nothing_twice(topics: Topics, tmp_path: Path) -> None:
    kill_series(topics, tmp_path, 2)


@pytest.mark.nightly
def test_a_long_series_of_kills_loses_nothing(topics: Topics, tmp_path: Path) -> None:
    kill_series(topics, tmp_path, 60)


def test_a_batch_that_fails_leaves_the_file_as_it_was(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.fill(rows_of(0, 10))
    query = GROUPS.format(t=topic)
    with opened(topics, tmp_path, query) as store:
        before = settled(store)
        add(topics, topic, rows_of(10, 10))
        with monkeypatch.context() as patched:
            patched.setattr(store, "_set_positions", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                store.advance()
        assert sorted(store.rows(), key=repr) == before
    with opened(topics, tmp_path, query) as store:
        assert sum(row[1] for row in settled(store)) == 20


@pytest.mark.parametrize("query", ["SELECT sum(n) AS s FROM {t}", "SELECT n FROM {t}$latest"])
def test_a_view_of_an_empty_topic_waits_for_its_columns(
    topics: Topics, tmp_path: Path, query: str
) -> None:
    topic = topics.fill([])
    wanted = rf"^topic {topic} has no JSON objects yet, so its columns are not known\n"
    with (
        pytest.raises(SqlError, match=wanted) as raised,
        opened(topics, tmp_path, query.format(t=topic)),
    ):
        pass
    assert not isinstance(raised.value, StatementRefusedError)  # it is tried again
    add(topics, topic, rows_of(0, 3))
    with opened(topics, tmp_path, query.format(t=topic)) as store:
        assert settled(store)


def test_another_query_or_another_topic_makes_the_view_again(
    topics: Topics, tmp_path: Path
) -> None:
    topic = topics.fill(rows_of(0, 10))
    with opened(topics, tmp_path, f"SELECT n FROM {topic}") as store:
        assert len(settled(store)) == 10
    with opened(topics, tmp_path, f"SELECT n FROM {topic} WHERE n > 4") as store:
        assert len(settled(store)) == 5
    topics.kafka.delete_topics("test", [topic])
    topics.fill(rows_of(0, 3), name=topic)
    with opened(topics, tmp_path, f"SELECT n FROM {topic} WHERE n > 0") as store:
        assert settled(store) == [(1,), (2,)]
    declared = {topic: "n VARCHAR"}
    query = f"SELECT n FROM {topic} WHERE n <> '0'"
    with opened(topics, tmp_path, query, columns=declared) as store:
        assert settled(store) == [("1",), ("2",)]


def test_a_damaged_file_says_how_to_make_the_view_again(topics: Topics, tmp_path: Path) -> None:
    query = f"SELECT n FROM {topics.fill(rows_of(0, 5))}"
    with opened(topics, tmp_path, query) as store:
        settled(store)
    (tmp_path / "v" / "view.duckdb").write_bytes(b"damage" * 10_000)
    with pytest.raises(SqlError) as raised, opened(topics, tmp_path, query):
        pass
    assert "drop the view and create it again" in raised.value.hint


def test_a_view_can_have_the_name_of_a_table_of_its_file(topics: Topics, tmp_path: Path) -> None:
    topic = topics.fill(rows_of(0, 3))
    for name in ("__offsets", "__meta", "__rows"):
        definition = Definition(name=name, query=f"SELECT n FROM {topic}")
        with Store(tmp_path, definition, topics.kafka, threading.Event()) as store:
            settled(store)
            store.publish()
        with duckdb.connect(str(store.published), read_only=True) as copy:
            assert copy.execute(f"SELECT count(*) FROM {name}").fetchall() == [(3,)]


def test_two_processes_cannot_keep_the_same_view(topics: Topics, tmp_path: Path) -> None:
    topic = topics.fill(rows_of(0, 10))
    query = f"SELECT n FROM {topic}"
    command = [sys.executable, str(CHILD), topics.servers, str(tmp_path), "v", query]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with opened(topics, tmp_path, query):
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    assert "lock" in done.stderr
    assert "SqlError" in done.stderr


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("SELECT n FROM t ORDER BY n", StatementRefusedError),
        ("SELECT n FROM t LIMIT 5", StatementRefusedError),
        ("SELECT * FROM read_csv('/etc/passwd')", StatementRefusedError),
        ("SELECT * FROM t$latest JOIN read_csv('/etc/passwd') ON true", SqlError),
        ("SELECT * FROM information_schema.tables", StatementRefusedError),
        ("DROP TABLE t", StatementRefusedError),
        ("SELECT n FROM", MalformedStatementError),
        ("SELECT count(*) FROM t GROUP BY 7", MalformedStatementError),
    ],
)
def test_queries_that_make_no_view_are_refused(
    topics: Topics, tmp_path: Path, query: str, error: type[SqlError]
) -> None:
    topic = topics.fill(rows_of(0, 10))
    query = query.replace("FROM t", f"FROM {topic}")

    def made() -> None:
        check(Definition(name="v", query=query), SqlTopics(topics.kafka))
        with opened(topics, tmp_path, query) as store:
            store.rows()

    with pytest.raises(error):
        made()


def test_a_view_whose_records_were_removed_says_how_to_make_it_again(
    topics: Topics, tmp_path: Path
) -> None:
    topic = topics.fill(rows_of(0, 10))
    query = f"SELECT n FROM {topic}"
    with opened(topics, tmp_path, query) as store:
        settled(store)
    add(topics, topic, rows_of(10, 10))
    remove_before(topics.servers, topic, 15)
    with opened(topics, tmp_path, query) as store, pytest.raises(DataLossError) as raised:
        store.advance()
    assert "CREATE OR REPLACE MATERIALIZED VIEW" in raised.value.hint
    with opened(topics, tmp_path, query, version="2") as store:
        assert settled(store) == [(n,) for n in range(15, 20)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT n FROM {t}",
        "SELECT n FROM {t}$latest",
        "SELECT e.n FROM {t} e JOIN {t}$latest l USING (n)",
    ],
)
def test_a_view_begins_with_the_records_that_its_topic_still_has(
    topics: Topics, tmp_path: Path, query: str
) -> None:
    topic = topics.fill([(f"u{n}", {"n": n}) for n in range(10)])
    remove_before(topics.servers, topic, 6)
    with opened(topics, tmp_path, query.format(t=topic)) as store:
        assert settled(store) == [(n,) for n in range(6, 10)]
        assert store.is_current


@pytest.mark.parametrize("table", ["{}", "{}$latest"])
def test_a_view_is_current_when_it_has_what_its_topic_had_at_the_start(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setattr(feed, "BATCH", 60)
    topic = topics.fill(rows_of(0, 150), partitions=2)
    query = f"SELECT who, n FROM {table.format(topic)}"
    with opened(topics, tmp_path, query) as store:
        assert not store.is_current
        add(topics, topic, rows_of(150, 150))
        found = []
        while store.advance():
            found.append(store.is_current)
        assert found == [False, False, True, True, True]
    with opened(topics, tmp_path, query) as store:
        assert store.is_current


def test_a_file_without_a_version_is_that_of_a_view_without_one(
    topics: Topics, tmp_path: Path
) -> None:
    query = f"SELECT n FROM {topics.fill(rows_of(0, 5))}"
    with opened(topics, tmp_path, query) as store:
        assert len(settled(store)) == 5
    with duckdb.connect(str(tmp_path / "v" / "view.duckdb")) as database:
        database.execute("""UPDATE __meta SET text = replace(text, '"version": "", ', '')""")
        assert "version" not in str(database.execute("FROM __meta").fetchall())
    with opened(topics, tmp_path, query) as store:
        assert store.is_current
    with opened(topics, tmp_path, query, version="2") as store:
        assert not store.is_current


def counted(connection: Connection, column: str) -> int:
    """Return how many values a column of the view ``everything`` has; 0 if there is none."""
    with contextlib.suppress(SqlError):
        ((count,),) = connection.execute(f"SELECT count({column}) FROM everything").fetchall()
        return int(count)
    return 0


@pytest.mark.usefixtures("without_pauses")
def test_a_view_is_created_read_and_dropped_with_statements(
    topics: Topics, connection: Connection, tmp_path: Path
) -> None:
    topic = topics.fill(rows_of(0, 30))
    create = f"CREATE MATERIALIZED VIEW totals AS {GROUPS.format(t=topic)};"
    assert connection.execute(create).fetchall() == [("totals",)]
    with pytest.raises(DefinitionExistsError):
        connection.execute(create)
    connection.execute(create.replace("CREATE", "CREATE OR REPLACE"))
    with pytest.raises(SqlError, match="no copy here"):
        connection.execute("SELECT * FROM totals")
    stop = threading.Event()
    worker = threading.Thread(target=manager(topics.kafka, tmp_path).run, args=[stop])
    worker.start()
    try:

        def total() -> int:
            with contextlib.suppress(SqlError):
                ((count,),) = connection.execute("SELECT sum(c) FROM totals").fetchall()
                return int(count or 0)
            return 0

        wait_for(lambda: total() == 30, "the view has 30 rows")
        add(topics, topic, rows_of(30, 12))
        wait_for(lambda: total() == 42, "the view has 42 rows")
        query = f"SELECT c, t.n FROM totals JOIN {topic} t USING (who) WHERE t.n = 8 AND c = 6"
        assert connection.execute(query).fetchall() == [(6, 8)]
        with pytest.raises(SqlError, match=r'"momnt" not found[^"]*"moment"'):
            connection.execute(f"SELECT c, momnt FROM totals JOIN {topic} USING (who)")
        with pytest.raises(StatementRefusedError, match="view totals can't be followed"):
            connection.follow("SELECT * FROM totals")
        everything = f"CREATE OR REPLACE MATERIALIZED VIEW everything AS SELECT * FROM {topic}"
        connection.execute(everything)
        wait_for(lambda: counted(connection, "n") == 42, "the view has 42 rows")
        add(topics, topic, [("u1", {"more": 1})])
        wait_for(lambda: counted(connection, "_offset") == 43, "the view has the new row")
        with pytest.raises(SqlError, match="more"):
            connection.execute("SELECT count(more) FROM everything")
        connection.execute(everything)
        wait_for(lambda: counted(connection, "more") == 1, "the view was made again")
        assert connection.execute("DROP MATERIALIZED VIEW totals").fetchall() == [("totals",)]
        with pytest.raises(UnknownTableError):
            connection.execute("DROP MATERIALIZED VIEW totals")
    finally:
        stop.set()
        worker.join(30)
    with pytest.raises(UnknownTableError):
        connection.execute("SELECT * FROM totals")
    with pytest.raises(StatementRefusedError, match="a topic has the name"):
        connection.execute(f"CREATE MATERIALIZED VIEW {topic} AS SELECT n FROM {topic}")


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statuses and copies are published immediately, and not once a second."""
    monkeypatch.setattr(base_manager, "STATUS_S", 0.05)
    monkeypatch.setattr(running, "_PUBLISH_S", 0.05)


@contextlib.contextmanager
def kept_current(
    topics: Topics, folder: Path, only: list[str] | None = None, ends: str = ""
) -> Iterator[threading.Thread]:
    """A worker of views. It ends with an error, if ``ends`` says so."""
    stop, made, errors = threading.Event(), manager(topics.kafka, folder, only), []

    def run() -> None:
        try:
            made.run(stop)
        except TakenOverError as error:
            errors.append(str(error))

    worker = threading.Thread(target=run)
    worker.start()
    try:
        yield worker
    finally:
        stop.set()
        worker.join(30)
    assert not worker.is_alive()
    assert errors == ([ends] if ends else [])


def status_of(topics: Topics, name: str) -> dict[str, Any]:
    return Board.read(topics.kafka, VIEWS).statuses.get(name, {})


@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize("table", ["{}", "{}$latest"])
def test_a_view_whose_topic_is_created_again_while_it_runs_is_made_again(
    topics: Topics, connection: Connection, tmp_path: Path, table: str
) -> None:
    topic = topics.fill([(f"u{n}", {"n": n}) for n in range(10)])
    query = f"SELECT n FROM {table.format(topic)}"
    connection.execute(f"CREATE OR REPLACE MATERIALIZED VIEW again AS {query}")

    def found() -> list[int]:
        with contextlib.suppress(SqlError):
            return sorted(n for (n,) in connection.execute("SELECT n FROM again").fetchall())
        return []

    with kept_current(topics, tmp_path, ["again"]):
        wait_for(lambda: found() == list(range(10)), "the view has its rows")
        topics.kafka.delete_topics("test", [topic])
        topics.fill([(f"u{n}", {"n": n}) for n in range(20, 24)], name=topic)
        wait_for(lambda: found() == list(range(20, 24)), "the view has the rows of the new topic")
    connection.execute("DROP MATERIALIZED VIEW again")


@pytest.mark.usefixtures("without_pauses")
def test_a_view_of_what_is_no_topic_is_refused(topics: Topics, connection: Connection) -> None:
    topic = topics.fill(rows_of(0, 3))
    connection.execute(f"CREATE MATERIALIZED VIEW first AS SELECT n FROM {topic}")
    create = "CREATE MATERIALIZED VIEW second AS SELECT n FROM "
    with pytest.raises(StatementRefusedError, match="a view can't read the view first"):
        connection.execute(create + "first")
    with pytest.raises(UnknownTableError, match=f"there is no topic {topic}x") as raised:
        connection.execute(f"{create}{topic}x$latest")
    assert f'Did you mean "{topic}"?' in raised.value.hint
    connection.execute("DROP MATERIALIZED VIEW first")
    assert "second" not in Board.read(topics.kafka, VIEWS).definitions


MISTYPED = [
    ("SELECT nn FROM {t}", "nn"),
    ("SELECT who, avg(nn) FROM {t} GROUP BY who", "nn"),
    ("SELECT nn FROM {t}$latest", "nn"),
    ("SELECT a.n FROM {t} a JOIN {t}$latest b ON a.n = b.nn", "nn"),
    ("SELECT window_end, count(*) FROM tumble({t}, momnt, INTERVAL 1 MINUTE) GROUP BY 1", "momnt"),
    ("SELECT momnt(n) FROM {t}", "momnt"),
]


@pytest.mark.parametrize(("query", "word"), MISTYPED)
def test_a_view_with_a_mistyped_name_is_refused_in_the_words_of_the_user(
    topics: Topics, connection: Connection, tmp_path: Path, query: str, word: str
) -> None:
    query = query.format(t=(topic := topics.fill(rows_of(0, 3))))
    with pytest.raises(SqlError, match=word) as refused:
        connection.execute(f"CREATE MATERIALIZED VIEW mistyped AS {query}")
    assert "mistyped" not in Board.read(topics.kafka, VIEWS).definitions
    with (  # a settings file can declare it
        pytest.raises(SqlError) as raised,
        opened(topics, tmp_path, query),
    ):
        pass
    assert str(raised.value) == str(refused.value)
    assert "LINE" not in str(raised.value)
    if "referenced column" in str(raised.value):  # what could be meant is named
        assert re.search('bindings:.*"(n|moment)"', str(raised.value))
    if "tumble" in query:
        with pytest.raises(SqlError) as followed:
            connection.follow(query)
        assert str(followed.value) == str(refused.value)
    empty = query.replace(topic, topics.fill([]))
    connection.execute(f"CREATE OR REPLACE MATERIALIZED VIEW later AS {empty}")
    connection.execute("DROP MATERIALIZED VIEW later")


@pytest.mark.usefixtures("without_pauses")
def test_a_view_with_a_syntax_error_waits_for_the_user(topics: Topics, tmp_path: Path) -> None:
    with kept_current(topics, tmp_path):
        writer = BoardWriter(topics.kafka, VIEWS)
        writer.define(Definition(name="broken", query="SELEC n FROM t"))
        writer.close()
        wait_for(lambda: status_of(topics, "broken").get("error"), "the worker has tried it")
        status = status_of(topics, "broken")
        forgetting = BoardWriter(topics.kafka, VIEWS)
        forgetting.forget("broken", Board.read(topics.kafka, VIEWS))
        forgetting.close()
    assert (status["phase"], status["failures"]) == ("failed", 1)
    assert "syntax error" in status["error"]


@pytest.mark.usefixtures("without_pauses")
def test_a_view_that_is_dropped_leaves_no_files(
    topics: Topics, connection: Connection, tmp_path: Path
) -> None:
    topic = topics.fill(rows_of(0, 5))
    for name in ("one", "two"):
        connection.execute(f"CREATE MATERIALIZED VIEW {name} AS SELECT n FROM {topic}")
    with kept_current(topics, tmp_path):
        for name in ("one", "two"):
            copy = tmp_path / name / "published.duckdb"
            wait_for(copy.exists, f"{name} is published")
        connection.execute("DROP MATERIALIZED VIEW one")
        wait_for(lambda: not (tmp_path / "one").exists(), "its folder is deleted")
        assert (tmp_path / "two" / "view.duckdb").exists()
    (tmp_path / "two" / "notes").write_text("mine")
    (tmp_path / "two" / "view.duckdb.tmp").mkdir()
    for name, board in (("foreign", "another-board"), ("unmarked", None)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "view.duckdb").write_text("rows")
        if board is not None:
            (tmp_path / name / "board").write_text(board)
    (tmp_path / "linked").symlink_to(tmp_path / "two")
    (tmp_path / "a-file").write_text("")
    connection.execute("DROP MATERIALIZED VIEW two")  # no worker sees it
    with kept_current(topics, tmp_path):
        wait_for(lambda: not (tmp_path / "two" / "board").exists(), "its files are deleted")
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["notes"]
    assert (tmp_path / "foreign" / "view.duckdb").exists()
    assert (tmp_path / "unmarked" / "view.duckdb").exists()


@pytest.mark.usefixtures("without_pauses")
def test_the_last_worker_that_has_begun_keeps_a_view_alone(
    topics: Topics, connection: Connection, tmp_path: Path
) -> None:
    topic = topics.fill(rows_of(0, 5))
    connection.execute(f"CREATE MATERIALIZED VIEW shared AS SELECT n FROM {topic}")

    def publishes(folder: str) -> bool:
        found = status_of(topics, "shared")
        return str(tmp_path / folder) in str(found.get("file")) and found["phase"] == "running"

    def counted() -> int:
        ((count,),) = connection.execute("SELECT count(*) FROM shared").fetchall()
        return int(count)

    with kept_current(topics, tmp_path / "first"):
        wait_for(lambda: publishes("first"), "the first worker keeps it")
        taken = "another worker has taken over view shared"
        with kept_current(topics, tmp_path / "second", ["shared"], taken) as second:
            wait_for(lambda: publishes("second"), "the second worker keeps it")
            add(topics, topic, rows_of(5, 5))
            wait_for(lambda: counted() == 10, "the view has the new rows")
            assert publishes("second")
            # An order begins it again where it is running no more: with the first worker.
            pause(
                topics.kafka, VIEWS, "view", "shared", Board.read(topics.kafka, VIEWS), paused=False
            )
            wait_for(lambda: publishes("first"), "the first worker keeps it again")
            second.join(30)
            assert not second.is_alive()  # it was started for this view alone
        add(topics, topic, rows_of(10, 5))
        wait_for(lambda: counted() == 15, "the view has the new rows")
        connection.execute("DROP MATERIALIZED VIEW shared")
    assert "shared" not in Board.read(topics.kafka, VIEWS).claims


def test_a_folder_without_a_board_that_is_known_is_left_alone(tmp_path: Path) -> None:
    own = tmp_path / "v"
    own.mkdir()
    files.mark(own, "")
    (own / "view.duckdb").write_text("rows")
    for folder, board in ((tmp_path, ""), (tmp_path, "b"), (tmp_path / "none", "b"), (own, "b")):
        files.tidy(folder, board, set())
    assert [path.name for path in own.iterdir()] == ["view.duckdb"]
    files.mark(own, "b")
    files.tidy(own / "view.duckdb", "b", set())
    files.tidy(tmp_path, "b", {"v"})
    assert own.exists()
    files.tidy(tmp_path, "b", set())
    assert not own.exists()
