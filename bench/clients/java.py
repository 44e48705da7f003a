"""Measures Java's producer with Apache Kafka's perf tool: codecs, and many partitions."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from tests.support.apache_kafka import KafkaNotFoundError

from bench import throughput, wire
from bench.clients import perf_tools
from bench.clients.contenders import (
    Contender,
    Cost,
    completed,
    contenders,
    floors,
    guarded,
    to_kafka,
)
from bench.clients.perf_tools import Produced
from bench.report import Cell, Section, Table
from bench.run import Run
from bench.wire import Load

COLUMNS = [
    *("record", "partitions", "acks", "codec", "who", "MB/s", "p50 ms", "p99 ms", "p99.9 ms"),
    *("CPU µs/record", "client's", "idle", "disk bytes/byte", "MB/s to kafka"),
]
NOTE = (
    "kafka-producer-perf-test with its defaults (batches of 16 KB, linger 5 ms, idempotent), after "
    "a warm-up in the same process. Its records have random letters and are all alike, so they "
    "compress well. CPU and bytes written to disks are the server's, the warm-up included. "
    "Client's: processor time of the tool for each record, its start included. Idle: the part of "
    "the processors' time in which nothing was to be done, or only the disk was waited for. Raw: "
    "the baseline with as many bytes in batches of 16 KB."
)
WARM_UP = 1.2
"""All records to the measured ones."""


@dataclass(frozen=True)
class Case:
    """A load: bytes of a record, partitions, acks, codec."""

    size: int
    partitions: int
    acks: str
    codec: str = "none"


def codecs_section(run: Run) -> Section:
    """Measure the producer's defaults, lz4 and zstd."""
    cases = [Case(1000, 12, "all", codec) for codec in ("none", "lz4", "zstd")]
    cases += [
        Case(1000, 1, "all"),
        Case(1000, 12, "1"),
        Case(100, 12, "1"),
        Case(10_000, 12, "all"),
    ]
    return _section(run, "clients-java", "Java's producer", cases)


def partitions_section(run: Run) -> Section:
    """Measure acks=all with 1 to 1,000 partitions."""
    counts = (1, 12, 100) if run.options.quick else (1, 12, 100, 1000)
    cases = [Case(1000, count, "all") for count in counts]
    title = "Java's producer, acks=all, many partitions"
    return _section(run, "clients-partitions", title, cases)


def floor_section(run: Run) -> Section:
    """Measure records of 10 KB, also on servers that do nothing but answer or sync."""
    cases = [Case(10_000, count, "all") for count in (1, 12)]
    title = "Java's producer, acks=all, beside the floor"
    return _section(run, "clients-java-floor", title, cases, with_floors=True)


def _section(
    run: Run, name: str, title: str, cases: Iterable[Case], with_floors: bool = False
) -> Section:
    table = Table(title, COLUMNS, note=NOTE)
    try:
        perf_tools.check()
    except KafkaNotFoundError as error:
        print(f"note: no perf tools, so {name} is left out: {error}", file=sys.stderr)
        return Section(name, [table])
    with ExitStack() as stack:
        servers = stack.enter_context(contenders(run))
        if with_floors:
            servers = [*servers, *stack.enter_context(floors(run))]
        for case in cases:
            about = f"{case.size} B, {case.partitions} partition(s), acks {case.acks}"
            run.say(f"{name}: {about}, {case.codec}")
            table.rows += _measure(run, servers, case)
    return Section(name, [table])


def _measure(run: Run, servers: list[Contender], case: Case) -> list[list[Cell]]:
    count = records(case, run.options.megabytes)
    turns: dict[str, Callable[[], tuple[Produced, Cost] | None]] = {
        each.name: partial(_turn, run, each, each.topic(case.partitions), case, count)
        for each in servers
    }
    about: list[Cell] = [f"{case.size} B", case.partitions, case.acks, case.codec]
    rows: list[list[Cell]] = []
    results = {who: completed(found) for who, found in run.take_turns(turns).items()}
    kafka = [produced.mb_per_s for produced, _ in results.get("kafka", [])]
    for who, found in results.items():
        rates = [produced.mb_per_s for produced, _ in found]
        rows.append([*about, who, *_cells(found, count, case.size), to_kafka(rates, kafka)])
    if case.codec == "none" and case.partitions <= 12:
        sent = Load(case.size, case.partitions, count * case.size, batch_bytes=16_384)
        acks = -1 if case.acks == "all" else 1
        copied = partial(throughput.copied, run.options.folder, sent, wire.make_batch(sent), acks)
        raw = run.take_turns({"raw": copied})["raw"]
        rate = sent.batches * sent.records_per_batch * case.size / 1e6
        mb = statistics.median(rate / took.produce for took in raw)
        rows.append([*about, "raw bytes", mb, *[None] * 8])
    return rows


def _cells(found: list[tuple[Produced, Cost]], count: int, size: int) -> list[Cell]:
    if not found:
        return [None] * 8
    sent = count * WARM_UP
    disk = [cost.disk_bytes / (sent * size) for _, cost in found if cost.disk_bytes is not None]

    def typical(figure: Callable[[Produced], float]) -> float:
        return statistics.median(figure(produced) for produced, _ in found)

    return [
        typical(lambda each: each.mb_per_s),
        typical(lambda each: each.p50_ms),
        typical(lambda each: each.p99_ms),
        typical(lambda each: each.p999_ms),
        statistics.median(cost.cpu_seconds / sent * 1e6 for _, cost in found),
        statistics.median(cost.client_seconds / sent * 1e6 for _, cost in found),
        statistics.median(cost.idle for _, cost in found),
        statistics.median(disk) if disk else None,
    ]


def _turn(
    run: Run, contender: Contender, topic: str, case: Case, count: int
) -> tuple[Produced, Cost] | None:
    return guarded(run, contender.target, load(contender, topic, case, count))


def records(case: Case, megabytes: int) -> int:
    """Return the number of records that are measured."""
    return max(20_000, megabytes * 1_000_000 // case.size // 2)


def load(contender: Contender, topic: str, case: Case, count: int) -> Callable[[], Produced]:
    """Return a function that writes so many records with the perf tool."""
    properties = {"acks": case.acks, "compression_type": case.codec}
    if case.acks != "all":
        properties["enable_idempotence"] = "false"
    bootstrap = contender.target.bootstrap
    return partial(perf_tools.produce, bootstrap, topic, count, case.size, **properties)
