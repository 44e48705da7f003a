"""A broker that the tests of connectors share, and a worker that runs in this process."""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.processes import poll_until
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import read_to_end
from tidemill.connect.cdc.definition import Definition, parse
from tidemill.connect.cdc.registry import source_class
from tidemill.connect.cdc.worker import Worker

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture
def kafka(broker: BrokerProcess) -> Kafka:
    return Kafka(broker.bootstrap)


@pytest.fixture
def name() -> str:
    """A name of a source that no other test uses."""
    return f"source{next(_NUMBERS)}"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    yield db
    db.close()


class Orders:
    """The orders to a worker in this process."""

    def __init__(self) -> None:
        self.stop = False
        self.wanted: list[tuple[str, str, str]] = []
        self.again: str | None = None
        self.accepted: str | None = None

    def should_stop(self) -> bool:
        return self.stop

    def snapshots(self, handled: dict[str, str]) -> list[tuple[str, str, str]]:
        return [each for each in self.wanted if handled.get(each[0]) != each[1]]

    def accepted_row(self) -> str | None:
        return self.accepted

    def resnapshot(self, handled: dict[str, str]) -> str | None:
        return None if handled.get("restart") == self.again else self.again


class RunningWorker:
    """A worker in a thread of this process. Use it as a context manager."""

    def __init__(self, definition: Definition, kafka: Kafka) -> None:
        self.orders = Orders()
        self.worker = Worker(definition, kafka, self.orders, source_class(definition.kind))
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:
            self.error = error

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition while the worker runs."""

        def met() -> bool:
            if self.error is not None:
                raise self.error
            return condition()

        poll_until(met, 60, what)

    def wait_for_snapshots(self) -> None:
        self.wait(
            lambda: self.worker.phase == "running" and not self.worker.state.snapshots,
            "the snapshots end",
        )

    def wait_for_end(self) -> None:
        """Wait until the worker has ended by itself."""
        self._thread.join(60)
        assert not self._thread.is_alive()

    def __enter__(self) -> RunningWorker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.orders.stop = True
        self.wait_for_end()


def sqlite_definition(name: str, folder: Path, **more: Any) -> Definition:
    return parse(
        {"name": name, "kind": "sqlite", "database": {"path": str(folder / "shop.db")}, **more}
    )


Records = list[tuple[dict[str, Any], dict[str, Any] | None]]


def records_of(kafka: Kafka, topic: str) -> Records:
    """Return (key, value) of all committed records of a topic."""
    return [
        (json.loads(key or b"null"), None if value is None else json.loads(value))
        for key, value in read_to_end(kafka, "tests", topic)
    ]


def table_of(records: Records) -> dict[str, dict[str, Any]]:
    """Return the last row of each key, by the key's JSON."""
    rows: dict[str, dict[str, Any]] = {}
    for key, value in records:
        if value is None:
            rows.pop(json.dumps(key), None)
        elif value["op"] != "d":
            rows[json.dumps(key)] = value["after"]
    return rows


def rows_by_key(db: sqlite3.Connection, table: str, *key: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a table, by the JSON of their keys."""
    cursor = db.execute(f'SELECT * FROM "{table}"')
    names = [each[0] for each in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {json.dumps({name: row[name] for name in key}): row for row in rows}
