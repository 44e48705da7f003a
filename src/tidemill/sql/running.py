"""A statement that runs: its DuckDB, what it reads, its time limit, and its errors.

Must not know: how a statement is planned.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from tidemill.errors import TidemillError
from tidemill.sql.columns import Misfits
from tidemill.sql.database import reader, translated
from tidemill.sql.errors import QueryEndedError
from tidemill.sql.topics import Scan

BATCH_ROWS = 10_000
"""Rows of a record batch of a result."""
_ENDED = "the statement was cancelled, or took longer than its time limit"
_ENDED_HINT = "Read less, or raise the limit."
_INTERRUPT_S = 0.01
_CLOSE_S = 5.0


class Calls:
    """The calls of a database, which other threads can end.

    DuckDB forgets an interrupt that comes before it executes, so it is repeated until the call has
    ended; and it refuses to close a database amid a call.

    Args:
        cancelled: set when no more calls are to be made.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection, cancelled: threading.Event) -> None:
        self._database, self._cancelled = database, cancelled
        self._under_way = threading.RLock()

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Make calls, from one thread at a time.

        Raises:
            QueryEndedError: they were cancelled before.
        """
        with self._under_way:
            if self._cancelled.is_set():
                raise QueryEndedError(_ENDED, hint=_ENDED_HINT)
            yield

    def cancel(self) -> None:
        """End what is called, and refuse more calls; it does not wait for the end."""
        self._cancelled.set()
        threading.Thread(target=self._end, args=(lambda: None,), name="cancel", daemon=True).start()

    def close(self) -> None:
        """End what other threads call, and close the database."""
        self._cancelled.set()
        self._end(self._database.close, _CLOSE_S)

    def _end(self, then: Callable[[], None], seconds: float = math.inf) -> None:
        """Interrupt the calls of other threads until they have ended; do something then."""
        deadline = time.monotonic() + seconds
        while not self._under_way.acquire(timeout=_INTERRUPT_S):
            if time.monotonic() > deadline:
                return  # the database is freed when its call ends
            with contextlib.suppress(duckdb.ConnectionException):  # it has just been closed
                self._database.interrupt()
        try:
            then()
        finally:
            self._under_way.release()


class Running:
    """A statement that runs: its DuckDB, what it reads, and its time limit.

    Attributes:
        database: has the result.
        scans: the streams that it reads.
        misfits: the values that did not fit the columns.
        cancelled: set when it is to end.
        notes: what is worth knowing about the result.
        changed: how many rows were written; -1 if none is.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection, timeout_s: float | None) -> None:
        self.database = database
        self.scans: list[Scan] = []
        self.misfits = Misfits()
        self.cancelled = threading.Event()
        self.notes: list[str] = []
        self.changed = -1
        self._text = ""
        self._parameters: list[Any] = []
        self._relation: Any = None
        self._has_begun = False
        self._calls = Calls(database, self.cancelled)
        self._timer: threading.Timer | None = None
        if timeout_s is not None:
            self._timer = threading.Timer(timeout_s, self.cancel)
            self._timer.daemon = True
            self._timer.start()

    def prepare(self, text: str, parameters: Sequence[Any]) -> None:
        """Bind a statement. It begins when its first row is asked for."""
        self._text, self._parameters, self._has_begun = text, list(parameters), False
        self._relation = self.database.sql(text, params=self._parameters or None)

    @property
    def description(self) -> list[tuple[Any, ...]]:
        """The columns of the result, as in PEP 249."""
        return [] if self._relation is None else list(self._relation.description)

    @property
    def rows(self) -> duckdb.DuckDBPyConnection:
        """The result, for its rows as tuples."""
        if not self._has_begun:
            self._has_begun = True
            self.database.execute(self._text, self._parameters or None)
        return self.database

    def reader(self, rows: int) -> pa.RecordBatchReader:
        """Return the result as record batches, none of which is kept."""
        self._has_begun = True
        return reader(self._relation, rows)

    def cancel(self) -> None:
        """End the statement. What fetches its rows raises ``QueryEndedError``."""
        self._calls.cancel()

    def close(self) -> None:
        """Free everything."""
        if self._timer is not None:
            self._timer.cancel()
        self._calls.close()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Call DuckDB, and translate the errors."""
        try:
            with self._calls.call():
                yield
        except BaseException as error:
            found = self.translated(error)
            if found is error:
                raise
            raise found from error

    def translated(self, error: BaseException) -> BaseException:
        """Return an error as one of tidemill's.

        DuckDB looks at Python's signals, and makes another error of Ctrl-C.
        """
        if type(error) is RuntimeError and str(error) == "Query interrupted":
            return KeyboardInterrupt()
        if isinstance(error, TidemillError) or not isinstance(error, Exception):
            return error
        failure = next((scan.failure for scan in self.scans if scan.failure is not None), None)
        if failure is not None and not isinstance(failure, QueryEndedError):
            return failure
        if self.cancelled.is_set() or isinstance(error, duckdb.InterruptException):
            return QueryEndedError(_ENDED, hint=_ENDED_HINT)
        return translated(error)
