"""Measures the latency of a steady load with acks=all, in which the servers are often idle.

    python -m bench --only latency-steady
    python -m bench --only latency-steady --against /tmp/before

One connection sends batches of one record at a fixed rate, whether earlier ones were answered or
not. The latency of a batch counts from the time at which it was due, so a server that stops for a
while pays for all that were due meanwhile. What a server does behind its answers shows in the upper
percentiles: the syncs of segments behind the journal, the kernel's write-back.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from bench import wire
from bench.report import Cell, Section, Table
from bench.run import Run, percentile
from bench.targets import Target, other_checkout
from bench.wire import Load

COLUMNS = ["record", "records/s", "partitions", "who", "p50 ms", "p99 ms", "p99.9 ms", "max ms"]
NOTE = (
    "Batches of one record, one connection, at a fixed rate; medians of the rounds. Before: the "
    "checkout of --against. Apache Kafka does not sync, unless flush.messages is 1."
)
RECORD_BYTES, RATE = 10_240, 1500
SECONDS, QUICK_SECONDS = 10, 5
PARTITIONS = (1, 12)
PERCENTILES = (50, 99, 99.9, 100)

_topic_numbers = itertools.count()


def section(run: Run) -> Section:
    """Measure one and twelve partitions."""
    table = Table("Latency of a steady load, acks=all", COLUMNS, note=NOTE)
    other = run.options.against
    with contextlib.ExitStack() as stack:
        servers = {target.name: target for target in stack.enter_context(run.servers())}
        if other is not None:
            before = stack.enter_context(other_checkout(run.options.folder, other))
            servers["tidemill, before"] = before
        for partitions in PARTITIONS:
            run.say(f"latency-steady: {partitions} partition(s)")
            contenders = {
                name: partial(_turn, run, target, partitions) for name, target in servers.items()
            }
            if "kafka" in servers:
                contenders["kafka, flush.messages=1"] = partial(
                    _turn, run, servers["kafka"], partitions, flush_messages="1"
                )
            table.rows += _rows(run, partitions, contenders)
    return Section("latency-steady", [table])


def _rows(
    run: Run, partitions: int, contenders: Mapping[str, Callable[[], list[float]]]
) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for name, turns in run.take_turns(contenders).items():
        found = [
            statistics.median(percentile(turn, each) * 1e3 for turn in turns)
            for each in PERCENTILES
        ]
        rows.append([f"{RECORD_BYTES} B", RATE, partitions, name, *found])
    return rows


def _turn(run: Run, target: Target, partitions: int, **configs: str) -> list[float]:
    """Return the latencies of one turn in seconds."""
    batch = wire.make_batch(Load(RECORD_BYTES, partitions, 1, batch_bytes=RECORD_BYTES))
    topic = f"steady-{next(_topic_numbers)}"
    target.create_topic(topic, partitions, **configs)
    target.write_first(topic, partitions, batch)
    frames = [wire.produce_frame(topic, p, batch, -1) for p in range(partitions)]
    count = RATE * (QUICK_SECONDS if run.options.quick else SECONDS)
    answered: list[float] = []
    with contextlib.closing(wire.connect(target.address)) as sock:

        def read() -> None:
            buffer = bytearray(1 << 16)
            for _ in range(count):
                wire.read_response(sock, buffer)
                answered.append(time.perf_counter())

        reader = threading.Thread(target=read, name="reader", daemon=True)
        reader.start()
        began = time.perf_counter()
        for number, frame in zip(range(count), itertools.cycle(frames), strict=False):
            wait = began + number / RATE - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            sock.sendall(frame)
        reader.join(60)
    if len(answered) < count:
        raise RuntimeError(f"{target.name} answered {len(answered)} of {count} requests in time")
    return [at - began - number / RATE for number, at in enumerate(answered)]
