"""Measures the broker's processor time per request: small batches, large records, small fetches.

    python -m bench --only requests
    git worktree add /tmp/before REVISION
    python -m bench --only requests --against /tmp/before

With another checkout, both brokers run at the same time and take turns. The requests are encoded
before the measurement (see ``wire``). A round sends some of them with one call and then reads all
of their responses, so ``together`` says how many requests the broker finds at the same time.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import cpu, wire
from bench.report import Aim, Cell, Section, Table
from bench.run import Run, percentile, ratio
from bench.targets import Target, other_checkout, tidemill
from bench.wire import Load

COLUMNS = [
    *("load", "together", "partitions", "acks", "CPU µs/request", "round p50 ms"),
    *("CPU before", "round before", "CPU now/before", "round now/before"),
]
NOTE = (
    "CPU: user and system time of the broker. Round: from the first byte of the requests that are "
    "sent together to the last response. Before: the checkout of --against."
)
RESPONSE_BYTES = 4 << 20

_topic_numbers = itertools.count()


@dataclass(frozen=True)
class Shape:
    """A load.

    Attributes:
        name: For the table.
        together: Requests that are sent together.
        partitions: Number of partitions that requests go to, in turn.
        acks: 1 or -1; None for fetches.
        requests: Number of requests in one turn.
        record_bytes: Size of a record.
        records: Number of records of a request.
    """

    name: str
    together: int
    partitions: int
    acks: int | None
    requests: int
    record_bytes: int = 100
    records: int = 1


SHAPES = (
    Shape("produce 100 B", 1, 1, 1, 10_000),
    Shape("produce 100 B", 1, 1, -1, 5_000),
    Shape("produce 100 B", 32, 12, 1, 40_000),
    Shape("produce 100 B", 32, 12, -1, 20_000),
    Shape("produce 100 B", 100, 100, -1, 20_000),
    Shape("produce 16 x 1 KB", 5, 12, 1, 10_000, 1000, 16),
    Shape("produce 16 x 1 KB", 5, 12, -1, 6_000, 1000, 16),
    Shape("produce 10 KB", 5, 12, 1, 10_000, 10_000),
    Shape("produce 10 KB", 5, 12, -1, 6_000, 10_000),
    Shape("produce 10 x 10 KB", 5, 12, -1, 2_000, 10_000, 10),
    Shape("fetch 100 B", 1, 1, None, 10_000),
    Shape("fetch 16 x 1 KB", 1, 1, None, 10_000, 1000, 16),
)


@dataclass(frozen=True)
class Turn:
    """The result of one turn: processor seconds per request, and the p50 of a round in seconds."""

    cpu: float
    p50: float


def section(run: Run) -> Section:
    """Measure all loads; against another checkout if one is named."""
    table = Table("Processor time per request", COLUMNS, note=NOTE)
    with _servers(run.options.folder, run.options.against) as servers:
        for shape in SHAPES:
            run.say(f"requests: {shape.name}, {shape.together} together, acks {shape.acks}")
            table.rows.append(_row(run, shape, servers))
    result = Section("requests", [table])
    ratios = [row[8] for row in table.rows if isinstance(row[8], float)]
    if ratios:
        median = statistics.median(ratios)
        result.aims.append(Aim("CPU per request, now/before, median", median, 1, "", at_most=True))
    return result


@contextlib.contextmanager
def _servers(folder: Path, other: Path | None) -> Iterator[dict[str, Target]]:
    with contextlib.ExitStack() as stack:
        found = {"now": stack.enter_context(tidemill(folder))}
        if other is not None:
            found["before"] = stack.enter_context(other_checkout(folder, other))
        yield found


def _row(run: Run, shape: Shape, servers: dict[str, Target]) -> list[Cell]:
    batch = _batch(shape)
    topic = f"requests-{next(_topic_numbers)}"
    for target in servers.values():
        target.create_topic(topic, shape.partitions)
        target.write_first(topic, shape.partitions, batch)
    turns = run.take_turns(
        {name: partial(_turn, shape, topic, batch, target) for name, target in servers.items()}
    )
    acks = {None: "-", -1: "all"}.get(shape.acks, shape.acks)
    cost = {name: [turn.cpu * 1e6 for turn in of] for name, of in turns.items()}
    took = {name: [turn.p50 * 1e3 for turn in of] for name, of in turns.items()}
    row: list[Cell] = [shape.name, shape.together, shape.partitions, acks]
    row += [statistics.median(cost["now"]), statistics.median(took["now"])]
    if "before" not in servers:
        return [*row, None, None, None, None]
    row += [statistics.median(cost["before"]), statistics.median(took["before"])]
    return [*row, ratio(cost["now"], cost["before"]), ratio(took["now"], took["before"])]


def _batch(shape: Shape) -> bytes:
    size = shape.records * (shape.record_bytes + wire.RECORD_OVERHEAD)
    return wire.make_batch(Load(shape.record_bytes, 1, 1, batch_bytes=size))


def _turn(shape: Shape, topic: str, batch: bytes, target: Target) -> Turn:
    if shape.acks is None:
        size = len(batch)
        frames = [wire.fetch_frame(topic, [(p, 0)], size, size) for p in range(shape.partitions)]
    else:
        frames = [wire.produce_frame(topic, p, batch, shape.acks) for p in range(shape.partitions)]
    following = itertools.cycle(frames)
    count = -(-shape.requests // shape.together)
    rounds = [b"".join(itertools.islice(following, shape.together)) for _ in range(len(frames))]
    buffer = bytearray(RESPONSE_BYTES)
    seconds = []
    with contextlib.closing(wire.connect(target.address)) as sock:
        began = cpu.seconds(target.pid)
        for each in itertools.islice(itertools.cycle(rounds), count):
            start = time.perf_counter()
            sock.sendall(each)
            for _ in range(shape.together):
                wire.read_response(sock, buffer)
            seconds.append(time.perf_counter() - start)
        spent = cpu.seconds(target.pid) - began
    return Turn(spent / (count * shape.together), percentile(seconds, 50))
