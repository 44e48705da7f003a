"""Writes many rows, and shares of ten rows, with one edition of the topic sink. Prints JSON.

``editions`` runs it as ``python -m bench.sink EDITION BROKERS TOPIC RECORDS SHARES``.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from typing import Any

import pyarrow as pa

from bench.run import percentile
from tidemill.spark.sinks.topic.delivery.at_least_once import write_rows
from tidemill.spark.sinks.topic.delivery.exactly_once import Share, write_share

VALUE_BYTES = 100
BATCH_ROWS = 10_000
SHARES, SHARE_ROWS = 200, 10
NOTE = (
    f"One task writes values of {VALUE_BYTES} B in Arrow batches of {BATCH_ROWS:,} rows to a topic "
    "of two partitions, not compressed, acks all. Exactly once: in one transaction. A share is a "
    f"transaction of {SHARE_ROWS} rows with its marker, as a task of a small micro-batch writes "
    "it: the next one of the same task, or the first one of a task that was in another worker."
)


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
