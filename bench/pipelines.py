"""Measures pipelines on Spark: the latency from a record to its result, and how fast a task reads.

Spark runs in its own process (``pipelines_client``). Each latency is that of one record without
other load, from before it is produced until a reader of committed records has its result. It
includes the wait for the next trigger, of which there is one every 200 ms.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from bench import librdkafka, targets
from bench.report import Aim, Section, Table
from bench.run import Run, percentile
from bench.targets import ROOT, Target

LATENCY_COLUMNS = ["query", "records", "p50 ms", "p99 ms"]
LATENCY_NOTE = (
    "One record after the other, into a topic, through Spark (local[2], a trigger of 200 ms), into "
    "another topic, exactly once; read with read_committed. Windowed: the current count of a "
    "tumbling window, as a changelog, in update mode."
)
RATE_COLUMNS = ["read by one task", "records", "first rows/s", "warm rows/s"]
RATE_NOTE = (
    "One partition of records with 100 B values, read by one Spark task as Arrow batches and "
    "thrown away. First: with a Python worker that has just started. Warm: the median of those "
    "after it."
)
STATELESS_MS, WINDOWED_MS = 400, 700
ROWS_PER_SECOND = 400_000
SIZE = 100
MOST_ROWS = 3_000_000
SOURCE = "pipelines-source"


def section(run: Run) -> Section:
    """Measure a stateless query, a windowed query, and the source alone."""
    latency = Table("Pipelines: latency from append to result", LATENCY_COLUMNS, note=LATENCY_NOTE)
    rate = Table("Pipelines: the source", RATE_COLUMNS, note=RATE_NOTE)
    result = Section("pipelines", [latency, rate])
    rows = min(MOST_ROWS, 2 * run.options.megabytes * 1_000_000 // SIZE)
    with targets.tidemill(run.options.folder) as target:
        librdkafka.prepare(target)
        target.create_topic(SOURCE, 1)
        librdkafka.client("produce", target, SOURCE, count=rows, size=SIZE, acks=-1)
        run.say("pipelines: latency of a stateless query and of a windowed one; the source")
        seconds = client(run, target)
    for query, limit in (("stateless", STATELESS_MS), ("windowed", WINDOWED_MS)):
        took = [each * 1e3 for each in seconds[query]]
        p50 = percentile(took, 50)
        latency.rows.append([query, len(took), p50, percentile(took, 99)])
        aim = f"latency from append to result, {query} query, p50"
        result.aims.append(Aim(aim, p50, limit, "ms", at_most=True))
    first, *warm = (rows / each for each in seconds["rate"])
    typical = statistics.median(warm)
    rate.rows.append([f"{SIZE} B values", rows, first, typical])
    aim = f"source of pipelines, rows/s of one task, {SIZE} B"
    result.aims.append(Aim(aim, typical, ROWS_PER_SECOND, "", at_most=False))
    return result


def client(run: Run, target: Target) -> dict[str, list[float]]:
    """Run ``pipelines_client`` and return its results in seconds.

    Raises:
        subprocess.CalledProcessError: It failed; its traceback is on stderr.
    """
    records = 5 if run.options.rounds == 1 else 25 if run.options.quick else 100
    command = [sys.executable, "-m", "bench.pipelines_client", target.bootstrap]
    command += [str(records), SOURCE, str(1 + run.options.rounds), str(run.options.folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT, timeout=1200)
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found
