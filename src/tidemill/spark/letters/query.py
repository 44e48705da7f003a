"""Reads a stream's topic for records that can't be parsed, and writes them as dead letters.

It works like a query of Spark with the same checkpoint: batches with a planned end, whose parts are
written exactly once with a marker (``sinks.topic.delivery.exactly_once``). A batch in which nothing
was refused changes nothing, so it is not written to the checkpoint, except from time to time. Runs
in a thread of the driver. Must not know: pipelines, Spark, formats of values.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.reading.ranges import OffsetRange
from tidemill.spark.errors import PipelineError
from tidemill.spark.letters.log import Batch, BatchLog
from tidemill.spark.sinks.batch_identity import batch_identity
from tidemill.spark.source.planning.admission import FIRST
from tidemill.spark.source.planning.options import Position, SourceOptions
from tidemill.spark.source.planning.parsing import RowPlan
from tidemill.spark.source.planning.planner import Planner, QueryOffsets
from tidemill.spark.source.refusals import Reports

if TYPE_CHECKING:
    import pyarrow as pa

INTERVAL_S = 1.0
"""Time from the start of a batch to the next one, unless the query is behind."""
SAVED_EVERY_S = 10.0
"""How often the position is written to the checkpoint while nothing is refused."""
PATIENCE_S = 10.0
"""How long records wait for the report of another query before they are read here. Each report that
comes shows that such a query is at work, so the time begins again."""
STOP_TIMEOUT_S = 20.0
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class LetterPlan:
    """The settings of a query for dead letters.

    Attributes:
        pipeline: Name of the pipeline.
        stream: Name of the stream.
        rows: How records are parsed, with ``refused``.
        kafka: Settings of librdkafka for writing.
        sink_id: Name of this output at the brokers.
        until_caught_up: Whether to end when all records that exist at the start are read.
        reports: What the tasks of other queries say about the stream; None if they say nothing.
    """

    pipeline: str
    stream: str
    options: SourceOptions
    rows: RowPlan
    topic: str
    kafka: Mapping[str, str]
    sink_id: str
    until_caught_up: bool
    reports: Reports | None = None


class _StoppedError(Exception):
    """The query was asked to stop in the middle of a batch."""


class LetterQuery:
    """A query that was started, as ``pipelines.supervisor.RunningQuery``.

    Args:
        plan: What it reads and writes.
        folder: Folder of its checkpoint, in Spark's format.
    """

    def __init__(self, plan: LetterPlan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._run_id = f"{uuid.uuid4()}#0"
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._updates: deque[dict[str, Any]] = deque(maxlen=100)
        self._thread = threading.Thread(
            target=self._run, name=f"dead-letters-{plan.stream}", daemon=True
        )
        self._thread.start()

    @property
    def is_active(self) -> bool:
        """Whether it still runs."""
        return self._thread.is_alive()

    def updates(self) -> list[dict[str, Any]]:
        """Return its progress since the last call, oldest first, in the form of Spark's."""
        found = []
        while self._updates:
            found.append(self._updates.popleft())
        return found

    def error(self) -> BaseException | None:
        """Return the error that ended it, or None."""
        return self._error

    def stop(self) -> None:
        """Stop it. The next start runs an unfinished batch again.

        Raises:
            PipelineError: It did not stop in time.
        """
        self._stop.set()
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            raise PipelineError(f"the dead letters did not stop within {STOP_TIMEOUT_S:g} s")

    def _run(self) -> None:
        try:
            _Reader(self._plan, self._folder, self._run_id, self._stop, self._updates).run()
        except _StoppedError:
            pass
        except BaseException as error:  # the supervisor asks for it
            self._error = error


