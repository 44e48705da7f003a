"""Define the status of a query, and sum it up from the progress that Spark reports.

Statuses are published in the compacted topic ``tidemill.pipelines``, one record per query: its key
is ``<pipeline>/<query>``, its value a JSON object with the fields of ``QueryStatus``. Consoles,
tests and the command line read it. Must not know: Spark's session, checkpoints, the command line.
"""

from __future__ import annotations

import json
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any

TOPIC = "tidemill.pipelines"
TOPIC_CONFIG: Mapping[str, str] = {"cleanup.policy": "compact", "segment.ms": "3600000"}
"""Its statuses change each second, so it is compacted after an hour at the latest."""

APPENDED = "tidemill_appended"
"""Prefix of the observed metrics with the times at which a batch's records were appended."""

RECENT_BATCHES = 200
HEARTBEAT_S = 10.0
"""A running pipeline publishes each status at least as often as this."""

LOST_AFTER_S = 60.0
"""A query without a new status for so long does not run any more."""

HISTORY_MS = 600_000
"""Records that are older than this when their batch begins are history that is replayed: their
latency says nothing about the pipeline."""

HISTORY_STEP_S, HISTORY_STEPS = 10, 30
"""The steps of a query's history, in seconds, and how many steps with batches are kept."""

_NO_WATERMARK = "1970-01-01T00:00:00"  # Spark reports this until there is a watermark


_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, NoneType),
    "bool": (bool,),
    "int": (int,),
    "int | None": (int, NoneType),
    "float": (int, float),
}
"""What JSON may have for a field of a status, by the field's annotation."""
_MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One topic of a query.

    Attributes:
        topic: the name of the topic.
        lag: records that the query has not read yet; -1 if unknown.
        read: the position of the query: the sum of the next offsets of all partitions.
        name: the stream or the table that has the topic.
        kind: ``stream`` or ``table``; empty if unknown.
    """

    topic: str
    lag: int = -1
    read: int = 0
    name: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """The status of one query. Times are ISO 8601 (UTC), durations are in milliseconds.

    Attributes:
        pipeline: the name of the pipeline.
        query: the name of the query.
        state: starting, running, waiting (for a restart), failed, stopped or done.
        mode: the output mode.
        sink: the description of the sink.
        batch: the number of the last batch; -1 before the first one.
        rows_per_second: the speed of the last batch with rows.
        rows: rows read since the start of the run; records that can't be parsed are not rows, and
            are those of the query for dead letters.
        late_rows: rows dropped since the start of the run because they were behind the watermark.
        watermark: the event time behind which rows are late; None if there is none yet.
        has_watermark: whether the query has a watermark or will have one.
        state_rows: rows that the query keeps in its state; None if Spark does not count them.
        batch_ms: how long the last batch with rows took.
        latency_p50_ms: the median time from a record's append to the end of its batch, over recent
            batches; None while history is replayed.
        latency_p99_ms: the 99th percentile of that time.
        restarts: restarts after failures since the start of the run.
        error: the last failure, in a line or two.
        sources: the topics that the query reads.
        writes: the topics that the query writes.
        history: the last batches, oldest first, in steps of ``HISTORY_STEP_S``: the step's begin
            (seconds since 1970), its batches, their rows, and the milliseconds of the slowest one.
        ui: the address of Spark's own pages; None if they are off.
        runner: the host that runs the query, and the folder of its checkpoints.
        updated: when this status was made.
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
    state_rows: int | None = 0
    batch_ms: int = 0
    latency_p50_ms: int | None = None
    latency_p99_ms: int | None = None
    restarts: int = 0
    error: str | None = None
    sources: tuple[SourceStatus, ...] = ()
    writes: tuple[str, ...] = ()
    history: tuple[tuple[int, int, int, int], ...] = ()
    ui: str | None = None
    runner: str = ""
    updated: str = ""

    @property
    def key(self) -> str:
        """The key of the record with this status."""
        return f"{self.pipeline}/{self.query}"

    @property
    def general_error(self) -> str:
        """The last failure without the name of the query, so that equal ones can be found."""
        return (self.error or "unknown").replace(f"--query {self.query}", "--query QUERY")

    @property
    def is_active(self) -> bool:
        """Whether the query was not over when this status was made."""
        return self.state in ("starting", "running", "waiting")

    def is_lost(self, now: datetime) -> bool:
        """Whether the query was not over, but has published no status for too long."""
        if not self.is_active or not self.updated:
            return False
        return (now - datetime.fromisoformat(self.updated)).total_seconds() > LOST_AFTER_S

    def encode(self) -> bytes:
        """Return the value of the record with this status."""
        return json.dumps(asdict(self)).encode()


