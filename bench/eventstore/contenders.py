"""Stores of events with the same few methods: tidemill's, and recorders of eventsourcing.

Must not know: what is measured.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from tidemill.eventstore.errors import ConflictError
from tidemill.eventstore.events import NewEvent
from tidemill.eventstore.store import Store

DATA = b'{"amount": 12, "currency": "EUR", "to": "account-4711", "text": "' + b"x" * 130 + b'"}'
"""The content of each event: 200 bytes."""


class Contender(Protocol):
    """A store. Streams are numbered."""

    def append(self, stream: int, version: int, count: int) -> bool:
        """Append behind a version; return False if the stream has another."""

    def version(self, stream: int) -> int:
        """Return the version of a stream, as a writer asks for it before it appends."""

    def read(self, stream: int) -> int:
        """Read a stream; return the number of its events."""

    def settle(self) -> None:
        """Wait until all is where it is read from."""

    def following(self) -> contextlib.AbstractContextManager[Callable[[], object]] | None:
        """Subscribe; what is yielded waits for the next event. None if that is not possible."""


class Tidemill:
    """A store in a topic.

    Args:
        address: ``bootstrap.servers``, topic and folder of the index, with commas.
    """

    def __init__(self, address: str) -> None:
        servers, topic, folder = address.split(",")
        self.store = Store(servers, topic, folder=folder)

    def append(self, stream: int, version: int, count: int) -> bool:
        events = [NewEvent("moved", DATA) for _ in range(count)]
        try:
            self.store.append(f"account-{stream}", events, expected=version)
        except ConflictError:
            return False
        return True

    def version(self, stream: int) -> int:
        return self.store.version(f"account-{stream}")

    def read(self, stream: int) -> int:
        return sum(1 for _ in self.store.read(f"account-{stream}"))

    def settle(self) -> None:
        self.store.wait_indexed()

    @contextlib.contextmanager
    def following(self) -> Iterator[Callable[[], object]]:
        with self.store.follow(after=self.store.position()) as following:
            yield lambda: next(following)


class Recorder:
    """An application recorder of eventsourcing."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._run = uuid.uuid4().int & ~0xFFFFFFFF
        recorder.create_table()

    def _id(self, stream: int) -> uuid.UUID:
        return uuid.UUID(int=self._run + stream)

    def append(self, stream: int, version: int, count: int) -> bool:
        from eventsourcing.persistence import IntegrityError, StoredEvent

        numbers = range(version + 1, version + 1 + count)
        events = [StoredEvent(self._id(stream), number, "moved", DATA) for number in numbers]
        try:
            self._recorder.insert_events(events)
        except IntegrityError:
            return False
        return True

    def version(self, stream: int) -> int:
        last = self._recorder.select_events(self._id(stream), desc=True, limit=1)
        return int(last[0].originator_version) if last else 0

    def read(self, stream: int) -> int:
        return len(self._recorder.select_events(self._id(stream)))

    def settle(self) -> None:
        """Do nothing: a recorder reads what it has inserted."""

    def following(self) -> contextlib.AbstractContextManager[Callable[[], object]] | None:
        try:
            subscription = self._recorder.subscribe(gt=self._recorder.max_notification_id())
        except NotImplementedError:
            return None
        return _subscribed(subscription)


@contextlib.contextmanager
def _subscribed(subscription: Any) -> Iterator[Callable[[], object]]:
    with subscription as events:
        yield lambda: next(events)


def sqlite(address: str) -> Recorder:
    """Return a recorder with SQLite in a file."""
    from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

    return Recorder(SQLiteApplicationRecorder(SQLiteDatastore(str(Path(address)))))


def postgresql(address: str) -> Recorder:
    """Return a recorder with PostgreSQL, whose dsn is given. It needs psycopg's pool."""
    from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore

    given = dict(part.split("=") for part in address.split())
    datastore = PostgresDatastore(
        given["dbname"],
        given["host"],
        given["port"],
        given["user"],
        "",
        pool_size=10,
        max_overflow=10,
    )
    return Recorder(PostgresApplicationRecorder(datastore))


CONTENDERS: dict[str, Callable[[str], Contender]] = {
    "tidemill": Tidemill,
    "SQLite": sqlite,
    "PostgreSQL": postgresql,
}