class _Reader:
    """The work of one run, in its thread."""

    def __init__(
        self,
        plan: LetterPlan,
        folder: Path,
        run_id: str,
        stop: threading.Event,
        updates: deque[dict[str, Any]],
    ) -> None:
        from tidemill.spark.source.cluster import KafkaCluster

        self._plan = plan
        self._run_id = run_id
        self._stop = stop
        self._updates = updates
        self._log = BatchLog(folder)
        cluster = KafkaCluster(plan.options.kafka)
        self._planner = Planner(plan.options, cluster, Position("latest"))
        self._number = -1
        """The batch that was written to the log last."""
        self._saved = ""
        """Its end."""
        self._saved_at = time.monotonic()

    def run(self) -> None:
        """Run batches until the end, or until the query is stopped."""
        if self._plan.until_caught_up:
            self._planner.fix_target()
        position = self._resume()
        self._report(position, 0, time.monotonic(), is_batch=True)
        limit = self._plan.options.max_offsets_per_trigger or FIRST
        while not self._stop.is_set():
            began = time.monotonic()
            end = self._planner.next_end(position, limit)
            if _text(end) != _text(position):
                rows = self._batch(position, end)
                is_full = _size(position, end) >= limit
                position = end
                self._report(position, rows, began, is_batch=True)
            else:
                is_full = False
                if self._plan.until_caught_up:
                    break
                self._report(position, 0, began, is_batch=False)
            if time.monotonic() - self._saved_at >= SAVED_EVERY_S:
                self._save(position)
            if not (is_full or self._plan.until_caught_up):
                self._stop.wait(max(0.0, INTERVAL_S - (time.monotonic() - began)))
        self._save(position)

    def _resume(self) -> QueryOffsets:
        """Return the position, after the batch that an earlier run did not finish."""
        last = self._log.last()
        if last is None:
            position = self._planner.initial()
            self._save(position)
            return position
        self._number, self._saved = last.number, last.end
        end = QueryOffsets.from_json(json.loads(last.end))
        if not last.is_done:
            self._finish(last, end)
        return end

    def _finish(self, last: Batch, end: QueryOffsets) -> None:
        if last.start is None:
            start = self._planner.initial()
        else:
            start = QueryOffsets.from_json(json.loads(last.start))
        for task, wanted in enumerate(self._planner.ranges(start, end)):
            with contextlib.closing(self._letters(wanted)) as letters:
                self._write(task, letters)
        self._log.commit(last.number)

    def _batch(self, start: QueryOffsets, end: QueryOffsets) -> int:
        """Write the dead letters of a batch, and return their number."""
        rows, is_planned = 0, False
        ranges = self._planner.ranges(start, end)
        self._wait_for_reports(ranges)
        for task, wanted in enumerate(ranges):
            with contextlib.closing(self._letters(wanted)) as letters:
                first = next(letters, None)
                if first is None:
                    continue
                if not is_planned:
                    # The parts of a batch follow from its start and end: both must be in the log.
                    self._save(start)
                    self._log.plan(self._number + 1, _text(end))
                    self._number, self._saved, is_planned = self._number + 1, _text(end), True
                rows += self._write(task, itertools.chain([first], letters))
        if is_planned:
            self._log.commit(self._number)
            self._saved_at = time.monotonic()
        if self._plan.reports is not None:
            for each in ranges:
                self._plan.reports.forget(each.topic, each.partition, each.end)
        return rows

    def _wait_for_reports(self, ranges: Iterable[OffsetRange]) -> None:
        """Wait until other queries have parsed the ranges, or one of them has refused a record."""
        reports, deadline = self._plan.reports, time.monotonic() + PATIENCE_S
        if reports is None:
            return
        reports.receive(0.0)
        while not (reports.are_settled(ranges) or self._stop.is_set()):
            if (left := deadline - time.monotonic()) <= 0:
                return
            if reports.receive(min(_POLL_S, left)):
                deadline = time.monotonic() + PATIENCE_S

    def _save(self, position: QueryOffsets) -> None:
        if _text(position) != self._saved:
            self._log.skip(self._number + 1, _text(position))
            self._number, self._saved = self._number + 1, _text(position)
        self._saved_at = time.monotonic()

    def _letters(self, wanted: OffsetRange) -> Generator[pa.RecordBatch]:
        """Yield the dead letters of a range."""
        from tidemill.reading.fetch import FetchPlan, fetch
        from tidemill.spark.letters.records import letters_of
        from tidemill.spark.source.rows import parse_records

        options = self._plan.options
        if not wanted.size:
            return
        plan = FetchPlan(
            kafka=options.kafka,
            include_headers=True,
            fail_on_data_loss=options.fail_on_data_loss,
            timeout_ms=options.poll_timeout_ms,
            group_id_prefix=options.group_id_prefix,
        )
        reports = self._plan.reports
        for part in [wanted] if reports is None else reports.rest(wanted):
            with contextlib.closing(self._until_stop(fetch(part, plan))) as records:
                for refused in parse_records(records, self._plan.rows):
                    yield letters_of(refused, self._plan.stream, self._plan.pipeline)

    def _until_stop(self, records: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        for batch in records:
            if self._stop.is_set():
                raise _StoppedError
            yield batch

    def _write(self, task: int, letters: Iterator[pa.RecordBatch]) -> int:
        """Write the dead letters of a part of the batch that is planned."""
        from tidemill.spark.sinks.topic.delivery.exactly_once import Share, write_share

        plan = self._plan
        identity = batch_identity(str(self._log.folder), self._number)
        share = Share(
            plan.sink_id,
            task,
            self._number,
            owner=self._log.query_id,
            run=self._run_id,
            fingerprint="" if identity is None else identity.fingerprint,
        )
        return write_share(letters, plan.topic, plan.kafka, share, marker_topic=plan.topic)

    def _report(self, position: QueryOffsets, rows: int, began: float, *, is_batch: bool) -> None:
        took_ms = round((time.monotonic() - began) * 1000)
        newest = self._planner.newest()
        durations = {"triggerExecution": took_ms}
        if is_batch:
            durations["addBatch"] = took_ms
        self._updates.append(
            {
                "batchId": self._number,
                "timestamp": datetime.now(UTC).isoformat(),
                "numInputRows": rows,
                "durationMs": durations,
                "sources": [
                    {
                        "endOffset": position.to_json(),
                        "latestOffset": (newest or position).to_json(),
                    }
                ],
            }
        )


def _text(position: QueryOffsets) -> str:
    return json.dumps(position.to_json())


def _size(start: QueryOffsets, end: QueryOffsets) -> int:
    return sum(max(0, at - start.offsets.get(tp, 0)) for tp, at in end.offsets.items())
