"""Measures producers while a consumer reads history that is not in the page cache.

One producer sends a record, waits for its acknowledgement and sends the next one, alone and beside
the consumer. The latency of a producer should not depend on how far behind a consumer is.
"""

from __future__ import annotations

import threading
import time
from functools import partial

from bench import machine, wire
from bench.compare import Comparison, Figures
from bench.report import Section
from bench.run import Run, percentile
from bench.targets import SMALL, Target
from bench.wire import Load

FIGURES = (
    *("history read MB/s", "alone p50 ms", "alone p99 ms", "beside p50 ms", "beside p99 ms"),
    "p99 beside to alone",
)
NOTE = (
    "Producer: 100 B, acks 1, one record after the other, with encoded requests. Consumer: reads a "
    "topic of 4 partitions whose pages were dropped from the page cache, from disk. Both are "
    "threads of one process."
)
PARTITIONS = 4
ALONE_S = 1.0


def section(run: Run) -> Section:
    """Measure each server."""
    compared = Comparison(
        run, "Producing while history is read from disk", FIGURES, about=(), note=NOTE
    )
    load = Load(1024, PARTITIONS, run.options.megabytes * 4_000_000)
    with run.servers() as targets:
        compared.measure((), {each.name: partial(_turn, run, each, load) for each in targets})
    return Section("cold-reads", [compared.table()], compared.regressions())


def _turn(run: Run, target: Target, load: Load) -> Figures:
    batch = load.batch()
    history, topic = target.topic(PARTITIONS, batch), target.topic(1)
    wire.write(target.address, history, load, batch, 1)
    machine.settle()
    frame = wire.produce_frame(topic, 0, SMALL, 1)
    done = threading.Event()
    threading.Timer(ALONE_S, done.set).start()
    alone = _produce(target, frame, done)
    machine.settle()
    machine.forget_pages(run.options.folder)
    ranges = {p: (0, load.batches_of(p) * load.records_per_batch) for p in range(PARTITIONS)}
    done, beside = threading.Event(), []
    producer = threading.Thread(target=lambda: beside.extend(_produce(target, frame, done)))
    producer.start()
    try:
        read_s = wire.read(target.address, history, ranges, len(batch))
    finally:
        done.set()
        producer.join()
    p99 = percentile(beside, 99)
    return {
        "history read MB/s": load.megabytes / read_s,
        "alone p50 ms": percentile(alone, 50) * 1e3,
        "alone p99 ms": percentile(alone, 99) * 1e3,
        "beside p50 ms": percentile(beside, 50) * 1e3,
        "beside p99 ms": p99 * 1e3,
        "p99 beside to alone": p99 / percentile(alone, 99),
    }


def _produce(target: Target, frame: bytes, done: threading.Event) -> list[float]:
    """Send records one after the other until ``done``; return the seconds of each."""
    seconds: list[float] = []
    with wire.connect(target.address) as sock:
        while not done.is_set() or not seconds:
            began = time.perf_counter()
            wire.pipelined(sock, [frame], 1, 1)
            seconds.append(time.perf_counter() - began)
    return seconds
