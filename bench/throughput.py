"""Throughput with pre-encoded batches, against the raw baseline, in one run.

For each case the contenders take turns, ``rounds`` times; the figure is the median of the rounds'
ratios, so that a noisy machine is noisy for all of them.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import wire
from bench.targets import Target, baseline, drop_files
from bench.wire import Load

FETCH_BYTES = 1 << 20
_topic_numbers = itertools.count()


@dataclass
class Row:
    """One case: MB/s of the raw baseline, and of each target with its ratio to it."""

    what: str
    record_bytes: int
    partitions: int
    acks: str
    raw_mb_s: float
    by_target: dict[str, tuple[float, float]]
    """name -> (MB/s, ratio to raw)"""


def measure(load: Load, acks: int, targets: Sequence[Target], rounds: int) -> list[Row]:
    """Produce and consume one load; two rows."""
    batch = wire.make_batch(load)
    produced: dict[str, list[float]] = {}
    consumed: dict[str, list[float]] = {}
    for _ in range(rounds):
        write_s, read_s = _run_baseline(load, batch, acks)
        produced.setdefault("raw", []).append(write_s)
        consumed.setdefault("raw", []).append(read_s)
        for target in targets:
            write_s, read_s = _run_target(target, load, batch, acks)
            produced.setdefault(target.name, []).append(write_s)
            consumed.setdefault(target.name, []).append(read_s)
    megabytes = load.batches * len(batch) / 1e6
    label = "all" if acks == -1 else str(acks)
    return [
        _row("produce", load, label, megabytes, produced),
        _row("consume", load, label, megabytes, consumed),
    ]


def _row(what: str, load: Load, acks: str, megabytes: float, took: dict[str, list[float]]) -> Row:
    raw = took["raw"]
    return Row(
        what,
        load.record_bytes,
        load.partitions,
        acks,
        megabytes / statistics.median(raw),
        {
            name: (
                megabytes / statistics.median(seconds),
                statistics.median(r / s for r, s in zip(raw, seconds, strict=True)),
            )
            for name, seconds in took.items()
            if name != "raw"
        },
    )


def _run_target(target: Target, load: Load, batch: bytes, acks: int) -> tuple[float, float]:
    topic = f"bench-{next(_topic_numbers)}"
    target.create_topic(topic, load.partitions)
    with _topic_removed(target, topic):
        frames = [wire.produce_frame(topic, p, batch, acks) for p in range(load.partitions)]
        with contextlib.closing(wire.connect(target.address)) as sock:
            _wait_until_writable(sock, wire.produce_frame(topic, 0, batch, -1))
            write_s = wire.pipelined(sock, frames, load.batches, load.window)
        per_partition = load.batches // load.partitions * load.records_per_batch
        with contextlib.closing(wire.connect(target.address)) as sock:
            chunk = max(FETCH_BYTES // load.partitions, len(batch) * 2)
            read_s, _ = wire.consume_all(sock, topic, load.partitions, per_partition, chunk)
        return write_s, read_s


def _wait_until_writable(sock: socket.socket, frame: bytes) -> None:
    """Apache Kafka answers a moment after creation with NOT_LEADER: ask until it does not."""
    deadline = time.monotonic() + 30
    while True:
        try:
            wire.pipelined(sock, [frame], 1, 1)
            return
        except RuntimeError:
            if time.monotonic() > deadline:
                raise


@contextlib.contextmanager
def _topic_removed(target: Target, topic: str) -> Iterator[None]:
    try:
        yield
    finally:
        target.delete_topic(topic)


def _run_baseline(load: Load, batch: bytes, acks: int) -> tuple[float, float]:
    frame = wire.produce_frame("bench-raw", 0, batch, acks)
    with tempfile.TemporaryDirectory(prefix="raw-bench-") as name:
        folder = Path(name)
        with (
            baseline("write", folder, files=load.partitions, sync=acks == -1) as address,
            contextlib.closing(wire.connect(address)) as sock,
        ):
            write_s = _copy_in(sock, frame, load)
        with (
            baseline("read", folder, files=load.partitions, chunk=FETCH_BYTES) as address,
            contextlib.closing(wire.connect(address)) as sock,
        ):
            total = sum(path.stat().st_size for path in folder.glob("raw-*"))
            read_s = _copy_out(sock, total, load.partitions)
        drop_files(folder)
    return write_s, read_s


def _copy_in(sock: socket.socket, frame: bytes, load: Load) -> float:
    return _timed(lambda: wire.windowed(sock, [frame], load.batches, load.window))


def _copy_out(sock: socket.socket, total: int, partitions: int) -> float:
    buffer = bytearray(FETCH_BYTES + 8)

    def copy() -> None:
        moved = 0
        while moved < total:
            sock.sendall(struct.pack(">q", 0))
            moved += wire.read_response(sock, buffer)

    return _timed(copy)


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
