"""Measures the latency of one synchronous producer with acks=all, compared with write + fdatasync.

Each record waits for the acknowledgement of the previous one. The bare loop appends the same bytes
to a file on the same disk. Turns are short, so that the disk behaves the same for all.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import librdkafka, wire
from bench.report import Aim, Section, Table
from bench.run import Run, percentile
from bench.targets import Target
from bench.wire import Load

COLUMNS = ["record", "who", "p50 ms", "p99 ms", "p50 to bare"]
NOTE = (
    "A record, its acknowledgement, the next record. Bare: write and fdatasync of the same batch. "
    "Apache Kafka by default does not sync; with flush.messages=1 it promises what tidemill does."
)
FACTOR, ALLOWANCE_MS = 1.5, 0.5
AIM_BYTES = 1024

_topic_numbers = itertools.count()


def section(run: Run) -> Section:
    """Measure records of 100 B and 1 KB; in quick runs 1 KB only."""
    table = Table("Latency of one synchronous producer, acks=all", COLUMNS, note=NOTE)
    result = Section("latency", [table])
    with run.servers() as targets:
        for target in targets:
            librdkafka.prepare(target)
        for size in (AIM_BYTES,) if run.options.quick else (100, AIM_BYTES):
            run.say(f"latency: {size} B")
            took = measure(run, size, targets)
            bare = percentile(took["bare sync"], 50)
            for name, each in took.items():
                p50, p99 = percentile(each, 50), percentile(each, 99)
                table.rows.append([f"{size} B", name, p50 * 1e3, p99 * 1e3, p50 / bare])
            if size == AIM_BYTES:
                result.aims.append(_aim(bare, percentile(took["tidemill"], 50)))
    return result


def _aim(bare_s: float, ours_s: float) -> Aim:
    limit = FACTOR * bare_s * 1e3 + ALLOWANCE_MS
    what = f"durable latency p50, 1 KB: {FACTOR} x bare sync ({bare_s * 1e3:.3f} ms) + 0.5 ms"
    return Aim(what, ours_s * 1e3, limit, "ms", at_most=True)


def measure(run: Run, size: int, targets: list[Target]) -> dict[str, list[float]]:
    """Return the seconds of each record, by contender."""
    each_turn = 50 if run.options.quick else 100
    batch = wire.make_batch(Load(size, 1, size, batch_bytes=size))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="bare-", dir=run.options.folder)
        )
        contenders: dict[str, Callable[[], list[float]]] = {
            "bare sync": partial(bare, Path(folder) / "bare", batch, each_turn)
        }
        for target in targets:
            promises = {target.name: ""}
            if target.name == "kafka":
                promises = {"kafka, no sync": "", "kafka, flush.messages=1": "1"}
            for name, flush in promises.items():
                topic = f"latency-{next(_topic_numbers)}"
                target.create_topic(topic, 1, **({"flush_messages": flush} if flush else {}))
                target.write_first(topic, 1, batch)
                contenders[name] = partial(raw_client, target, topic, batch, each_turn)
                contenders[f"{name}, librdkafka"] = partial(rdkafka, target, topic, size, each_turn)
        turns = run.take_turns(contenders, rounds=max(2, run.options.rounds))
    return {name: [s for turn in each for s in turn] for name, each in turns.items()}


def bare(path: Path, batch: bytes, count: int) -> list[float]:
    """Append and sync without a server, and return the seconds of each batch."""
    seconds = []
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(fd, batch)
        os.fdatasync(fd)
        for _ in range(count):
            began = time.perf_counter()
            os.write(fd, batch)
            os.fdatasync(fd)
            seconds.append(time.perf_counter() - began)
    finally:
        os.close(fd)
    return seconds


def raw_client(target: Target, topic: str, batch: bytes, count: int) -> list[float]:
    """Send Produce requests on one socket, each after the response to the previous one."""
    frame = wire.produce_frame(topic, 0, batch, -1)
    with contextlib.closing(wire.connect(target.address)) as sock:
        wire.pipelined(sock, [frame], 1, 1)
        return [wire.pipelined(sock, [frame], 1, 1) for _ in range(count)]


def rdkafka(target: Target, topic: str, size: int, count: int) -> list[float]:
    """Do the same with librdkafka and linger 0."""
    found = librdkafka.client("latency", target, topic, count=count, size=size)
    return [float(each) for each in found["each"]]