def errors_of(statuses: Iterable[QueryStatus]) -> list[str]:
    """Return a line for each error of the statuses: the queries that have it, and its text."""
    found: dict[str, list[QueryStatus]] = {}
    for each in statuses:
        found.setdefault(each.general_error, []).append(each)
    lines = []
    for text, same in found.items():
        own = same[0].error if len(same) == 1 else None
        lines.append(f"{', '.join(each.query for each in same)}: {own or text}")
    return lines


def runner_text(host: str, state: Path) -> str:
    """Return the text of ``QueryStatus.runner``: the host, and the folder of all checkpoints."""
    return f"{host}:{state.absolute()}"


def warnings_of(
    before: Iterable[QueryStatus], runner: str, fresh: Collection[str]
) -> Iterator[str]:
    """Yield what a user should know before a pipeline starts that also has checkpoints elsewhere.

    The lock in the folder with the checkpoints does not prevent a run in another folder. The
    default folder is relative, so the same command elsewhere finds no checkpoints.

    Args:
        runner: the runner that is about to start.
        fresh: the queries that have no checkpoint here.
    """
    now = datetime.now(UTC)
    elsewhere = [each for each in before if each.runner not in ("", runner)]
    active = sorted(each.runner for each in elsewhere if each.is_active and not each.is_lost(now))
    if active:
        yield (
            f"pipeline {elsewhere[0].pipeline} also runs from another data folder ({active[0]}): "
            "both runs write all results"
        )
        return
    begun: dict[str, list[QueryStatus]] = {}
    for each in elsewhere:
        if each.batch >= 0 and each.query in fresh:
            begun.setdefault(each.runner, []).append(each)
    for other, queries in begun.items():
        host, _, folder = other.partition(":")
        yield (
            f"pipeline {queries[0].pipeline} has no checkpoint in {runner.partition(':')[2]} for "
            f"{', '.join(each.query for each in queries)}, and ran before with those in {folder} "
            f"on {host}: results are computed and written again from the start. To continue from "
            f"there, stop this run and add --data-dir {Path(folder).parent}"
        )


def decode(value: bytes) -> QueryStatus:
    """Return the status in a record's value; ignore fields that a newer tidemill has added.

    Raises:
        ValueError: the value is not a status.
    """
    try:
        content = json.loads(value)
        missing = {"pipeline", "query", "state"} - set(content)
        given = {name: content[name] for name in content.keys() & _FIELDS.keys()}
        wrong = [name for name, each in given.items() if not _is_of_type(each, _FIELDS[name])]
        if not missing and not wrong:
            return QueryStatus(**given | _lists(content))
    except (RecursionError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"invalid status of a query: {value[:80]!r}") from error
    raise ValueError(f"invalid status of a query, {', '.join(missing or wrong)}: {value[:80]!r}")


