"""Rows that can't be captured: the source stops at them, or they go to the dead-letter topic."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from tests.connect.cdc.bad_rows import letters_of, row_error_of
from tests.connect.conftest import RunningWorker, records_of, sqlite_definition, table_of
from tidemill.confluent.clients import Kafka
from tidemill.confluent.producing import TransactionalProducer as LibrdkafkaProducer
from tidemill.confluent.reading import read_to_end
from tidemill.connect.base import producer
from tidemill.connect.cdc.bad_rows import Limits
from tidemill.connect.cdc.contract import Change
from tidemill.connect.cdc.envelope import Record
from tidemill.connect.cdc.sqlite.source import SqliteSource

LARGE = "x" * 1_100_000
"""More than the producer of these tests sends."""


@pytest.fixture(autouse=True)
def small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(producer._SETTINGS, "message.max.bytes", "1000000")


def set_config(kafka: Kafka, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = kafka.admin("tests")  # a client that is collected gets no answers
    (future,) = admin.incremental_alter_configs([asked]).values()
    future.result(30)


@pytest.fixture
def shop(database: sqlite3.Connection) -> sqlite3.Connection:
    database.execute("CREATE TABLE a (id INTEGER PRIMARY KEY, v TEXT)")
    database.execute("CREATE TABLE b (id INTEGER PRIMARY KEY, v TEXT)")
    database.executemany("INSERT INTO a VALUES (?, ?)", [(1, "one"), (2, "two")])
    return database


def test_a_row_that_is_too_large_becomes_a_dead_letter_and_all_others_are_captured(
    kafka: Kafka, name: str, tmp_path: Path, shop: sqlite3.Connection
) -> None:
    shop.execute("INSERT INTO a VALUES (3, ?)", (LARGE,))  # of the snapshot
    definition = sqlite_definition(name, tmp_path, on_bad_row="dead-letter")
    with RunningWorker(definition, kafka) as running:
        running.wait_for_snapshots()
        shop.execute("BEGIN")
        shop.execute("INSERT INTO a VALUES (4, 'four')")
        shop.execute("UPDATE a SET v = ? WHERE id = 2", (LARGE,))
        shop.execute("INSERT INTO b VALUES (1, 'other')")
        shop.execute("COMMIT")
        topic = f"{name}.main.a"
        running.wait(lambda: running.worker.state.dead_letters == 2, "the letters")
        running.wait(lambda: bool(table_of(records_of(kafka, f"{name}.main.b"))), "the other table")
        rows = table_of(records_of(kafka, topic))
        assert rows == {'{"id": 1}': {"id": 1, "v": "one"}, '{"id": 4}': {"id": 4, "v": "four"}}
        keys = [key["id"] for key, value in records_of(kafka, topic) if key["id"] in (1, 4)]
        assert keys == [1, 4]  # once each
        shop.execute("UPDATE a SET v = 'small' WHERE id = 2")
        running.wait(lambda: '{"id": 2}' in table_of(records_of(kafka, topic)), "row 2 comes back")
    first, second = letters_of(kafka, f"{name}.dlq")
    assert first[0] == {"id": 3}
    assert first[1]["after"] == {"id": 3}
    assert first[2]["source.position"] == '{"snapshot":true}'
    assert first[2]["omitted.columns"] == "v"
    assert second[0] == {"id": 2}
    assert (second[1]["op"], second[1]["before"]) == ("u", {"id": 2, "v": "two"})
    assert second[2]["source.table"] == "main.a"
    assert second[2]["source.topic"] == topic
    assert "1,100," in second[2]["error.reason"]
    assert json.loads(second[2]["source.position"])["change_id"] > 0


def test_the_source_stops_at_the_row_and_continues_when_it_is_accepted_as_a_dead_letter(
    kafka: Kafka, name: str, tmp_path: Path, shop: sqlite3.Connection
) -> None:
    definition = sqlite_definition(name, tmp_path)
    with RunningWorker(definition, kafka) as running:
        running.wait_for_snapshots()
        shop.execute("INSERT INTO a VALUES (3, ?), (4, 'four'), (5, ?)", (LARGE, LARGE))
        error = row_error_of(running)
    row = error.row
    assert (row.table, row.key) == ("main.a", '{"id":3}')
    assert "change_id" in row.position
    assert "main.a" in str(error)
    assert "--dead-letter" in error.hint
    assert len(table_of(records_of(kafka, f"{name}.main.a"))) == 2
    again = RunningWorker(definition, kafka)
    again.orders.accepted = row.id
    with again:
        error = row_error_of(again)
    assert error.row.key == '{"id":5}'
    last = RunningWorker(definition, kafka)
    last.orders.accepted = error.row.id
    with last:
        # The first row stays accepted, although the transaction of its letter was aborted.
        topic = f"{name}.main.a"
        last.wait(lambda: '{"id": 4}' in table_of(records_of(kafka, topic)), "row 4")
    assert [key for key, _, _ in letters_of(kafka, f"{name}.dlq")] == [{"id": 3}, {"id": 5}]
    assert set(table_of(records_of(kafka, f"{name}.main.a"))) == {
        '{"id": 1}', '{"id": 2}', '{"id": 4}'
    }  # fmt: skip


@pytest.mark.parametrize("known", [True, False])
def test_a_row_that_the_topic_refuses_is_found_among_others(
    kafka: Kafka,
    name: str,
    tmp_path: Path,
    shop: sqlite3.Connection,
    monkeypatch: pytest.MonkeyPatch,
    known: bool,
) -> None:
    if not known:  # a user who must not see the configs of topics

        def refuse(*_: Any) -> dict[str, str]:
            return {}

        monkeypatch.setattr(Kafka, "topic_configs", refuse)
    definition = sqlite_definition(name, tmp_path, on_bad_row="dead-letter")
    with RunningWorker(definition, kafka) as running:
        running.wait_for_snapshots()
        set_config(kafka, f"{name}.main.a", "max.message.bytes", "20000")
        noise = "".join(chr(0x4E00 + 7919 * each % 20000) for each in range(30000))
        rows = [(3, "three"), (4, noise), (5, "y" * 900_000), (6, noise[::-1]), (7, "seven")]
        shop.execute("BEGIN")
        shop.executemany("INSERT INTO a VALUES (?, ?)", rows)
        shop.execute("COMMIT")
        topic = f"{name}.main.a"
        running.wait(lambda: '{"id": 7}' in table_of(records_of(kafka, topic)), "the last row")
    found = table_of(records_of(kafka, topic))
    assert set(found) == {f'{{"id": {each}}}' for each in (1, 2, 3, 5, 7)}  # 5 is compressible
    assert [key for key, _, _ in letters_of(kafka, f"{name}.dlq")] == [{"id": 4}, {"id": 6}]


def test_a_row_that_can_not_be_decoded_becomes_a_dead_letter(
    kafka: Kafka,
    name: str,
    tmp_path: Path,
    shop: sqlite3.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = SqliteSource.poll

    def poll(self: SqliteSource, timeout_s: float) -> Any:
        batch = original(self, timeout_s)
        for change in batch.changes if batch is not None else ():
            assert isinstance(change, Change)
            if change.after is not None and change.after.get("v") == "damaged":
                del change.after["v"]
                change.error = "column v can't be decoded"
        return batch

    monkeypatch.setattr(SqliteSource, "poll", poll)
    definition = sqlite_definition(
        name, tmp_path, on_bad_row="dead-letter", table={"main.a": {"where": ["v != 'hidden'"]}}
    )
    with RunningWorker(definition, kafka) as running:
        running.wait_for_snapshots()
        shop.execute("UPDATE a SET v = 'damaged' WHERE id = 1")
        shop.execute("INSERT INTO a VALUES (3, 'three')")
        topic = f"{name}.main.a"
        running.wait(lambda: '{"id": 3}' in table_of(records_of(kafka, topic)), "the last row")
        assert set(table_of(records_of(kafka, topic))) == {'{"id": 2}', '{"id": 3}'}
    ((key, value, headers),) = letters_of(kafka, f"{name}.dlq")
    assert key == {"id": 1}
    assert value["after"] == {"id": 1}
    assert headers["error.reason"] == "column v can't be decoded"


def test_two_large_rows_of_an_update_need_no_dead_letter_if_the_new_one_fits(
    kafka: Kafka, name: str, tmp_path: Path, shop: sqlite3.Connection
) -> None:
    with RunningWorker(sqlite_definition(name, tmp_path), kafka) as running:
        running.wait_for_snapshots()
        topic = f"{name}.main.b"
        shop.execute("INSERT INTO b VALUES (1, ?)", ("x" * 600_000,))
        shop.execute("UPDATE b SET v = ? WHERE id = 1", ("y" * 600_000,))
        shop.execute("DELETE FROM b WHERE id = 1")
        shop.execute("INSERT INTO b VALUES (2, 'end')")
        running.wait(lambda: '{"id": 2}' in table_of(records_of(kafka, topic)), "the last row")
        values = [value for _, value in records_of(kafka, topic)]
    ops = [None if value is None else value["op"] for value in values]
    assert ops == ["c", "u", "d", None, "c"]
    update = values[1] or {}
    assert (update["before"], update["after"]["v"][0]) == (None, "y")


def test_a_large_event_of_the_outbox_becomes_a_dead_letter(
    kafka: Kafka, name: str, tmp_path: Path, database: sqlite3.Connection
) -> None:
    database.execute(
        "CREATE TABLE outbox (id INTEGER PRIMARY KEY, aggregatetype, aggregateid, type, payload)"
    )
    definition = sqlite_definition(
        name,
        tmp_path,
        on_bad_row="dead-letter",
        transactions=True,
        outbox={"table": "outbox", "topic_prefix": name},
    )
    with RunningWorker(definition, kafka) as running:
        running.wait_for_snapshots()
        rows = [(1, "{}"), (2, LARGE), (3, "{}")]
        database.execute("BEGIN")
        database.executemany("INSERT INTO outbox VALUES (?, 'order', '7', 'placed', ?)", rows)
        database.execute("COMMIT")
        topic = f"{name}.order"
        running.wait(lambda: running.worker.written >= 3, "the events")
    assert len(list(read_to_end(kafka, "tests", topic))) == 2
    ((_, value, headers),) = letters_of(kafka, f"{name}.dlq")
    assert value["after"]["id"] == 2
    assert headers["source.topic"] == topic


def test_limits_of_a_topic_are_those_of_its_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = {
        "max.message.bytes": "1000",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": "60000",
        "message.timestamp.after.max.ms": "60000",
    }
    monkeypatch.setattr(Kafka, "topic_configs", lambda *_: configs)
    limits = Limits(Kafka("unused"), "tests")
    unused = LibrdkafkaProducer.__new__(LibrdkafkaProducer)
    now = time.time_ns() // 1_000_000

    def reason(age_ms: int) -> str | None:
        return limits.reason(Record("t", b"k", b"v", now - age_ms), unused)

    assert reason(0) is None
    assert "message.timestamp.before.max.ms" in (reason(120_000) or "")
    assert "message.timestamp.after.max.ms" in (reason(-120_000) or "")
    configs["message.timestamp.type"] = "LogAppendTime"
    assert reason(120_000) is None
