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
    """The reports are ready to be sent."""

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
    """The demo's topics exist."""

    created: Sequence[str]
    deleted: Sequence[str]
    captured: Sequence[str]


@dataclass(frozen=True, slots=True)
class DatabaseReady:
    """The tables are in the database, which ``description`` names without a password."""

    description: str
    rows: Mapping[str, int]
    edits: int


@dataclass(frozen=True, slots=True)
class PageReady:
    """A page in the browser shows the demo. It is there until the demo ends."""

    url: str


@dataclass(frozen=True, slots=True)
class SparkStarting:
    """A JVM starts, which takes some seconds. Without its package there is no ``index``."""

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
    """The replay or the pipeline has made progress. Reported several times a second."""

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

    ``stored`` and ``sent`` count the records of each input topic: by its end offsets, and as sent.
    A temporary ``folder`` is kept if the result is not ok.
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
    page: str


@dataclass(frozen=True, slots=True)
class Stopping:
    """The demo stops the pipeline, the JVM and the broker."""


Event = (
    FlightsLoaded
    | BrokerReady
    | DatabaseReady
    | TopicsReady
    | PageReady
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