def _lists(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a status that are lists in JSON."""
    return {
        "sources": tuple(
            SourceStatus(
                *(str(each["topic"]), int(each.get("lag", -1)), int(each.get("read", 0))),
                *(str(each.get("name", "")), str(each.get("kind", ""))),
            )
            for each in content.get("sources", ())
        ),
        "writes": tuple(str(each) for each in content.get("writes", ())),
        "history": tuple(
            (int(at), int(batches), int(rows), int(slowest))
            for at, batches, rows, slowest in content.get("history", ())[-HISTORY_STEPS:]
        ),
    }


_FIELDS = {each.name: _TYPES.get(str(each.type)) for each in fields(QueryStatus)}


def _is_of_type(value: Any, types: tuple[type, ...] | None) -> bool:
    """Return whether a value of JSON can be in a field; None: what is in it is checked later."""
    if types is None:
        return True
    return isinstance(value, types) and (
        not isinstance(value, (int, float)) or abs(value) < _MOST  # no NaN either
    )


@dataclass
class Meter:
    """Sums up the progress of one query over all batches and restarts.

    The attributes that ``QueryStatus`` has, too, mean the same here.

    Attributes:
        lags: for each topic, the records that were not read yet; -1 if unknown.
        read: for each topic, the sum of the next offsets of all partitions.
        updates: the number of updates, including those of an idle query.
    """

    rows: int = 0
    late_rows: int = 0
    batch: int = -1
    rows_per_second: float = 0.0
    batch_ms: int = 0
    watermark: str | None = None
    has_watermark: bool = False
    state_rows: int | None = 0
    lags: dict[str, int] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    updates: int = 0
    _history: deque[tuple[int, int, int, int]] = field(
        default_factory=lambda: deque(maxlen=HISTORY_STEPS)
    )
    _latencies: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_BATCHES))

    def take_all(self, updates: Iterable[Mapping[str, Any]]) -> None:
        """Take in several updates, oldest first."""
        for each in updates:
            self.take(each)

    def take(self, progress: Mapping[str, Any]) -> None:
        """Take in an update of Spark's progress, decoded from its JSON."""
        self.updates += 1
        self._lags(progress)
        took = progress.get("durationMs") or {}
        # An idle query reports its next batch again and again before it runs it.
        if "addBatch" not in took:
            return
        operators: Sequence[Mapping[str, Any]] = progress.get("stateOperators") or ()
        self.batch = int(progress["batchId"])
        self.late_rows += sum(int(o.get("numRowsDroppedByWatermark", 0)) for o in operators)
        counted = [int(o["numRowsTotal"]) for o in operators if "numRowsTotal" in o]
        self.state_rows = sum(counted) if len(counted) == len(operators) else None
        watermark = (progress.get("eventTime") or {}).get("watermark")
        self.has_watermark = self.has_watermark or watermark is not None
        if watermark and not watermark.startswith(_NO_WATERMARK):
            self.watermark = watermark
        rows = int(progress.get("numInputRows", 0))
        self._remember(progress, rows, int(took.get("triggerExecution", 0)))
        if rows:
            self.rows += rows
            self.batch_ms = int(took.get("triggerExecution", 0))
            self.rows_per_second = round(1000 * rows / max(self.batch_ms, 1), 1)
            self._latency(progress)

    @property
    def history(self) -> tuple[tuple[int, int, int, int], ...]:
        """The last batches, as ``QueryStatus.history`` has them."""
        return tuple(self._history)

    def percentile(self, share: float) -> int | None:
        """Return a percentile of recent latencies in milliseconds; None if there are none.

        Args:
            share: between 0 and 1.
        """
        if not self._latencies:
            return None
        if len(self._latencies) == 1:
            return self._latencies[0]
        cuts = statistics.quantiles(self._latencies, n=100, method="inclusive")
        return int(cuts[min(98, round(share * 100) - 1)])

    def _remember(self, progress: Mapping[str, Any], rows: int, took_ms: int) -> None:
        """Add a batch to the history."""
        began_s = _millis(str(progress["timestamp"])) // 1000
        step = began_s - began_s % HISTORY_STEP_S
        batches = slowest = 0
        if self._history and self._history[-1][0] >= step:  # also if the clock was set back
            step, batches, before, slowest = self._history.pop()
            rows += before
        self._history.append((step, batches + 1, rows, max(slowest, took_ms)))

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
    """Return the time now, in the format of statuses."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _millis(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _offsets(given: Any) -> dict[str, dict[str, int]]:
    """Return a source's offsets as ``{topic: {partition: offset}}``; they may be given as text."""
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
