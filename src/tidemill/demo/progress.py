"""Define the events that the demo reports while it runs. The listener decides how to show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemill.demo.check import Check
from tidemill.demo.database.editor import EditProgress
from tidemill.demo.events import Lateness
from tidemill.demo.flights import Stretch
from tidemill.demo.replay import ReplayProgress
from tidemill.demo.results import Results
from tidemill.spark.pipelines.progress import QueryStatus


@dataclass(frozen=True, slots=True)
class FlightsLoaded:
    """The reports are ready to be sent.

    Attributes:
        stretch: the days.
        counts: the number of reports of each kind.
        lateness: the lateness of the reports about flights.
    """

    stretch: Stretch
    counts: Mapping[str, int]
    lateness: Lateness


@dataclass(frozen=True, slots=True)
class BrokerReady:
    """A broker answers. ``pid`` and ``data_dir`` are set if the demo has started it."""

    address: str
    seconds: float
    pid: int | None = None
    data_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class TopicsReady:
    """The demo's topics exist.

    Attributes:
        created: names of the created topics: first the demo's input, then its results.
        deleted: names of the topics of an earlier run that were deleted.
        captured: names of the topics of the captured tables.
    """

    created: Sequence[str]
    deleted: Sequence[str]
    captured: Sequence[str]


@dataclass(frozen=True, slots=True)
class DatabaseReady:
    """The tables are in the database.

    Attributes:
        description: the database, without a password.
        rows: the number of rows of each table.
        edits: the number of edits that will follow.
    """

    description: str
    rows: Mapping[str, int]
    edits: int


@dataclass(frozen=True, slots=True)
class SparkStarting:
    """A JVM starts, which takes some seconds.

    Attributes:
        log_file: Spark's log.
        index: the folder of the search index; None if its package is not installed.
        how_to_install: the command that installs the package.
    """

    log_file: Path
    index: Path | None
    how_to_install: str


@dataclass(frozen=True, slots=True)
class QueriesStarting:
    """Some of the queries have started. Reported several times a second."""

    started: int
    queries: int


@dataclass(frozen=True, slots=True)
class PipelineStarted:
    """All queries run and wait for records."""

    spark_version: str
    java: str
    seconds: float
    queries: int


@dataclass(frozen=True, slots=True)
class Running:
    """The replay or the pipeline has made progress. Reported several times a second.

    Attributes:
        replay: the replayer's progress.
        queries: the status of each query.
        results: the results that were published so far.
        edits: the progress of the edits.
    """

    replay: ReplayProgress
    queries: Sequence[QueryStatus]
    results: Results
    edits: EditProgress


@dataclass(frozen=True, slots=True)
class Replayed:
    """The broker has acknowledged all reports, and all edits are in the topics."""

    replay: ReplayProgress
    edits: EditProgress


@dataclass(frozen=True, slots=True)
class Checking:
    """The pipeline has finished. The demo now computes the results from the data set."""

    results: int


@dataclass(frozen=True)
class DemoReport:
    """The result of a run.

    Attributes:
        stretch: the days that were replayed.
        bootstrap_servers: the brokers' address.
        database: the kind of database.
        checks: the comparison of each query's records with the expected ones, and of each table.
        results: the published results.
        replay: the replayer's totals.
        edits: the totals of the edits.
        queries: the last status of each query.
        stored: the number of records in each input topic, from its end offsets.
        sent: the number of records that were sent to each input topic.
        folder: the folder of data and logs. A temporary one is kept if the result is not ok.
        seconds: the duration since the start of the broker.
    """

    stretch: Stretch
    bootstrap_servers: str
    database: str
    checks: Sequence[Check]
    results: Results
    replay: ReplayProgress
    edits: EditProgress
    queries: Sequence[QueryStatus]
    stored: Mapping[str, int]
    sent: Mapping[str, int]
    folder: Path
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether all records are equal, no row was too late, and the topics hold what was sent."""
        return (
            bool(self.checks)
            and all(check.ok for check in self.checks)
            and self.late_rows == 0
            and self.edits.delivered == self.edits.total
            and all(self.stored.get(topic) == count for topic, count in self.sent.items())
        )

    @property
    def expected(self) -> int:
        """The number of expected records."""
        return sum(check.expected for check in self.checks)

    @property
    def late_rows(self) -> int:
        """The number of rows that were too late for their window or join, and count nowhere."""
        return sum(status.late_rows for status in self.queries)


@dataclass(frozen=True, slots=True)
class KeptRunning:
    """The check is complete. Broker and pipeline continue until they are interrupted."""

    address: str


@dataclass(frozen=True, slots=True)
class Stopping:
    """The demo stops the pipeline, the JVM and the broker."""


Event = (
    FlightsLoaded
    | BrokerReady
    | DatabaseReady
    | TopicsReady
    | SparkStarting
    | QueriesStarting
    | PipelineStarted
    | Running
    | Replayed
    | Checking
    | DemoReport
    | KeptRunning
    | Stopping
)

Listener = Callable[[Event], None]
"""A function that receives the events. It is called in the thread that runs the demo."""
