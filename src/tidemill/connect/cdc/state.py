"""The state of a worker: position, snapshots, open transaction.

It is stored with the changes, in the same Kafka transaction. So are the notes of the source, each
as a record of its own, because they change seldom. Must not know: a client or a database.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tidemill.connect.cdc.contract import Position
from tidemill.connect.cdc.errors import CaptureError

VERSION = 1
KEY = b"state"
_NOTE = b"note/"
_MOST_ACCEPTED = 1000


@dataclass(slots=True)
class TableProgress:
    """The progress of the snapshot of one table.

    Attributes:
        table: its id.
        after: key of the last row that was written; None: none yet.
        key: names of the columns of this key.
        rows: rows that were written.
        estimate: about how many rows there are, 0 if unknown.
        resync: whether keys of the topic that the table lacks are deleted at the end.
        why: why it is read again; an empty string for a first snapshot.
    """

    table: str
    after: list[Any] | None = None
    key: list[str] | None = None
    rows: int = 0
    estimate: int = 0
    resync: bool = False
    why: str = ""


@dataclass(slots=True)
class WorkerState:
    """All that a worker needs to continue where its predecessor stopped.

    Attributes:
        position: resume here; None: the source has not started yet.
        snapshots: tables that are still to be read, the present one first.
        snapshot_rows: rows that all snapshots together have written.
        handled: by command, the id of the last one that was carried out.
        transaction: counters of the transaction that is in progress, for its metadata.
        accepted: ids of bad rows that the user has accepted as dead letters, the latest last.
        dead_letters: rows that were written to the dead-letter topic.
    """

    position: Position | None = None
    snapshots: list[TableProgress] = field(default_factory=list)
    snapshot_rows: int = 0
    handled: dict[str, str] = field(default_factory=dict)
    transaction: dict[str, Any] | None = None
    accepted: list[str] = field(default_factory=list)
    dead_letters: int = 0

    def encode(self) -> bytes:
        """Return the state as a record's value."""
        return json.dumps({"version": VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, value: bytes | None) -> WorkerState:
        """Return the state of a record; without a record, that of a new source.

        Raises:
            CaptureError: a newer version wrote it, or it is damaged.
        """
        if value is None:
            return cls()
        try:
            values = json.loads(value)
            if values.pop("version") != VERSION:
                raise CaptureError("the state of the source was written by a newer tidemill")
            values["snapshots"] = [TableProgress(**each) for each in values["snapshots"]]
            return cls(**values)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CaptureError(f"the stored state of the source is damaged: {error}") from error

    def accept(self, row: str | None) -> bool:
        """Take note that the user has accepted a bad row, and return whether that is new."""
        if row is None or row in self.accepted:
            return False
        self.accepted = [*self.accepted[1 - _MOST_ACCEPTED :], row]
        return True

    def request(self, table: str, *, resync: bool = False, why: str = "") -> None:
        """Put a table into the queue of snapshots. One that is there starts again."""
        there = [each for each in self.snapshots if each.table == table]
        again = TableProgress(table, resync=resync or any(each.resync for each in there))
        again.why = why or next((each.why for each in there), "")
        others = [each for each in self.snapshots if each.table != table]
        self.snapshots = [*others, again]  # in one step: another thread reads it


def note_key(name: str) -> bytes:
    """Return the key of the record with a source's note."""
    return _NOTE + name.encode()


def notes_of(table: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return the notes among the records of a state topic, by name."""
    return {
        key.removeprefix(_NOTE).decode(): value.decode()
        for key, value in table.items()
        if key.startswith(_NOTE)
    }
