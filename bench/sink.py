"""Measures the two editions of the topic sink without Spark: many rows, and shares of ten rows.

Each turn runs in a process of its own::

    python -m bench.sink EDITION BROKERS TOPIC RECORDS SHARES
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from bench import cpu
from bench.librdkafka import prepare
from bench.report import Aim, Section, Table
from bench.run import Run, percentile
from bench.targets import ROOT, Target
from tidemill.spark.sinks.topic.delivery.at_least_once import SWITCH, write_rows
from tidemill.spark.sinks.topic.delivery.exactly_once import Share, write_share

EDITIONS = ("native", "librdkafka")
VALUE_BYTES = 100
BATCH_ROWS = 10_000
SHARES, SHARE_ROWS = 200, 10
AIM_RATIO = 0.25
COLUMNS = [
    *("edition", "M rows/s", "µs of processor time a row", "exactly once: M rows/s", "µs a row"),
    "broker: µs a row",
    *("next share of a task: p50 ms", "p99 ms", "processor ms"),
    *("first share of a task: p50 ms", "p99 ms", "processor ms"),
]
NOTE = (
    f"One task writes values of {VALUE_BYTES} B in Arrow batches of {BATCH_ROWS:,} rows to a topic "
    "of two partitions, not compressed, acks all. Exactly once: in one transaction. A share is a "
    f"transaction of {SHARE_ROWS} rows with its marker, as a task of a small micro-batch writes "
    "it: the next one of the same task, or the first one of a task that was in another worker."
)

_topics = itertools.count()


def section(run: Run) -> Section:
    """Measure both editions in turns."""
    with run.servers() as found:
        target = found[0]
        records = max(20_000, run.options.megabytes * 1_000_000 // VALUE_BYTES)
        prepare(target)
        turns = run.take_turns({name: _turn(name, target, records) for name in EDITIONS})
    table = Table("The topic sink without Spark", COLUMNS, note=NOTE)
    for name, each in turns.items():
        table.rows.append([name, *(round(_median(each, key), 2) for key in each[0])])
    ratio = _median(turns["native"], "cpu_us") / _median(turns["librdkafka"], "cpu_us")
    what = "processor time of a row in the sink, to that with librdkafka"
    aim = Aim(what, round(ratio, 3), AIM_RATIO, "x", True)
    return Section("sink", [table], [aim])


def _median(turns: list[dict[str, float]], key: str) -> float:
    return statistics.median(each[key] for each in turns)


def _turn(name: str, target: Target, records: int) -> Callable[[], dict[str, float]]:
    def run() -> dict[str, float]:
        topic = f"sink-{next(_topics)}"
        target.create_topic(topic, 2)
        command = [sys.executable, "-m", "bench.sink", name, target.bootstrap, topic]
        environment = {**os.environ, SWITCH: name}
        before = cpu.seconds(target.pid)
        done = subprocess.run(
            [*command, str(records), str(SHARES)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            check=True,
            env=environment,
        )
        broker = cpu.seconds(target.pid) - before
        result: dict[str, float] = json.loads(done.stdout)
        rows = {key: result.pop(key) for key in ("rate", "cpu_us", "once_rate", "once_us")}
        return {**rows, "broker_us": 1e6 * broker / (2 * records), **result}

    return run


class _Measured:
    """Wall and processor time of a part."""

    def __init__(self) -> None:
        self._began, self._used = time.perf_counter(), time.process_time()

    @property
    def wall(self) -> float:
        return time.perf_counter() - self._began

    @property
    def used(self) -> float:
        return time.process_time() - self._used


def main() -> None:
    _, brokers, topic, records, shares = sys.argv[1:]
    kafka = {"bootstrap.servers": brokers}
    count = int(records)
    values = pa.array([b"%0100d" % number for number in range(BATCH_ROWS)])
    batches = [pa.record_batch({"value": values})] * (count // BATCH_ROWS)
    count = len(batches) * BATCH_ROWS
    few = [batches[0].slice(0, SHARE_ROWS)]
    sink = f"bench-{uuid.uuid4().hex[:8]}"

    def share(task: int, batch: int, rows: list[pa.RecordBatch]) -> None:
        here = Share(sink, task, batch, owner="bench", run="bench")
        if write_share(rows, topic, kafka, here, marker_topic=topic) != sum(map(len, rows)):
            raise RuntimeError("rows were not written")

    result: dict[str, Any] = {}
    # First the small shares: after many rows, the disk is busy for a while.
    share(0, 0, few)
    for name, tasks, number in (("next", [0] * int(shares), 1), ("first", range(1, 31), 0)):
        took: list[float] = []
        whole = _Measured()
        for each, task in enumerate(tasks):
            part = _Measured()
            share(task, number + (each if name == "next" else 0), few)
            took.append(1000 * part.wall)
        result[f"{name}_p50"], result[f"{name}_p99"] = percentile(took, 50), percentile(took, 99)
        result[f"{name}_cpu_ms"] = 1000 * whole.used / len(took)
    write_rows(few, topic, kafka)  # connections and libraries
    part = _Measured()
    write_rows(batches, topic, kafka)
    result["rate"], result["cpu_us"] = count / part.wall / 1e6, 1e6 * part.used / count
    part = _Measured()
    share(0, int(shares) + 1, batches)
    result["once_rate"], result["once_us"] = count / part.wall / 1e6, 1e6 * part.used / count
    print(json.dumps(result))


if __name__ == "__main__":
    main()
