"""Reads a backlog, and ranges of ten records, with one edition of the source. Prints JSON.

``editions`` runs it as ``python -m bench.source EDITION BROKERS TOPIC RECORDS RANGES``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from bench.run import percentile
from tidemill.reading import librdkafka, own
from tidemill.reading.plan import FetchPlan
from tidemill.reading.ranges import OffsetRange

VALUE_BYTES = 100
RANGES, RANGE_RECORDS = 300, 10
NOTE = (
    f"One task reads values of {VALUE_BYTES} B that one librdkafka producer wrote, not compressed, "
    f"into Arrow batches, and discards them. A range of {RANGE_RECORDS} records is what a small "
    "micro-batch reads."
)


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
