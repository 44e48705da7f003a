"""Measures producers while a consumer reads history that is not in the page cache.

One producer sends a record, waits for its acknowledgement and sends the next one, alone and beside
the consumer. The latency of a producer should not depend on how far behind a consumer is.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import threading
import time
from dataclasses import dataclass
from functools import partial

from bench import machine, wire
from bench.report import Section, Table
from bench.run import Run, percentile, ratio
from bench.targets import Target
from bench.wire import Load

COLUMNS = [
    *("who", "history read MB/s", "alone p50 ms", "alone p99 ms"),
    *("beside p50 ms", "beside p99 ms", "p99 beside to alone"),
]
NOTE = (
    "Producer: 100 B, acks 1, one record after the other, with encoded requests. Consumer: reads a "
    "topic of 4 partitions whose pages were dropped from the page cache, from disk. Both are "
    "threads of one process."
)
PARTITIONS = 4

_topic_numbers = itertools.count()


@dataclass(frozen=True)
class Turn:
    """The result of one turn: seconds of each record, and of reading the history."""

    alone: list[float]
    beside: list[float]
    read_s: float


def section(run: Run) -> Section:
    """Measure each server."""
    table = Table("Producing while history is read from disk", COLUMNS, note=NOTE)
    load = Load(1024, PARTITIONS, run.options.megabytes * 4_000_000, batch_bytes=65_536)
    with run.servers() as targets:
        turns = run.take_turns(
            {target.name: partial(_turn, run, target, load) for target in targets}
        )
    megabytes = load.batches * load.records_per_batch * load.record_bytes / 1e6
    for name, of in turns.items():
        alone = [each for turn in of for each in turn.alone]
        beside = [each for turn in of for each in turn.beside]
        p99s = [[percentile(each, 99) for each in found] for found in _pairs(of)]
        rate = megabytes / statistics.median(turn.read_s for turn in of)
        table.rows.append(
            [
                *(name, rate, percentile(alone, 50) * 1e3, percentile(alone, 99) * 1e3),
                *(percentile(beside, 50) * 1e3, percentile(beside, 99) * 1e3, ratio(*p99s)),
            ]
        )
    return Section("cold-reads", [table])


def _pairs(turns: list[Turn]) -> tuple[list[list[float]], list[list[float]]]:
    return [turn.beside for turn in turns], [turn.alone for turn in turns]


def _turn(run: Run, target: Target, load: Load) -> Turn:
    history, topic = (f"cold-{next(_topic_numbers)}" for _ in range(2))
    batch = wire.make_batch(load)
    target.create_topic(history, PARTITIONS)
    target.write_first(history, PARTITIONS, batch)
    frames = [wire.produce_frame(history, p, batch, 1) for p in range(PARTITIONS)]
    with contextlib.closing(wire.connect(target.address)) as sock:
        wire.pipelined(sock, frames, load.batches, load.window)
    small = wire.make_batch(Load(100, 1, 100, batch_bytes=100))
    target.create_topic(topic, 1)
    target.write_first(topic, 1, small)
    machine.settle()
    frame = wire.produce_frame(topic, 0, small, 1)
    done = threading.Event()
    threading.Timer(1.0, done.set).start()
    alone = _produce(target, frame, done)
    machine.settle()
    machine.forget_pages(run.options.folder)
    ranges = {p: (0, load.batches_of(p) * load.records_per_batch) for p in range(PARTITIONS)}
    done, beside = threading.Event(), []
    producer = threading.Thread(target=lambda: beside.extend(_produce(target, frame, done)))
    producer.start()
    try:
        with contextlib.closing(wire.connect(target.address)) as sock:
            read_s = wire.consume(sock, history, ranges, len(batch))
    finally:
        done.set()
        producer.join()
    return Turn(alone, beside, read_s)


def _produce(target: Target, frame: bytes, done: threading.Event) -> list[float]:
    """Send records one after the other until ``done``; return the seconds of each."""
    seconds: list[float] = []
    with contextlib.closing(wire.connect(target.address)) as sock:
        while not done.is_set() or not seconds:
            began = time.perf_counter()
            wire.pipelined(sock, [frame], 1, 1)
            seconds.append(time.perf_counter() - began)
    return seconds
