"""Run the capture of the demo's database: ``tidemill source run`` as a child process.

The definition is stored in ``tidemill.sources`` like that of any source, so ``tidemill source
describe demo`` shows it. This module must not know rows, edits or Spark.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import Board, BoardFollower, BoardWriter, create_topic
from tidemill.connect.cdc.definition import Definition
from tidemill.connect.cdc.topics import SOURCES, state_topic
from tidemill.demo.database.postgres import PostgresDatabase
from tidemill.demo.database.registry import AIRCRAFT, AIRLINES
from tidemill.demo.database.sqlite import SqliteDatabase
from tidemill.demo.database.tables import Tables
from tidemill.demo.topics import CAPTURED_CONFIG, SOURCE, captured_topic
from tidemill.errors import SettingsError, TidemillError
from tidemill.local.processes import ChildProcess

SQLITE = "sqlite"
_POSTGRES = ("postgres://", "postgresql://")


class CaptureFailedError(TidemillError):
    """The capture of the demo's database has failed."""


class Database(Protocol):
    """A database that the demo can use."""

    @property
    def kind(self) -> str:
        """The kind of source."""

    @property
    def schema(self) -> str:
        """The schema of the tables."""

    @property
    def description(self) -> str:
        """The database as lines name it, without a password."""

    @property
    def options(self) -> dict[str, Any]:
        """The options of the database in the definition of a source."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables that ``options`` refers to."""

    def prepare(self, *, reset: bool) -> None:
        """Create what the tables need; ``reset`` drops that of an earlier run first."""

    def open(self) -> Tables:
        """Connect. Use the result in one thread."""

    def drop(self) -> None:
        """Drop everything of the demo."""


def database_of(given: str, folder: Path) -> Database:
    """Return the database that the user has chosen: ``sqlite``, or the URL of a PostgreSQL server.

    Raises:
        SettingsError: it is neither.
    """
    if given == SQLITE:
        return SqliteDatabase(folder / "registry.db")
    if given.startswith(_POSTGRES):
        return PostgresDatabase(given)
    raise SettingsError(
        "invalid database: use sqlite, or the URL of a PostgreSQL server",
        hint="For example --database postgresql://tidemill@localhost/shop",
    )


def forget_source(bootstrap_servers: str) -> None:
    """Delete the definition and the state of the source of an earlier run, if there are any."""
    kafka = Kafka(bootstrap_servers)
    create_topic(kafka, SOURCES)
    board = Board.read(kafka, SOURCES)
    if SOURCE in board.definitions:
        writer = BoardWriter(kafka, SOURCES)
        writer.forget(SOURCE, board)
        writer.flush()
    kafka.delete_topics("tidemill-demo", [state_topic(SOURCE)])


class RunningCapture:
    """The worker that captures the tables. Use it as a context manager, from the main thread.

    At the end of the block, the worker has ended, and the source is forgotten at the brokers.

    Attributes:
        log_file: the worker's log.
        last_error: the error after which the worker tries again, when ``check`` was called last.
    """

    def __init__(self, bootstrap_servers: str, database: Database, folder: Path) -> None:
        self.log_file = folder / "capture.log"
        self.last_error = ""
        self._servers = bootstrap_servers
        self._kafka = Kafka(bootstrap_servers)
        self._database = database
        self._process: ChildProcess | None = None
        self._follower: BoardFollower | None = None

    @property
    def topics(self) -> Mapping[str, str]:
        """The topic of each table."""
        return {
            table: captured_topic(self._database.schema, table) for table in (AIRLINES, AIRCRAFT)
        }

    def check(self) -> None:
        """Check that the worker captures.

        Raises:
            CaptureFailedError: it has ended, or waits for the user.
        """
        assert self._process is not None, "not started"
        assert self._follower is not None
        self._process.check_running()
        self._follower.poll(0)
        status = self._follower.board.statuses.get(SOURCE, {})
        self.last_error = str(status.get("error") or "")
        if status.get("phase") == "failed":
            raise CaptureFailedError(
                f"the capture failed: {self.last_error}",
                hint=f"{status.get('hint', '')} Its log is {self.log_file}.".strip(),
            )

    def __enter__(self) -> Self:
        self._follower = BoardFollower(self._kafka, SOURCES)
        writer = BoardWriter(self._kafka, SOURCES)
        writer.define(
            Definition(
                name=SOURCE,
                kind=self._database.kind,
                tables=[f"{self._database.schema}.{table}" for table in (AIRLINES, AIRCRAFT)],
                managed=False,
                topic_configs=dict(CAPTURED_CONFIG),
                database=self._database.options,
            )
        )
        writer.flush()
        self._process = ChildProcess(
            "the worker of the capture",
            ["source", "run", SOURCE, "-b", self._servers],
            self.log_file,
            self.log_file.with_suffix(".out"),
            environment=self._database.environment,
            error=CaptureFailedError,
        )
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with contextlib.ExitStack() as stack:  # each step, also if another one fails
            if self._follower is not None:
                stack.callback(self._follower.close)
            stack.enter_context(_unless_failing(error))
            stack.callback(forget_source, self._servers)
            if self._process is not None:
                stack.callback(self._process.stop)


@contextlib.contextmanager
def _unless_failing(error: BaseException | None) -> Iterator[None]:
    """Suppress an error of the clean-up if the block has failed: the first one is the reason."""
    try:
        yield
    except TidemillError:
        if error is None:
            raise
