"""The index of a store: who writes it, what it belongs to, and what is in its way."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.support.processes import poll_until
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import messages_to_end
from tidemill.eventstore import wire
from tidemill.eventstore.app.projections.sqlite import SQLite
from tidemill.eventstore.app.snapshots import SnapshotFile
from tidemill.eventstore.errors import (
    ConditionFailedError,
    IndexMismatchError,
    IndexUnusableError,
    NewerFoldError,
)
from tidemill.eventstore.events import Condition, NewEvent, Query, StreamAppend
from tidemill.eventstore.index import About, IndexFile
from tidemill.eventstore.index_writing import IndexWriter
from tidemill.eventstore.indexing import Indexing
from tidemill.eventstore.state import State
from tidemill.eventstore.store import Store, rebuild


def new_event() -> list[NewEvent]:
    return [NewEvent("e", b"data")]


def indexed(folder: Path, topic: str) -> int:
    """Return the position of the index."""
    with closing(sqlite3.connect(folder / f"{topic}.sqlite")) as connection:
        return int(connection.execute("SELECT position FROM about").fetchone()[0])


def change(folder: Path, topic: str, statement: str) -> None:
    with closing(sqlite3.connect(folder / f"{topic}.sqlite")) as connection:
        connection.execute(statement)
        connection.commit()


def test_stores_share_an_index_and_another_one_writes_it_when_the_writer_ends(
    kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with (
        Store(kafka, topic, folder=tmp_path) as first,
        Store(kafka, topic, folder=tmp_path) as second,
    ):
        second.append("s", new_event())
        poll_until(lambda: indexed(tmp_path, topic) == 1, 30, "the first store writes the index")
        poll_until(lambda: not second._state.steps, 30, "the second drops what the index has")
        first.close()
        second.append("s", new_event(), expected=1)
        poll_until(lambda: indexed(tmp_path, topic) == 2, 30, "the second store writes the index")
        assert [each.version for each in second.read("s")] == [1, 2]


@pytest.mark.parametrize(
    "opened", [lambda path: IndexFile(path, About("c", "t", "i")), SnapshotFile, SQLite]
)
def test_a_file_that_another_process_is_creating_is_opened_when_that_lets_go(
    opened: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite refuses the switch to a write-ahead log immediately: its busy time-out is no help."""
    path = tmp_path / "new.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("CREATE TABLE t (x)")
        pauses: list[float] = []

        def let_go(pause_s: float) -> None:
            pauses.append(pause_s)
            other.execute("ROLLBACK")

        monkeypatch.setattr("tidemill.eventstore.write_ahead.time.sleep", let_go)
        opened(path).close()
    assert len(pauses) == 1


