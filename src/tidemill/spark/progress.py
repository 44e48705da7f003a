"""How a pipeline's queries are doing: one record per query, in a compacted topic that all can read.

The topic is ``tidemill.pipelines``, its key ``<pipeline>/<query>``, its value a JSON object of
``QueryStatus``. Consoles, tests and the command line follow it. Must not know: Spark's session,
checkpoints, the command line.
"""

from __future__ import annotations

import json
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

TOPIC = "tidemill.pipelines"
TOPIC_CONFIG: Mapping[str, str] = {"cleanup.policy": "compact"}

APPENDED = "tidemill_appended"
"""Observed metric of a batch: min and max of the time at which its records were appended."""

RECENT_BATCHES = 200
HEARTBEAT_S = 10.0
"""Statuses of a running pipeline are written at least as often."""

SILENT_S = 60.0
"""Whoever has not been heard of for so long does not run any more, whatever it last said."""

HISTORY_MS = 600_000
"""Records older than that when their batch begins are being replayed: how long they took to reach
the result says nothing of the pipeline."""

_NO_WATERMARK = "1970-01-01T00:00:00"  # what Spark tells until there is one


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One topic of a query.

    Attributes:
        lag: records that it has not read yet; -1 where that is not known.
        read: up to where it has been read: the sum of its partitions' offsets.
    """

    topic: str
    lag: int = -1
    read: int = 0


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """One query at a moment. Times are ISO 8601 (UTC), durations milliseconds.

    Attributes:
        state: starting, running, waiting (to be restarted), failed, stopped or done.
        mode: output mode.
        sink: what it writes to.
        batch: number of the last batch; -1 before the first.
        rows_per_second: of the last batch that had rows.
        rows: read since the start of the run.
        late_rows: dropped because they came behind the watermark, since the start of the run.
        watermark: event time behind which rows are late, or None: as yet, or for ever.
        has_watermark: it has one, or will: what it keeps in state waits for that.
        state_rows: rows kept in state.
        batch_ms: how long the last batch with rows took.
        latency_p50_ms: from a record's append to its result, over recent batches; None while
            history is replayed.
        restarts: after failures, since the runner's start.
        error: the last failure, in a line or two.
        runner: who runs it: host and folder of its checkpoints.
        updated: when this was written.
    """

    pipeline: str
    query: str
    state: str
    mode: str = ""
    sink: str = ""
    batch: int = -1
    rows_per_second: float = 0.0
    rows: int = 0
    late_rows: int = 0
    watermark: str | None = None
    has_watermark: bool = False
    state_rows: int = 0
    batch_ms: int = 0
    latency_p50_ms: int | None = None
    latency_p99_ms: int | None = None
    restarts: int = 0
    error: str | None = None
    sources: tuple[SourceStatus, ...] = ()
    runner: str = ""
    updated: str = ""

    @property
    def key(self) -> str:
        """Of its record."""
        return f"{self.pipeline}/{self.query}"

    @property
    def goes_on(self) -> bool:
        """Whether it is not over, as far as it was told."""
        return self.state in ("starting", "running", "waiting")

    def is_lost(self, now: datetime) -> bool:
        """Whether it says that it goes on, and has not been heard of for too long."""
        if not self.goes_on or not self.updated:
            return False
        return (now - datetime.fromisoformat(self.updated)).total_seconds() > SILENT_S

    def encode(self) -> bytes:
        """The record's value."""
        return json.dumps(asdict(self)).encode()


def decode(value: bytes) -> QueryStatus:
    """A record's value; fields that a newer tidemill has added are passed over.

    Raises:
        ValueError: it is no status.
    """
    content = json.loads(value)
    if not isinstance(content, dict) or not {"pipeline", "query", "state"} <= set(content):
        raise ValueError(f"no status of a query: {value[:80]!r}")
    known = {each.name for each in fields(QueryStatus)}
    given = {name: each for name, each in content.items() if name in known}
    given["sources"] = tuple(
        SourceStatus(str(each["topic"]), int(each.get("lag", -1)), int(each.get("read", 0)))
        for each in content.get("sources", ())
    )
    return QueryStatus(**given)


