"""Measures consumers of librdkafka and of Java with 1 and 12 partitions."""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Callable
from functools import partial

from tests.support.apache_kafka import KafkaNotFoundError

from bench import librdkafka, throughput, wire
from bench.clients import perf_tools
from bench.clients.contenders import Contender, Cost, completed, contenders, guarded, to_kafka
from bench.report import Cell, Section, Table
from bench.run import Run
from bench.wire import Load

COLUMNS = [
    *("client", "record", "partitions", "who", "MB/s", "CPU ms/MB", "MB/s to kafka"),
]
NOTE = (
    "One consumer reads a topic that was just written in batches of 64 KB, from the page cache. "
    "CPU: of the server. Raw: the baseline, which reads files into memory and sends them."
)


def section(run: Run) -> Section:
    """Measure 1 KB, and 100 B too if the run is not a quick one."""
    table = Table("Consumers", COLUMNS, note=NOTE)
    clients: dict[str, Callable[[Contender, str, Load], float]] = {"librdkafka": by_librdkafka}
    try:
        perf_tools.check()
        clients["Java"] = by_java
    except KafkaNotFoundError as error:
        print(f"note: no perf tools, so Java's consumer is left out: {error}", file=sys.stderr)
    with contenders(run) as servers:
        for size in (1024,) if run.options.quick else (1024, 100):
            for partitions in (1, 12):
                table.rows += _measure(run, servers, clients, size, partitions)
    return Section("clients-consume", [table])


def _measure(
    run: Run,
    servers: list[Contender],
    clients: dict[str, Callable[[Contender, str, Load], float]],
    size: int,
    partitions: int,
) -> list[list[Cell]]:
    load = Load(size, partitions, run.options.megabytes * 2_000_000, batch_bytes=65_536)
    batch = wire.make_batch(load)
    readers = [each for each in servers if not each.configs]
    topics = {each.name: written(each, load, batch) for each in readers}
    rows: list[list[Cell]] = []
    for client, consume in clients.items():
        run.say(f"clients-consume: {client}, {size} B, {partitions} partition(s)")
        turns = {
            each.name: partial(
                guarded, run, each.target, partial(consume, each, topics[each.name], load)
            )
            for each in readers
        }
        results: dict[str, list[tuple[float, Cost]]] = {
            who: completed(found) for who, found in run.take_turns(turns).items() if any(found)
        }
        kafka = [rate for rate, _ in results.get("kafka", [])]
        for who, found in results.items():
            rates = [rate for rate, _ in found]
            spent = (
                statistics.median(cost.cpu_seconds for _, cost in found) * 1e3 / _megabytes(load)
            )
            about: list[Cell] = [client, f"{size} B", partitions, who, statistics.median(rates)]
            rows.append([*about, spent, to_kafka(rates, kafka)])
    copied = partial(throughput.copied, run.options.folder, load, batch, 1)
    raw = run.take_turns({"raw": copied})["raw"]
    rate = statistics.median(_megabytes(load) / took.consume for took in raw)
    return [*rows, ["-", f"{size} B", partitions, "raw bytes", rate, None, None]]


def _count(load: Load) -> int:
    return load.batches * load.records_per_batch


def _megabytes(load: Load) -> float:
    return _count(load) * load.record_bytes / 1e6


def written(contender: Contender, load: Load, batch: bytes) -> str:
    """Write a load to a new topic, and return its name."""
    topic = contender.topic(load.partitions)
    frames = [wire.produce_frame(topic, p, batch, 1) for p in range(load.partitions)]
    with contextlib.closing(wire.connect(contender.target.address)) as sock:
        wire.pipelined(sock, frames, load.batches, load.window)
    return topic


def by_librdkafka(contender: Contender, topic: str, load: Load) -> float:
    """Read a topic with librdkafka; return MB/s."""
    count = _count(load)
    found = librdkafka.client("consume", contender.target, topic, count=count)
    return count * load.record_bytes / 1e6 / float(found["seconds"])


def by_java(contender: Contender, topic: str, load: Load) -> float:
    """Read a topic with Apache Kafka's perf tool; return MB/s."""
    bootstrap = contender.target.bootstrap
    return perf_tools.consume(bootstrap, topic, _count(load), load.record_bytes)