def test_a_store_that_is_opened_again_reads_only_what_the_index_lacks(
    kafka: Kafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(kafka, topic, folder=tmp_path) as store:
        for _ in range(5):
            store.append("s", new_event())
        head = store.head()
    folded: list[int] = []
    monkeypatch.setattr(Store, "_fold", lambda _, records: folded.extend(records))
    with Store(kafka, topic, folder=tmp_path) as store:
        assert store.head() == head
        assert [each.version for each in store.read("s")] == [1, 2, 3, 4, 5]
    assert folded == []


def test_an_index_of_another_log_is_an_error_until_it_is_rebuilt(
    kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with Store(kafka, topic, folder=tmp_path) as store:
        store.append("s", new_event())
        store.append("s", new_event())
    statements = {
        "is of topic": "UPDATE about SET topic_id = 'other'",
        "is of topic ": "UPDATE about SET cluster = 'other'",
        "has offset 2, and the log ends at 2": "UPDATE about SET read = 2",
        "has another record at offset 1": "UPDATE about SET digest = x'00'",
    }
    for why, statement in statements.items():
        change(tmp_path, topic, statement)
        with pytest.raises(IndexMismatchError, match=why):
            Store(kafka, topic, folder=tmp_path)
        assert rebuild(kafka, topic, folder=tmp_path).position == 2
        with Store(kafka, topic, folder=tmp_path) as store:
            assert [each.version for each in store.read("s")] == [1, 2]


def test_only_its_user_can_read_an_index(kafka: Kafka, topic: str, tmp_path: Path) -> None:
    with Store(kafka, topic, folder=tmp_path / "new") as store:
        store.append("s", new_event())
        store.wait_indexed()
        files = list((tmp_path / "new").iterdir())
        assert len(files) >= 3
        assert {each.stat().st_mode & 0o077 for each in [*files, tmp_path / "new"]} == {0}


def test_a_replaced_topic_is_an_error(kafka: Kafka, topic: str, tmp_path: Path) -> None:
    with Store(kafka, topic, folder=tmp_path) as store:
        store.append("s", new_event())
    kafka.delete_topics("tests", [topic])
    poll_until(lambda: topic not in kafka.list_topics("tests"), 30, "the topic is deleted")
    with pytest.raises(IndexMismatchError):
        Store(kafka, topic, folder=tmp_path)


def test_an_index_that_is_in_use_is_not_rebuilt(kafka: Kafka, topic: str, tmp_path: Path) -> None:
    with Store(kafka, topic, folder=tmp_path), pytest.raises(IndexUnusableError, match="use"):
        rebuild(kafka, topic, folder=tmp_path)


def test_an_unusable_folder_or_file_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    about = About("c", "t", "i")
    for path in (
        tmp_path / "file" / "index",
        Path("/proc/index"),
        Path("/proc/new/index"),
    ):
        with pytest.raises(IndexUnusableError):
            IndexFile(path, about)
    (tmp_path / "damaged").write_bytes(b"no database" * 1000)
    with pytest.raises(IndexUnusableError, match="damaged"):
        IndexFile(tmp_path / "damaged", about)
    (tmp_path / "folder").mkdir()
    with pytest.raises(IndexUnusableError):
        IndexFile(tmp_path / "folder", about)


def test_an_index_that_is_damaged_while_it_is_used_stops_the_store(
    kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with Store(kafka, topic, folder=tmp_path) as store:
        store.append("s", new_event())
        poll_until(lambda: indexed(tmp_path, topic) == 1, 30, "the index is written")
        change(tmp_path, topic, "DROP TABLE tags")
        store.append("s", [NewEvent("e", tags=frozenset("x"))])
        poll_until(lambda: store.failure is not None, 30, "the store fails")
        with pytest.raises(IndexUnusableError):
            store.append("s", new_event())


def test_the_fold_waits_when_the_memory_of_what_the_index_lacks_is_full(
    kafka: Kafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.eventstore.indexing.MEMORY", 5000)
    monkeypatch.setattr("tidemill.eventstore.indexing.PERIOD_S", 0.01)
    sizes: list[int] = []
    advance = Indexing.advance

    def watch(self: Indexing) -> None:
        sizes.append(self._state.size)
        advance(self)

    monkeypatch.setattr(Indexing, "advance", watch)
    with Store(kafka, topic, folder=tmp_path) as store:
        for _ in range(100):
            store.append("s", [NewEvent("e", bytes(1000))])
    assert indexed(tmp_path, topic) == 100
    assert 1000 < max(sizes) < 8000


def test_an_index_that_was_folded_by_newer_rules_is_refused(
    kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with Store(kafka, topic, folder=tmp_path) as store:
        store.append("s", new_event())
    change(tmp_path, topic, "UPDATE about SET fold = 2")
    with pytest.raises(NewerFoldError, match="version 2"):
        Store(kafka, topic, folder=tmp_path)


def test_a_fault_while_the_index_is_written_fails_the_store(
    kafka: Kafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(writer: IndexWriter, steps: object) -> NoReturn:
        raise OverflowError("a fault")

    with Store(kafka, topic, folder=tmp_path) as store:
        monkeypatch.setattr(IndexWriter, "write", fail)
        store.append("s", new_event())
        poll_until(lambda: store.failure is not None, 30, "the store has failed")
        with pytest.raises(OverflowError):
            store.append("s", new_event())
        monkeypatch.undo()


def test_a_query_of_more_tags_and_types_than_a_statement_takes_is_answered(
    kafka: Kafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commit with such a condition would make the store unusable for all, for ever."""
    connect = sqlite3.connect

    def limited(*given: Any, **named: Any) -> sqlite3.Connection:
        made: sqlite3.Connection = connect(*given, **named)
        made.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 7_000)
        return made

    monkeypatch.setattr(sqlite3, "connect", limited)
    tags = frozenset(f"tag:{number}" for number in range(100))
    types = [f"type {number}" for number in range(8_000)]
    both = Query(frozenset(types), tags)
    with Store(kafka, topic, folder=tmp_path) as store:
        store.append("s", [NewEvent("e", tags=tags), NewEvent(types[0], tags=tags)])
        store.append("s", [NewEvent(each) for each in types[1:]])
        store.append("s", [NewEvent(types[1], tags=tags - {"tag:99"})])
        store.wait_indexed()
        poll_until(lambda: not store._state.steps, 30, "all is in the index")
        assert [each.version for each in store.read_all(queries=[Query(tags=tags)])] == [1, 2]
        assert [each.version for each in store.read_all(queries=[both])] == [2]
        with pytest.raises(ConditionFailedError, match="position 2"):
            store.append("t", [NewEvent("e")], conditions=[Condition((both,))])
        store.append("t", [NewEvent("e")], conditions=[Condition((both,), after=2)])


def full(connection: sqlite3.Connection) -> None:
    """Leave no room: SQLite ends the transaction by itself, as if the disk was full."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")


def test_a_full_disk_is_named_when_the_index_is_written(tmp_path: Path) -> None:
    state = State()
    commit = wire.propose(bytes(16), [StreamAppend("s", (NewEvent("e", bytes(100_000)),))])
    state.step(0, wire.encode(commit), commit, 7)
    with closing(IndexFile(tmp_path / "index", About("c", "t", "i"))) as index:
        writer = IndexWriter(index)
        full(writer._connection)
        with pytest.raises(IndexUnusableError, match="disk is full"):
            writer.write(list(state.steps))
        writer.close()


def test_a_full_disk_is_named_by_a_projection_which_continues_later(tmp_path: Path) -> None:
    database = SQLite(tmp_path / "rows.db")
    with database.transaction() as db:
        db.run("CREATE TABLE t (x)")
    full(database._db)
    with (
        pytest.raises(sqlite3.OperationalError, match="disk is full"),
        database.transaction() as db,
    ):
        db.run("INSERT INTO t VALUES (?)", (bytes(100_000),))
    with database.transaction() as db:
        db.run("INSERT INTO t VALUES (1)")
        assert db.run("SELECT x FROM t") == [(1,)]
    database.close()


def test_a_reader_gets_no_emptied_events_of_what_is_truncated_meanwhile(
    kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with Store(kafka, topic, folder=tmp_path) as store:
        store.append("s", [NewEvent("e", b"data") for _ in range(3000)])
        poll_until(lambda: not store._state.steps, 30, "all is in the index")
        events = store.read("s")
        assert next(events).version == 1
        store.truncate({"s": 2500})
        poll_until(lambda: not store._state.steps, 30, "the index has lost the content")
        assert {each.data for each in events} == {b"data"}
        assert next(store.read("s")).version == 2500


def test_an_index_whose_last_record_is_missing_in_the_log_is_an_error(
    kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    """Readers never see the marker of a transaction, which another log can have at that place."""
    producer = kafka.producer("tests", transactional_id=topic)
    with Store(kafka, topic, folder=tmp_path) as store:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(topic, b"foreign")
        producer.flush(30)
        producer.abort_transaction()
        store.append("s", new_event())
    (marker,) = set(range(kafka.end_offsets("tests", [(topic, 0)])[topic, 0])) - {
        message.offset() for message in messages_to_end(kafka, "tests", topic, committed=False)
    }
    change(tmp_path, topic, f"UPDATE about SET read = {marker}")
    with pytest.raises(IndexMismatchError, match=f"another record at offset {marker}"):
        Store(kafka, topic, folder=tmp_path)
