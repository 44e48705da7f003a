"""Measures the resident memory of the broker: idle, and its peak under load."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bench import machine, wire
from bench.compare import Comparison, Figures
from bench.report import Aim, Section
from bench.run import Run
from bench.targets import Target
from bench.wire import Load

NOTE = (
    "Resident memory, 10^6 bytes; under load its peak. Load: batches of 64 KB of 1 KB records, "
    "acks all, 8 requests unanswered on each connection; then all of it is fetched. Apache Kafka "
    "may take a heap of 1 GB, as it does by default."
)
IDLE_AIM_MB = 80.0
SETTLE_S = 2.0
REST_S = 12.0


def section(run: Run) -> Section:
    """Measure idle, with load, with many partitions and with many connections."""
    compared = Comparison(run, "Memory", ["MB"], about=("case",), note=NOTE)
    many = min(1000, run.options.partitions)
    with run.servers() as targets:

        def measure(case: str, of: Callable[[Target], float]) -> float:
            run.say(f"memory: {case}")
            turns = {each.name: partial(_figure, of, each) for each in targets}
            found = compared.measure([case], turns, rounds=1)
            return found["now" if run.options.against else "tidemill"][0]["MB"]

        def loaded(target: Target) -> float:
            machine.reset_peak(target.pid)
            load(target, partitions, connections, run.options.megabytes)
            return machine.peak_mb(target.pid)

        def resident(target: Target) -> float:
            return machine.resident_mb(target.pid)

        time.sleep(SETTLE_S)
        idle = measure("idle after start", resident)
        for partitions, connections in ((16, 4), (16, 200), (many, 4)):
            measure(f"{partitions} partitions, {connections} connections: peak", loaded)
        time.sleep(REST_S)
        measure(f"{REST_S:.0f} s after all that", resident)
    aim = Aim("idle memory after start", idle, IDLE_AIM_MB, "MB", at_most=True)
    return Section("memory", [compared.table()], [aim, *compared.regressions()])


def _figure(of: Callable[[Target], float], target: Target) -> Figures:
    return {"MB": of(target)}


def load(target: Target, partitions: int, connections: int, megabytes: int) -> None:
    """Write and read a new topic over many connections at the same time."""
    whole = Load(1024, partitions, megabytes * 1_000_000)
    batch = whole.batch()
    topic = target.topic(partitions, batch)
    frames = [wire.produce_frame(topic, p, batch, -1) for p in range(partitions)]
    each = max(1, whole.batches // connections)
    # Each reads the first batch of each partition, and what else fits in one response.
    first = dict.fromkeys(range(partitions), (0, whole.records_per_batch))

    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(wire.connect(target.address)) for _ in range(connections)]
        pool = stack.enter_context(ThreadPoolExecutor(connections))
        jobs = []
        for number, sock in enumerate(socks):
            turn = number % partitions
            turned = frames[turn:] + frames[:turn]
            jobs.append(pool.submit(wire.pipelined, sock, turned, each, whole.window))
        jobs += [pool.submit(wire.read, target.address, topic, first, len(batch)) for _ in socks]
        for job in jobs:
            job.result()
