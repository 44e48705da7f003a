"""The demo's tables are captured, and its edits arrive before the reports that need them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.demo.database.test_tables import REGISTRY, by_key
from tests.demo.support import command_of
from tests.support.broker_process import BrokerProcess
from tests.support.postgres import LOGICAL, postgres
from tests.support.processes import poll_until, skip_if_missing
from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import Board
from tidemill.connect.cdc.topics import SOURCES
from tidemill.demo.database.capture import (
    CaptureFailedError,
    Database,
    RunningCapture,
    database_of,
)
from tidemill.demo.database.delivery import Delivery
from tidemill.demo.database.editor import Editor
from tidemill.demo.database.postgres import SCHEMA
from tidemill.demo.database.registry import AIRCRAFT
from tidemill.demo.database.tables import DatabaseError
from tidemill.demo.following import Task
from tidemill.demo.topics import create_topics
from tidemill.errors import SettingsError


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process.bootstrap


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("psycopg")
    with skip_if_missing(), postgres(tmp_path_factory.mktemp("postgres") / "log", LOGICAL) as dsn:
        fields = dict(each.split("=", 1) for each in dsn.split())
        yield (
            f"postgresql://{fields['user']}@/{fields['dbname']}"
            f"?host={fields['host']}&port={fields['port']}"
        )


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def database(request: Any, tmp_path: Path) -> Database:
    given = "sqlite" if request.param == "sqlite" else request.getfixturevalue("server")
    return database_of(given, tmp_path)


@pytest.mark.slow
def test_rows_and_edits_arrive_before_the_reports_that_need_them(
    broker: str, database: Database, tmp_path: Path
) -> None:
    database.prepare(reset=False)
    tables = database.open()
    tables.create(REGISTRY)
    with ExitStack() as stack:
        stack.callback(database.drop)
        capture = RunningCapture(broker, database, tmp_path)
        create_topics(broker, capture.topics.values()) if database.kind == "sqlite" else None
        stack.enter_context(capture)
        delivery = Delivery(broker, capture.topics, REGISTRY)
        stack.callback(delivery.close)
        editor = Editor(database.open, delivery, REGISTRY.edits, lead=0, stalled_s=30)
        editing = stack.enter_context(Task("editor", editor.run))
        poll_until(lambda: editor.is_loaded, 60, "the first rows are in the topics")
        for edit in REGISTRY.edits:
            editor.wait_for(edit.time, threading.Event())
            arrived = delivery.rows[edit.table]
            if edit.kind == "delete":
                assert edit.key not in arrived
            else:
                assert arrived[edit.new_key]["changed_at"] == edit.time
        poll_until(lambda: not editing.is_running, 10, "the editor has finished")
        editing.check()
        capture.check()
        stored = by_key(tables)
        assert (delivery.rows["aircraft"], delivery.rows["airlines"]) == stored
        assert stored == REGISTRY.at_the_end()
        tables.close()
    assert not Board.read(Kafka(broker), SOURCES).definitions


@pytest.mark.slow
def test_a_worker_that_fails_or_ends_is_noticed_with_its_reason(
    broker: str, tmp_path: Path
) -> None:
    database = database_of("sqlite", tmp_path)
    (tmp_path / "registry.db").write_text("this is not a database" * 99)
    with RunningCapture(broker, database, tmp_path) as capture:
        poll_until(lambda: "database" in _error(capture), 60, "the failure is published")
        [worker] = [
            child for child in psutil.Process().children() if "source run demo" in command_of(child)
        ]
        worker.kill()
        with pytest.raises(CaptureFailedError, match="exit code -9") as raised:
            poll_until(lambda: _error(capture) == "ended", 30, "the worker has ended")
        assert "capture.log" in raised.value.hint


def _error(capture: RunningCapture) -> str:
    capture.check()
    return capture.last_error


@pytest.mark.parametrize("given", ["mysql://u:secret@db/x", "oracle", ""])
def test_an_unknown_database_is_refused_without_its_password(given: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as raised:
        database_of(given, tmp_path)
    assert "secret" not in str(raised.value)
    assert "postgresql://" in raised.value.hint


def test_a_malformed_url_is_refused_without_its_password(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(DatabaseError) as raised:
        database_of("postgresql://u:secret@[host/x", tmp_path)
    assert "secret" not in str(raised.value)


@pytest.mark.slow
def test_what_an_earlier_run_left_in_the_server_is_not_touched_without_reset(
    server: str, tmp_path: Path
) -> None:
    database = database_of(server, tmp_path)
    database.prepare(reset=False)
    with pytest.raises(DatabaseError, match=f"the schema {SCHEMA} of an earlier run") as raised:
        database.prepare(reset=False)
    assert "--reset" in raised.value.hint
    database.prepare(reset=True)
    tables = database.open()
    tables.create(REGISTRY)
    assert len(tables.rows(AIRCRAFT)) == 2
    tables.close()
    database.drop()
    database.prepare(reset=False)
    database.drop()
