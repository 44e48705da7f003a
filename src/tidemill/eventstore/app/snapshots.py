"""Snapshots of aggregates: states that are kept, so that a long stream is not replayed each time.

A snapshot is derived from the log, like the index: it is kept in a file of this machine and never
in the log, so it can be deleted at any time, also to forget a person's data.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from tidemill.eventstore.write_ahead import write_ahead

State = TypeVar("State")
_BUSY_S = 10.0
_log = logging.getLogger("tidemill.eventstore")

_TABLE = """
CREATE TABLE IF NOT EXISTS snapshot (
    stream TEXT PRIMARY KEY, schema INTEGER NOT NULL, version INTEGER NOT NULL,
    position INTEGER NOT NULL, time_ms INTEGER NOT NULL, event_id TEXT NOT NULL, state BLOB NOT NULL
) WITHOUT ROWID
"""


class Snapshot(NamedTuple):
    """A state behind an event.

    Attributes:
        schema: the version of the code's state.
        version: the version of the stream.
        position: the position of its last event.
        time_ms: the latest time of its events.
        event_id: the id of its last event, which must still be in the stream.
        state: the encoded state.
    """

    schema: int
    version: int
    position: int
    time_ms: int
    event_id: str
    state: bytes


class SnapshotFile:
    """Keeps the last snapshot of each stream in a SQLite file, for all threads of a process.

    Processes of a machine can share the file.

    Args:
        path: the file; without it, the snapshots are in memory.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(
            str(path) if path is not None else ":memory:",
            timeout=_BUSY_S,
            isolation_level=None,
            check_same_thread=False,
        )
        # It is derived: losing the last snapshots in a power cut costs a replay.
        write_ahead(self._db, _BUSY_S)
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("PRAGMA secure_delete = ON")
        self._db.execute(_TABLE)

    def get(self, stream: str) -> Snapshot | None:
        """Return the snapshot of a stream, or None."""
        with self._lock:
            row = self._db.execute(
                "SELECT schema, version, position, time_ms, event_id, state FROM snapshot"
                " WHERE stream = ?",
                (stream,),
            ).fetchone()
        return Snapshot(*row) if row is not None else None

    def put(self, stream: str, made: Snapshot) -> None:
        """Keep a snapshot instead of an older one of its stream, or of another schema version."""
        with self._lock:
            self._db.execute(
                "INSERT INTO snapshot VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (stream) DO UPDATE"
                " SET schema = excluded.schema, version = excluded.version,"
                " position = excluded.position, time_ms = excluded.time_ms,"
                " event_id = excluded.event_id, state = excluded.state"
                " WHERE excluded.version > version OR excluded.schema <> schema",
                (stream, *made),
            )

    def delete(self, stream: str) -> None:
        """Delete the snapshot of a stream; its bytes are overwritten."""
        with self._lock:
            self._db.execute("DELETE FROM snapshot WHERE stream = ?", (stream,))

    def clear(self) -> int:
        """Delete all snapshots, e.g. because a subject is forgotten. Return how many there were."""
        with self._lock:
            return self._db.execute("DELETE FROM snapshot").rowcount

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


@dataclass
class SnapshotPolicy(Generic[State]):
    """The choice when snapshots are made, and how a state becomes bytes.

    Attributes:
        kind: the class of the state.
        every: make one when so many events came since the last.
        schema: the version of the state's shape and of its ``apply`` methods. Raise it when one
            of them changes; snapshots of other versions are ignored.
        file: where they are kept.
        encode: makes bytes of a state; by default pydantic does, which knows dataclasses.
        decode: makes a state of bytes.
    """

    kind: Any
    every: int = 100
    schema: int = 1
    file: SnapshotFile = field(default_factory=SnapshotFile)
    encode: Callable[[State], bytes] | None = None
    decode: Callable[[bytes], State] | None = None

    def __post_init__(self) -> None:
        if self.encode is None or self.decode is None:
            adapter = TypeAdapter(self.kind)
            self.encode, self.decode = adapter.dump_json, adapter.validate_json

    def find(self, stream: str) -> tuple[Snapshot, State] | None:
        """Return the last snapshot of a stream with its state; None if there is none to use."""
        assert self.decode is not None
        found = self.file.get(stream)
        if found is None or found.schema != self.schema:
            return None
        try:
            return found, self.decode(found.state)
        except ValidationError as error:
            _log.warning("snapshot of %s is ignored, its state is invalid: %s", stream, error)
            return None

    def keep(self, stream: str, state: State, last: Snapshot) -> None:
        """Keep a state. A failure is logged: without the snapshot, the stream is replayed.

        Args:
            last: the place of the state, without its bytes.
        """
        assert self.encode is not None
        with contextlib.suppress(sqlite3.ProgrammingError):  # closed meanwhile
            try:
                made = last._replace(schema=self.schema, state=self.encode(state))
                self.file.put(stream, made)
            except sqlite3.OperationalError as error:
                _log.warning("no snapshot of %s: %s", stream, error)
