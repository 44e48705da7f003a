"""What the demo tells while it runs, as data. Who listens decides how to show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemill.demo.check import Comparison, WindowFigures, WindowKey
from tidemill.demo.events import Lateness
from tidemill.demo.flights import Stretch
from tidemill.demo.pipeline import QueryProgress
from tidemill.demo.replay import ReplayProgress


@dataclass(frozen=True, slots=True)
class FlightsLoaded:
    """The reports of a stretch are ready to be sent."""

    stretch: Stretch
    departures: int
    arrivals: int
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
    """The demo's topics are there and empty; ``deleted`` were there before."""

    created: Sequence[str]
    deleted: Sequence[str]


@dataclass(frozen=True, slots=True)
class SparkStarting:
    """A JVM is being started, which takes some seconds."""

    log_file: Path


@dataclass(frozen=True, slots=True)
class PipelineStarted:
    """The query runs and waits for reports."""

    spark_version: str
    java: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Running:
    """Sent several times a second while reports are replayed and windows become final.

    Attributes:
        replay: the replayer's progress.
        query: the pipeline's progress.
        windows: all results so far, in the order of publication.
    """

    replay: ReplayProgress
    query: QueryProgress
    windows: Mapping[WindowKey, WindowFigures]


@dataclass(frozen=True, slots=True)
class Replayed:
    """All reports are acknowledged."""

    replay: ReplayProgress


@dataclass(frozen=True, slots=True)
class Checking:
    """The pipeline is done; the same figures are now computed from the data set."""

    results: int


@dataclass(frozen=True)
class DemoReport:
    """How it went.

    Attributes:
        stretch: what was replayed.
        bootstrap_servers: where.
        comparison: the pipeline's windows against those computed from the data set.
        windows: the pipeline's windows.
        replay: the replayer's totals.
        query: the pipeline's totals.
        stored: records that the log says it holds, per topic.
        sent: records that the replayer sent, per topic.
        repeated: results that were published more than once with equal figures.
        folder: of data and logs; a temporary one is kept if the result is not ok.
        seconds: all of it, from the start of the broker on.
    """

    stretch: Stretch
    bootstrap_servers: str
    comparison: Comparison
    windows: Mapping[WindowKey, WindowFigures]
    replay: ReplayProgress
    query: QueryProgress
    stored: Mapping[str, int]
    sent: Mapping[str, int]
    repeated: int
    folder: Path
    seconds: float

    @property
    def ok(self) -> bool:
        """Each window is equal, no report came too late, and the log holds what was sent."""
        return (
            self.comparison.all_equal
            and self.query.dropped_late == 0
            and all(self.stored.get(topic) == count for topic, count in self.sent.items())
        )


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
