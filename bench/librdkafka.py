"""Measures throughput with a real client: librdkafka (confluent-kafka) against each server.

The client runs in its own process and sends one record per call. For small records the client is
the limit, which is the same for both servers.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from bench import machine, wire
from bench.rdkafka_client import WARM_UP_TOPIC
from bench.report import Cell, Section, Table
from bench.run import Run, ratio
from bench.targets import ROOT, Target
from bench.throughput import Took, copied, label
from bench.wire import Load

COLUMNS = [
    *("what", "record", "partitions", "acks", "tidemill MB/s", "tidemill records/s"),
    *("tidemill/raw bytes", "kafka MB/s", "tidemill/kafka"),
]
NOTE = (
    "confluent-kafka with its defaults (batches of up to 1 MB, linger 5 ms), one producer, one "
    "consumer without a group, in a process of its own; it creates an object per record, which is "
    "the limit for 100 B. Raw bytes: the baseline with as many bytes in batches of 64 KB."
)
MOST_RECORDS = 1_000_000

_topic_numbers = itertools.count()


def client(job: str, target: Target, topic: str, **options: object) -> dict[str, Any]:
    """Run ``rdkafka_client`` and return its result.

    Raises:
        subprocess.CalledProcessError: It failed; its traceback is on stderr.
    """
    command = [sys.executable, "-m", "bench.rdkafka_client", job]
    command += ["--bootstrap", target.bootstrap, "--topic", topic]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def prepare(target: Target) -> None:
    """Create the topic that clients warm up with, and wait until it is writable."""
    target.create_topic(WARM_UP_TOPIC, 1)
    target.write_first(WARM_UP_TOPIC, 1, wire.make_batch(Load(100, 1, 1, batch_bytes=100)))


def section(run: Run) -> Section:
    """Measure all cases; in quick runs 1 KB only."""
    sizes = (1024,) if run.options.quick else (100, 1024, 10_240)
    table = Table("Throughput, librdkafka", COLUMNS, note=NOTE)
    with run.servers() as targets:
        for target in targets:
            prepare(target)
            load = Load(1024, 4, 2 * run.options.megabytes * 1_000_000)
            served(target, load, 1)
        for size, partitions, acks in itertools.product(sizes, (1, 16), (1, -1)):
            total = min(run.options.megabytes * 1_000_000, MOST_RECORDS * size)
            run.say(f"librdkafka: {size} B, {partitions} partition(s), acks {label(acks)}")
            table.rows += measure(run, Load(size, partitions, total), acks, targets)
    table.rows.sort(key=lambda row: str(row[0]), reverse=True)
    return Section("librdkafka", [table])


def measure(run: Run, load: Load, acks: int, targets: list[Target]) -> list[list[Cell]]:
    """Produce and consume one load; return two rows of the table."""
    batch = wire.make_batch(load)
    contenders: dict[str, Callable[[], Took]] = {
        "raw": partial(copied, run.options.folder, load, batch, acks)
    }
    for target in targets:
        contenders[target.name] = partial(served, target, load, acks)
    took = run.take_turns(contenders)
    count = load.batches * load.records_per_batch
    megabytes = count * load.record_bytes / 1e6
    rows: list[list[Cell]] = []
    for what in ("produce", "consume"):
        seconds = {name: [getattr(turn, what) for turn in turns] for name, turns in took.items()}
        ours, kafka = seconds["tidemill"], seconds.get("kafka")
        typical = statistics.median(ours)
        compared: list[Cell] = [None, None]
        if kafka:
            compared = [megabytes / statistics.median(kafka), ratio(kafka, ours)]
        rows.append(
            [
                *(what, f"{load.record_bytes} B", load.partitions, label(acks)),
                *(megabytes / typical, count / typical, ratio(seconds["raw"], ours)),
                *compared,
            ]
        )
    return rows


def served(target: Target, load: Load, acks: int) -> Took:
    """Write and read a new topic with librdkafka."""
    topic = f"rdkafka-{next(_topic_numbers)}"
    target.create_topic(topic, load.partitions)
    machine.settle()
    count = load.batches * load.records_per_batch
    wrote = client("produce", target, topic, count=count, size=load.record_bytes, acks=acks)
    machine.settle()
    read = client("consume", target, topic, count=count)
    if read["bytes"] != count * load.record_bytes:
        raise RuntimeError(f"{count * load.record_bytes} bytes written, {read['bytes']} read")
    return Took(wrote["seconds"], read["seconds"])