@dataclass
class Meter:
    """Sums up the progress that Spark reports of one query, batch after batch, over its restarts.

    Attributes:
        lags: by topic: records not read yet; -1 where that is not known.
        read: by topic: sum of the offsets up to which batches have read it.
        updates: how many were taken in, idle ones among them.
        Others: as of ``QueryStatus``.
    """

    rows: int = 0
    late_rows: int = 0
    batch: int = -1
    rows_per_second: float = 0.0
    batch_ms: int = 0
    watermark: str | None = None
    has_watermark: bool = False
    state_rows: int = 0
    lags: dict[str, int] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    updates: int = 0
    _latencies: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_BATCHES))

    def take_all(self, updates: Iterable[Mapping[str, Any]]) -> None:
        """Take updates in, each once, oldest first."""
        for each in updates:
            self.take(each)

    def take(self, progress: Mapping[str, Any]) -> None:
        """Take in an update, as Spark's JSON has it."""
        self.updates += 1
        self._lags(progress)
        took = progress.get("durationMs") or {}
        # An idle query tells of its next batch, again and again, before there is one.
        if "addBatch" not in took:
            return
        operators: Sequence[Mapping[str, Any]] = progress.get("stateOperators") or ()
        self.batch = int(progress["batchId"])
        self.late_rows += sum(int(o.get("numRowsDroppedByWatermark", 0)) for o in operators)
        self.state_rows = sum(int(o.get("numRowsTotal", 0)) for o in operators)
        watermark = (progress.get("eventTime") or {}).get("watermark")
        self.has_watermark = self.has_watermark or watermark is not None
        if watermark and not watermark.startswith(_NO_WATERMARK):
            self.watermark = watermark
        rows = int(progress.get("numInputRows", 0))
        if rows:
            self.rows += rows
            self.batch_ms = int(took.get("triggerExecution", 0))
            self.rows_per_second = round(1000 * rows / max(self.batch_ms, 1), 1)
            self._latency(progress)

    def percentile(self, share: float) -> int | None:
        """Of recent batches' latencies, in milliseconds; None where there are none."""
        if not self._latencies:
            return None
        if len(self._latencies) == 1:
            return self._latencies[0]
        cuts = statistics.quantiles(self._latencies, n=100, method="inclusive")
        return int(cuts[min(98, round(share * 100) - 1)])

    def _latency(self, progress: Mapping[str, Any]) -> None:
        began = _millis(str(progress["timestamp"]))
        ended = began + self.batch_ms
        for name, metrics in (progress.get("observedMetrics") or {}).items():
            if not name.startswith(APPENDED) or metrics is None:
                continue
            for bound in ("newest", "oldest"):
                appended = metrics.get(bound)
                if appended is not None and 0 <= began - int(appended) + 1000 < HISTORY_MS:
                    self._latencies.append(max(0, ended - int(appended)))

    def _lags(self, progress: Mapping[str, Any]) -> None:
        for source in progress.get("sources") or ():
            end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
            for topic, read in end.items():
                self.read[topic] = sum(read.values())
                newest = latest.get(topic)
                self.lags[topic] = (
                    -1
                    if newest is None
                    else sum(max(0, offset - read.get(p, 0)) for p, offset in newest.items())
                )


def now_text() -> str:
    """The time, as statuses have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _millis(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _offsets(given: Any) -> dict[str, dict[str, int]]:
    """Offsets as a source reports them: ``{topic: {partition: offset}}``, perhaps as text."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return {}
    if not isinstance(given, dict):
        return {}
    return {
        topic: {str(p): int(o) for p, o in partitions.items()}
        for topic, partitions in given.items()
        if isinstance(partitions, dict) and not topic.startswith("#")
    }
