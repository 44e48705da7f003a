"""What the demo tells while it runs, as data. Who listens decides how to show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemill.demo.check import Check
from tidemill.demo.events import Lateness
from tidemill.demo.flights import Stretch
from tidemill.demo.replay import ReplayProgress
from tidemill.demo.results import Results
from tidemill.spark.progress import QueryStatus


@dataclass(frozen=True, slots=True)
class FlightsLoaded:
    """The reports of a stretch are ready to be sent.

    Attributes:
        stretch: the days.
        counts: how many reports there are of each kind.
        lateness: of those about flights.
    """

    stretch: Stretch
    counts: Mapping[str, int]
    lateness: Lateness


@dataclass(frozen=True, slots=True)
class BrokerReady:
    """A broker answers; ``pid`` and ``data_dir`` only where the demo has started it."""

    address: str
    seconds: float
    pid: int | None = None
    data_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class TopicsReady:
    """The demo's topics are there; ``deleted`` were there before.

    Attributes:
        created: those that are sent to first, then those that are published to.
        deleted: of an earlier run.
        rows: how many rows the tables hold.
    """

    created: Sequence[str]
    deleted: Sequence[str]
    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SparkStarting:
    """A JVM is being started, which takes some seconds."""

    log_file: Path


@dataclass(frozen=True, slots=True)
class QueriesStarting:
    """Sent several times a second while queries are started, a few at a time."""

    started: int
    queries: int


@dataclass(frozen=True, slots=True)
class PipelineStarted:
    """All queries run and wait for reports."""

    spark_version: str
    java: str
    seconds: float
    queries: int


@dataclass(frozen=True, slots=True)
class Running:
    """Sent several times a second while reports are replayed and results come.

    Attributes:
        replay: the replayer's progress.
        queries: how the pipeline's queries are doing.
        results: what they have published so far.
    """

    replay: ReplayProgress
    queries: Sequence[QueryStatus]
    results: Results


@dataclass(frozen=True, slots=True)
class Replayed:
    """All reports are acknowledged."""

    replay: ReplayProgress


@dataclass(frozen=True, slots=True)
class Checking:
    """The pipeline is done; the same results are now computed from the data set."""

    results: int


@dataclass(frozen=True)
class DemoReport:
    """How it went.

    Attributes:
        stretch: what was replayed.
        bootstrap_servers: where.
        checks: each query's records against those computed from the data set.
        results: what was published.
        replay: the replayer's totals.
        queries: the pipeline's totals.
        stored: records that the log says it holds, per topic that was sent to.
        sent: records that were sent, per topic.
        folder: of data and logs; a temporary one is kept if the result is not ok.
        seconds: all of it, from the start of the broker on.
    """

    stretch: Stretch
    bootstrap_servers: str
    checks: Sequence[Check]
    results: Results
    replay: ReplayProgress
    queries: Sequence[QueryStatus]
    stored: Mapping[str, int]
    sent: Mapping[str, int]
    folder: Path
    seconds: float

    @property
    def ok(self) -> bool:
        """Each record is equal, no report came too late, and the log holds what was sent."""
        return (
            bool(self.checks)
            and all(check.ok for check in self.checks)
            and self.late_rows == 0
            and all(self.stored.get(topic) == count for topic, count in self.sent.items())
        )

    @property
    def expected(self) -> int:
        """How many records there should be."""
        return sum(check.expected for check in self.checks)

    @property
    def late_rows(self) -> int:
        """Rows that came too late for their window or their join, and count nowhere."""
        return sum(status.late_rows for status in self.queries)


@dataclass(frozen=True, slots=True)
class KeptRunning:
    """All is checked; broker and pipeline go on until they are interrupted."""

    address: str


@dataclass(frozen=True, slots=True)
class Stopping:
    """Pipeline, JVM and broker are being stopped."""


Event = (
    FlightsLoaded
    | BrokerReady
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
"""Called in the thread that runs the demo."""
