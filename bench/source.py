"""Measures the two editions of the source without Spark: a backlog, and ranges of ten records.

Each turn runs in a process of its own::

    python -m bench.source EDITION BROKERS TOPIC RECORDS RANGES
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from bench import cpu
from bench.librdkafka import client, prepare
from bench.report import Aim, Section, Table
from bench.run import Run, percentile
from bench.targets import ROOT, Target
from tidemill.spark.source import librdkafka, own
from tidemill.spark.source.plan import FetchPlan
from tidemill.spark.source.planning.ranges import OffsetRange

EDITIONS = ("native", "librdkafka")
VALUE_BYTES = 100
RANGES, RANGE_RECORDS = 300, 10
AIM_ROWS = 3e6
COLUMNS = [
    *("edition", "M rows/s", "M rows/s of processor time", "broker: M rows/s of processor time"),
    *("range of 10: p50 ms", "p99 ms", "processor ms"),
]
NOTE = (
    f"One task reads values of {VALUE_BYTES} B that one librdkafka producer wrote, not compressed, "
    f"into Arrow batches, and discards them. A range of {RANGE_RECORDS} records is what a small "
    "micro-batch reads."
)


def section(run: Run) -> Section:
    """Measure both editions in turns."""
    with run.servers() as found:
        target = found[0]
        records = max(2000, run.options.megabytes * 1_000_000 // VALUE_BYTES)
        prepare(target)
        target.create_topic("source", 1)
        client("produce", target, "source", count=records, size=VALUE_BYTES, acks="all")
        turns = run.take_turns({name: _turn(name, target, records) for name in EDITIONS})
    table = Table("The source without Spark", COLUMNS, note=NOTE)
    for name, each in turns.items():
        table.rows.append([name, *(round(_median(each, key), 2) for key in each[0])])
    rate = _median(turns["native"], "rate")
    aim = Aim("source without Spark, 100 B", round(rate, 2), AIM_ROWS / 1e6, "M rows/s", False)
    return Section("source", [table], [aim])


def _median(turns: list[dict[str, float]], key: str) -> float:
    return statistics.median(each[key] for each in turns)


def _turn(name: str, target: Target, records: int) -> Callable[[], dict[str, float]]:
    def run() -> dict[str, float]:
        command = [sys.executable, "-m", "bench.source", name, target.bootstrap, "source"]
        command += [str(records), str(RANGES)]
        before = cpu.seconds(target.pid)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
        result: dict[str, float] = json.loads(done.stdout)
        broker = max(0.01, cpu.seconds(target.pid) - before)
        rates = {"rate": result.pop("rate"), "cpu_rate": result.pop("cpu_rate")}
        return {**rates, "broker_rate": 3 * records / broker / 1e6, **result}

    return run


def main() -> None:
    name, brokers, topic, records, ranges = sys.argv[1:]
    plan = FetchPlan({"bootstrap.servers": brokers})
    count = int(records)

    def read(first: int, end: int) -> None:
        batches: Iterator[pa.RecordBatch] | None
        wanted = OffsetRange(topic, 0, first, end)
        batches = own.start(wanted, plan) if name == "native" else librdkafka.fetch(wanted, plan)
        if batches is None or sum(each.num_rows for each in batches) != end - first:
            raise RuntimeError(f"the edition {name} did not read {wanted}")

    result: dict[str, Any] = {}
    read(0, count)  # connections and libraries
    began, used = time.perf_counter(), time.process_time()
    for _ in range(2):
        read(0, count)
    result["rate"] = 2 * count / (time.perf_counter() - began) / 1e6
    result["cpu_rate"] = 2 * count / (time.process_time() - used) / 1e6
    took, used = [], time.process_time()
    for number in range(int(ranges)):
        first = number * RANGE_RECORDS % (count - RANGE_RECORDS)
        began = time.perf_counter()
        read(first, first + RANGE_RECORDS)
        took.append(1000 * (time.perf_counter() - began))
    result["p50"], result["p99"] = percentile(took, 50), percentile(took, 99)
    result["cpu_ms"] = 1000 * (time.process_time() - used) / int(ranges)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
