"""Measures throughput with pre-encoded batches, compared with the raw baseline in the same run.

The client sends bytes that were encoded before the measurement, and reads offsets only (see
``wire``). All contenders move the same batches, once per round.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import machine, wire
from bench.report import Aim, Cell, Section, Table
from bench.run import Run, ratio
from bench.targets import Target, baseline
from bench.wire import Load

AIMS = {"produce": 0.8, "consume": 0.6}
"""Smallest ratio to the raw baseline."""
AIM_FROM_BYTES = 1000
BATCHES = (65_536, 1_000_000)
"""Bytes per batch: a medium size, and the default limit of librdkafka (``batch.size``), which it
reaches when it is busy."""
COLUMNS = [
    *("what", "record", "batch", "partitions", "acks", "raw MB/s", "tidemill MB/s", "tidemill/raw"),
    *("aim", "checked/raw", "tidemill/checked", "kafka MB/s", "kafka/raw", "tidemill/kafka"),
]
NOTE = (
    "Batches encoded beforehand, one connection, 8 requests unanswered at most, fetches "
    "of 1 MiB per partition. Raw: the same bytes from a socket to a file and back; with acks all "
    "it answers after fdatasync. Checked: the same server, which also computes the CRC and, with "
    "acks 1, syncs the files every 50 ms, as a broker must. Apache Kafka answers acks all without "
    "any sync."
)

_topic_numbers = itertools.count()


@dataclass(frozen=True)
class Took:
    """The times of one turn in seconds.

    Attributes:
        produce: Time to write all batches.
        consume: Time to read them.
    """

    produce: float
    consume: float


def section(run: Run) -> Section:
    """Measure all cases; in quick runs without the smallest records."""
    sizes = (1024, 10_240) if run.options.quick else (100, 1024, 10_240)
    table = Table("Throughput, pre-encoded batches", COLUMNS, note=NOTE)
    with run.servers() as targets:
        warm_up(run, targets)
        for size, batch, partitions, acks in itertools.product(sizes, BATCHES, (1, 16), (1, -1)):
            load = Load(size, partitions, run.options.megabytes * 1_000_000, batch)
            run.say(
                f"throughput: {size} B in batches of {batch // 1000} kB, "
                f"{partitions} partition(s), acks {label(acks)}"
            )
            table.rows += measure(run, load, acks, targets)
    table.rows.sort(key=lambda row: str(row[0]), reverse=True)
    return Section("throughput", [table], _aims(table))


def _aims(table: Table) -> list[Aim]:
    aims = []
    for what, batch in itertools.product(("produce", "consume"), BATCHES):
        name = batch_label(batch)
        ratios = [row[7] for row in table.rows if row[0] == what and row[2] == name and row[8]]
        worst = min(each for each in ratios if isinstance(each, float))
        text = f"{what} throughput to raw baseline, 1 KB and above, batches of {name}, worst case"
        aims.append(Aim(text, worst, AIMS[what], "", at_most=False))
    return aims


def label(acks: int) -> str:
    """Return ``acks`` as users write it."""
    return "all" if acks == -1 else str(acks)


def batch_label(size: int) -> str:
    """Return a batch size as ``64 KB`` or ``1 MB``."""
    return "1 MB" if size == 1_000_000 else f"{size // 1024} KB"


def warm_up(run: Run, targets: Sequence[Target]) -> None:
    """Write and read without measuring, so that JIT compilers have run and files exist."""
    run.say("warming up")
    load = Load(1024, 4, 4 * run.options.megabytes * 1_000_000)
    batch = wire.make_batch(load)
    for target in targets:
        served(target, load, batch, 1)
        served(target, load, batch, -1)


def measure(run: Run, load: Load, acks: int, targets: Sequence[Target]) -> list[list[Cell]]:
    """Produce and consume one load; return two rows of the table."""
    batch = wire.make_batch(load)
    contenders: dict[str, Callable[[], Took]] = {
        "raw": partial(copied, run.options.folder, load, batch, acks),
        "checked": partial(copied, run.options.folder, load, batch, acks, checked=True),
    }
    for target in targets:
        contenders[target.name] = partial(served, target, load, batch, acks)
    took = run.take_turns(contenders)
    megabytes = load.batches * len(batch) / 1e6
    rows = []
    for what in ("produce", "consume"):
        seconds = {name: [getattr(turn, what) for turn in turns] for name, turns in took.items()}
        rows.append(_row(what, load, acks, megabytes, seconds))
    return rows


def _row(
    what: str, load: Load, acks: int, megabytes: float, took: dict[str, list[float]]
) -> list[Cell]:
    raw, ours, kafka = took["raw"], took["tidemill"], took.get("kafka")
    checked = took["checked"] if what == "produce" else None
    to_raw = ratio(raw, ours)
    verdict = None
    if load.record_bytes >= AIM_FROM_BYTES:
        verdict = "met" if to_raw >= AIMS[what] else "missed"
    return [
        *(what, f"{load.record_bytes} B", batch_label(load.batch_bytes)),
        *(load.partitions, label(acks)),
        *(megabytes / statistics.median(raw), megabytes / statistics.median(ours)),
        *(to_raw, verdict),
        *((ratio(raw, checked), ratio(checked, ours)) if checked else (None, None)),
        *(
            (megabytes / statistics.median(kafka), ratio(raw, kafka), ratio(kafka, ours))
            if kafka
            else (None, None, None)
        ),
    ]


# --- one turn ------------------------------------------------------------------------------------


def served(target: Target, load: Load, batch: bytes, acks: int) -> Took:
    """Write and read a new topic through the Kafka protocol."""
    topic = f"bench-{next(_topic_numbers)}"
    target.create_topic(topic, load.partitions)
    target.write_first(topic, load.partitions, batch)
    machine.settle()
    frames = [wire.produce_frame(topic, p, batch, acks) for p in range(load.partitions)]
    with contextlib.closing(wire.connect(target.address)) as sock:
        write_s = wire.pipelined(sock, frames, load.batches, load.window)
    machine.settle()
    # The first batch of each partition was not measured, so it is not read.
    ends = {
        p: (load.records_per_batch, load.records_per_batch * (1 + load.batches_of(p)))
        for p in range(load.partitions)
    }
    with contextlib.closing(wire.connect(target.address)) as sock:
        read_s = wire.consume(sock, topic, ends, len(batch))
    return Took(write_s, read_s)


def copied(parent: Path, load: Load, batch: bytes, acks: int, *, checked: bool = False) -> Took:
    """Move the same bytes through the raw baseline."""
    frame = wire.produce_frame("bench-raw", 0, batch, acks)
    with tempfile.TemporaryDirectory(prefix="raw-", dir=parent) as name:
        folder = Path(name)
        with (
            baseline(
                "write", folder, files=load.partitions, sync=acks == -1, checked=checked
            ) as address,
            contextlib.closing(wire.connect(address)) as sock,
        ):
            began = time.perf_counter()
            wire.windowed(sock, [frame], load.batches, load.window)
            write_s = time.perf_counter() - began
        machine.settle()
        with (
            baseline("read", folder, files=load.partitions, chunk=wire.FETCH_BYTES) as address,
            contextlib.closing(wire.connect(address)) as sock,
        ):
            total = sum(path.stat().st_size for path in folder.glob("raw-*"))
            buffer = bytearray(wire.FETCH_BYTES + 8)
            moved = 0
            began = time.perf_counter()
            while moved < total:
                sock.sendall(struct.pack(">q", 0))
                moved += wire.read_response(sock, buffer)
            read_s = time.perf_counter() - began
    return Took(write_s, read_s)
