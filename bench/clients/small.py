"""Measures many small producers, and floods of single-record requests, with librdkafka."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import latency, wire
from bench.clients.contenders import Contender, Cost, completed, contenders, floors, guarded
from bench.report import Cell, Section, Table
from bench.run import Run, percentile
from bench.targets import ROOT
from bench.wire import Load

RECORD_BYTES = 100
PARTITIONS = 12
SECONDS, QUICK_SECONDS = 6.0, 3.0
PER_PROCESS = 100
"""Producers of one client process; each has threads of its own."""
COLUMNS = [
    *("load", "acks", "who", "records/s", "p50 ms", "p99 ms", "p99.9 ms"),
    *("CPU µs/record", "clients' CPU", "disk bytes/byte"),
]
NOTE = (
    "confluent-kafka, linger 0, records of 100 B, 12 partitions. Latencies are from the call to "
    "its callback; above 1,000 records/s they include a wait of about 1 ms for the client's "
    "program. records/s: acknowledged within the time of the load. CPU and bytes written to disks: "
    "of the server. Clients' CPU: µs/record of all client processes. Bare: write and fdatasync of "
    "one record. Floor: a server that only answers, immediately or after one fdatasync for all "
    "requests that are there (bench/clients/floor.py). Apache Kafka by default does not sync. With "
    "flush.messages=1 it syncs each request, so that it is measured with light loads only."
)
LIGHT_RATE = 1000
"""Most records per second of a load with which flush.messages=1 is measured."""


@dataclass(frozen=True)
class Shape:
    """A load.

    Attributes:
        name: For the table.
        producers: Number of producers.
        rate: Records per second of each.
        acks: ``1`` or ``all``.
    """

    name: str
    producers: int
    rate: float
    acks: str


MANY = (
    Shape("50 x 20/s", 50, 20, "all"),
    Shape("500 x 2/s", 500, 2, "all"),
    Shape("50 x 400/s (overload)", 50, 400, "all"),
    Shape("500 x 40/s (overload)", 500, 40, "all"),
)
FLOODS = (
    Shape("1 x 5,000/s", 1, 5_000, "all"),
    Shape("1 x 15,000/s", 1, 15_000, "1"),
    Shape("1 x 15,000/s", 1, 15_000, "all"),
    Shape("1 x 50,000/s (overload)", 1, 50_000, "all"),
)


def producers_section(run: Run) -> Section:
    """Measure 50 and 500 producers, light and overloaded."""
    return _section(run, "clients-producers", "Many small producers", MANY)


def floods_section(run: Run) -> Section:
    """Measure single-record requests of one producer."""
    return _section(run, "clients-floods", "Floods of single-record requests", FLOODS)


def _section(run: Run, name: str, title: str, shapes: tuple[Shape, ...]) -> Section:
    table = Table(title, COLUMNS, note=NOTE)
    with contenders(run) as servers, floors(run) as others:
        table.rows.append(["-", "-", "bare sync", None, *_bare(run), None, None, None])
        for shape in shapes:
            run.say(f"{name}: {shape.name}, acks {shape.acks}")
            turns: dict[str, Callable[[], tuple[dict[str, Any], Cost] | None]] = {
                each.name: partial(_turn, run, each, each.topic(PARTITIONS), shape)
                for each in (*servers, *others)
                if not each.configs or shape.producers * shape.rate <= LIGHT_RATE
            }
            for who, results in run.take_turns(turns).items():
                table.rows.append([shape.name, shape.acks, who, *_cells(results)])
    return Section(name, [table])


def _bare(run: Run) -> list[Cell]:
    batch = wire.make_batch(Load(RECORD_BYTES, 1, RECORD_BYTES, batch_bytes=RECORD_BYTES))
    with tempfile.TemporaryDirectory(prefix="bare-", dir=run.options.folder) as folder:
        each = latency.bare(Path(folder) / "bare", batch, 1000)
    return [percentile(each, percent) * 1e3 for percent in (50, 99, 99.9)]


def _cells(turns: list[tuple[dict[str, Any], Cost] | None]) -> list[Cell]:
    results = completed(turns)
    if not results:
        return [None] * 7

    def typical(key: str, factor: float = 1.0) -> float:
        return statistics.median(float(found[key]) for found, _ in results) * factor

    sent = [int(found["sent"]) for found, _ in results]
    spent = [cost.cpu_seconds / n * 1e6 for (_, cost), n in zip(results, sent, strict=True)]
    disk = [
        cost.disk_bytes / (n * RECORD_BYTES)
        for (_, cost), n in zip(results, sent, strict=True)
        if cost.disk_bytes is not None
    ]
    return [
        typical("delivered_per_s"),
        *(typical(key, 1e3) for key in ("p50", "p99", "p99.9")),
        statistics.median(spent),
        statistics.median(float(found["cpu_seconds"]) / int(found["sent"]) for found, _ in results)
        * 1e6,
        statistics.median(disk) if disk else None,
    ]


def _turn(
    run: Run, contender: Contender, topic: str, shape: Shape
) -> tuple[dict[str, Any], Cost] | None:
    seconds = QUICK_SECONDS if run.options.quick else SECONDS
    return guarded(run, contender.target, partial(load, contender, topic, shape, seconds))


def load(contender: Contender, topic: str, shape: Shape, seconds: float) -> dict[str, Any]:
    """Run the client processes of a load, and return their figures together.

    Raises:
        RuntimeError: A client failed; its traceback is on stderr.
    """
    command = [sys.executable, "-m", "bench.clients.programs", "--topic", topic]
    command += ["--bootstrap", contender.target.bootstrap, "--acks", shape.acks]
    command += ["--rate", str(shape.rate), "--seconds", str(seconds)]
    command += ["--size", str(RECORD_BYTES)]
    found: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, "--producers", str(min(PER_PROCESS, shape.producers - first))],
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                )
            )
            for first in range(0, shape.producers, PER_PROCESS)
        ]
        for client in clients:
            out, _ = client.communicate(timeout=seconds + 180)
            if client.returncode != 0:
                raise RuntimeError(f"a client of {contender.name} ended with {client.returncode}")
            found.append(json.loads(out))
    sums = ("sent", "failed", "delivered_per_s", "drained_per_s", "cpu_seconds")
    together: dict[str, Any] = {key: sum(each[key] for each in found) for key in sums}
    # Of several processes with the same load: the median of p50, and the worst of the others.
    together["p50"] = statistics.median(each["p50"] for each in found)
    together |= {key: max(each[key] for each in found) for key in ("p99", "p99.9")}
    if len(found) == 1:
        together["timeline"] = found[0]["timeline"]
    return together
