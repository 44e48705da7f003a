"""Measures in ten minutes what other load generators get from tidemill and from Apache Kafka.

These are single cases of the other sections, on the same two servers, with Apache Kafka's default
settings: it answers without a sync.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.support.apache_kafka import KafkaNotFoundError

from bench import journal, librdkafka, wire
from bench.clients import consume, java, perf_tools, small
from bench.clients.contenders import Contender, Cost, completed, contenders, guarded, to_kafka
from bench.clients.java import Case
from bench.clients.small import Shape
from bench.report import Cell, Section, Table
from bench.run import Run, percentile
from bench.wire import Load

COLUMNS = ["load", "figure", "tidemill", "kafka", "tidemill/kafka", "server CPU s", "of kafka"]
NOTE = (
    "Medians of the rounds; the ratio is the median of the rounds' ratios. Java: Apache Kafka's "
    "perf tools with their defaults. librdkafka: confluent-kafka in a process of its own. Apache "
    "Kafka does not sync before it answers."
)
JAVA_CASES = (
    Case(1000, 12, "all"),
    Case(10_000, 1, "all"),
    Case(10_000, 12, "all"),
    Case(100, 12, "1"),
)
SHAPES = (
    Shape("50 x 20/s", 50, 20, "all"),
    Shape("50 x 400/s", 50, 400, "all"),
    Shape("1 x 15,000/s", 1, 15_000, "1"),
    Shape("1 x 15,000/s", 1, 15_000, "all"),
)
WARM_UP_SECONDS = 3.0
Figures = dict[str, float]
"""Name of a figure with its unit -> value."""
Turn = tuple[Figures, Cost]


@dataclass(frozen=True)
class Row:
    """A load, and what runs one turn of it on one server."""

    name: str
    make: Callable[[Run, Contender], Callable[[], Figures]]


def section(run: Run) -> Section:
    """Measure all loads; without Java's tools only those of librdkafka."""
    table = Table("Beside Apache Kafka", COLUMNS, note=NOTE)
    rows = [*_small_rows(), *_spread_rows(), *_librdkafka_rows(run)]
    try:
        perf_tools.check()
        rows += _java_rows(run)
    except KafkaNotFoundError as error:
        print(f"note: no perf tools, so Java's clients are left out: {error}", file=sys.stderr)
    with contenders(run) as servers:
        kinds = [each for each in servers if not each.configs]
        _warm_up(run, kinds)
        for row in rows:
            run.say(f"clients-brief: {row.name}")
            table.rows += _measure(run, row, kinds)
    return Section("clients-brief", [table])


def _warm_up(run: Run, servers: list[Contender]) -> None:
    """Let JIT compilers see requests, and let files exist."""
    run.say("clients-brief: warming up")
    for each in servers:
        for shape in (Shape("", 50, 20, "all"), Shape("", 1, 5_000, "all")):
            small.load(each, each.topic(small.PARTITIONS), shape, WARM_UP_SECONDS)


def _measure(run: Run, row: Row, servers: list[Contender]) -> list[list[Cell]]:
    turns: dict[str, Callable[[], Turn | None]] = {
        each.name: partial(guarded, run, each.target, row.make(run, each)) for each in servers
    }
    found = {who: completed(results) for who, results in run.take_turns(turns).items()}
    ours, theirs = found["tidemill"], found.get("kafka", [])
    if not ours:
        return [[row.name, "failed", *[None] * 5]]
    spent = [
        statistics.median(cost.cpu_seconds for _, cost in each) if each else None
        for each in (ours, theirs)
    ]
    rows: list[list[Cell]] = []
    for figure in ours[0][0]:
        our, their = ([turn[figure] for turn, _ in each] for each in (ours, theirs))
        median = statistics.median(their) if their else None
        rows.append(
            [row.name, figure, statistics.median(our), median, to_kafka(our, their), *spent]
        )
        spent = [None, None]
    return rows


# --- librdkafka ----------------------------------------------------------------------------------


def _small_rows() -> list[Row]:
    return [
        Row(f"librdkafka producers, {shape.name}, 100 B, acks {shape.acks}", partial(_small, shape))
        for shape in SHAPES
    ]


def _small(shape: Shape, run: Run, contender: Contender) -> Callable[[], Figures]:
    topic = contender.topic(small.PARTITIONS)
    seconds = small.QUICK_SECONDS if run.options.quick else small.SECONDS

    def turn() -> Figures:
        found: dict[str, Any] = small.load(contender, topic, shape, seconds)
        rate = float(found["delivered_per_s"])
        return {"records/s": rate, "p50 ms": found["p50"] * 1e3, "p99 ms": found["p99"] * 1e3}

    return turn


def _spread_rows() -> list[Row]:
    return [
        Row(f"librdkafka, 100 records over {count} partition(s), acks all", partial(_spread, count))
        for count in (1, 100)
    ]


def _spread(partitions: int, run: Run, contender: Contender) -> Callable[[], Figures]:
    topic = contender.topic(partitions)
    rounds = 100 if run.options.quick else 300

    def turn() -> Figures:
        each = journal.spread(contender.target, topic, rounds).seconds
        return {"p50 ms": percentile(each, 50) * 1e3, "p10 ms": percentile(each, 10) * 1e3}

    return turn


def _librdkafka_rows(run: Run) -> list[Row]:
    return [
        Row("librdkafka producer, 100 B, 12 partitions, acks 1", _produce),
        Row("librdkafka consumer, 1 KB, 12 partitions", _consume),
    ]


def _produce(run: Run, contender: Contender) -> Callable[[], Figures]:
    topic = contender.topic(12)
    count = 5_000 * run.options.megabytes

    def turn() -> Figures:
        found = librdkafka.client("produce", contender.target, topic, count=count, size=100, acks=1)
        return {"MB/s": count * 100 / 1e6 / float(found["seconds"])}

    return turn


def _written(run: Run, contender: Contender) -> tuple[str, Load]:
    load = Load(1024, 12, run.options.megabytes * 2_000_000, batch_bytes=65_536)
    return consume.written(contender, load, wire.make_batch(load)), load


def _consume(run: Run, contender: Contender) -> Callable[[], Figures]:
    topic, load = _written(run, contender)
    return lambda: {"MB/s": consume.by_librdkafka(contender, topic, load)}


# --- Java ----------------------------------------------------------------------------------------


def _java_rows(run: Run) -> list[Row]:
    rows = [
        Row(
            f"Java producer, {case.size} B, {case.partitions} partition(s), acks {case.acks}",
            partial(_java, case),
        )
        for case in JAVA_CASES
    ]
    return [*rows, Row("Java consumer, 1 KB, 12 partitions", _java_consumer)]


def _java(case: Case, run: Run, contender: Contender) -> Callable[[], Figures]:
    topic = contender.topic(case.partitions)
    load = java.load(contender, topic, case, java.records(case, run.options.megabytes))

    def turn() -> Figures:
        produced = load()
        return {"MB/s": produced.mb_per_s, "p50 ms": produced.p50_ms, "p99 ms": produced.p99_ms}

    return turn


def _java_consumer(run: Run, contender: Contender) -> Callable[[], Figures]:
    topic, load = _written(run, contender)
    return lambda: {"MB/s": consume.by_java(contender, topic, load)}
