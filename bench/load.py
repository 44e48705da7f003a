"""The load generator: one kind of case, which every client can run against every server.

A case says what is sent, how and by which client. A turn of it returns figures: rates, percentiles,
and the processor time of server and client. ``cases`` has the table of all cases.
"""

from __future__ import annotations

import itertools
import os
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench import cpu, machine, programs, wire
from bench.clients import perf_tools
from bench.compare import Figures
from bench.run import Options, percentile
from bench.targets import Target, baseline
from bench.wire import Load

Client = Literal["raw", "librdkafka", "Java"]
Kind = Literal["rounds", "rate", "bulk", "read", "fetch", "transact"]
PERCENTILES = {"p10 ms": 10, "p50 ms": 50, "p99 ms": 99, "p99.9 ms": 99.9, "max ms": 100}
_PROGRAM = "bench.clients.program"
PER_PROCESS = 100
"""Most producers of one process of librdkafka; each has threads of its own."""
LIGHT_RATE = 1500
"""Most records per second with which a server that syncs each request is measured."""
MOST_RECORDS = 1_000_000
"""Most records of one turn of a client that handles them one by one."""
MOST_TRANSACTIONS = 500
"""Most transactions in a turn, because a small one takes as long as a large one."""
DISCARDED = 20
"""Most rounds at the beginning of a turn that are not measured."""
JAVA_WARM_UP = 1.2
"""All records of Java's producer to the measured ones."""


@dataclass(frozen=True)
class Case:
    """A load.

    Attributes:
        client: Raw sockets with requests that are encoded before, librdkafka, or Java's perf tools.
        kind: ``rounds``: a closed loop, in which the next requests follow the answers to the last
            ones. ``rate``: records at a rate, whatever the server does. ``bulk``: as much as goes,
            then all of it is read, except by Java. ``read``: what is there is read. ``fetch``: the
            closed loop with fetches. ``transact``: an idempotent producer.
        size: Bytes of a record's value.
        partitions: Number of partitions, which are written in turn.
        acks: ``1`` or ``all``.
        batch: Records in a request of the raw client.
        batch_bytes: Bytes in a request of the raw client if it sends as much as it can.
        together: Requests of a round of the raw client, or records of one of librdkafka.
        everywhere: Whether a request of the raw client has a batch for each partition.
        connections: Number of connections or producers that have a rate.
        rate: Requests or records a second of each.
        seconds: Duration of a load with a rate; half of it in quick runs.
        rounds: Number of rounds; half of them in quick runs.
        codec: Compression of Java's producer.
        each: Records in a transaction; 0 for none.
        records: Number of records of a bulk load; 0: as many as the option ``megabytes`` says.
        is_long: Whether quick runs leave it out.
    """

    client: Client = "raw"
    kind: Kind = "rounds"
    size: int = 100
    partitions: int = 1
    acks: Literal["1", "all"] = "all"
    batch: int = 1
    batch_bytes: int = 65_536
    together: int = 1
    everywhere: bool = False
    connections: int = 1
    rate: float = 0
    seconds: float = 6.0
    rounds: int = 200
    codec: str = "none"
    each: int = 0
    records: int = 0
    is_long: bool = False

    def __str__(self) -> str:
        """The row of a table."""
        if self.kind == "transact":
            return f"{self.each:,} records a transaction" if self.each else "no transactions"
        what = {"read": "consume", "fetch": "fetch"}.get(self.kind, "produce")
        amount = f"{self.batch} x {self.size} B" if self.batch > 1 else f"{self.size} B"
        parts = [self.client, f"{what} {amount}"]
        if self.client == "raw" and self.kind == "bulk":
            parts.append(f"batches of {_size(self.batch_bytes)}")
        if self.together > 1:
            parts.append(f"{self.together} together")
        if self.rate:
            parts.append(f"{self.connections} x {self.rate:,g}/s")
        parts.append(f"{self.partitions} partition{'s' if self.partitions > 1 else ''}")
        if self.everywhere:
            parts[-1] += " in each request"
        if what == "produce":
            parts.append(f"acks {self.acks}")
        if self.codec != "none":
            parts.append(self.codec)
        return ", ".join(parts)

    @property
    def is_light(self) -> bool:
        """Whether a server that syncs each request can follow."""
        if self.kind == "rate":
            return self.rate * self.connections <= LIGHT_RATE
        return self.kind == "rounds" or (self.client == "Java" and self.kind == "bulk")

    def rounds_in(self, options: Options) -> int:
        """Return the rounds of a turn."""
        return self.rounds // 2 if options.quick else self.rounds

    def seconds_in(self, options: Options) -> float:
        """Return the duration of a turn."""
        return self.seconds / 2 if options.quick else self.seconds

    def load(self, megabytes: float) -> Load:
        """Return the batches of a bulk load."""
        total = int(megabytes * 1e6)
        if self.client == "librdkafka":
            total = min(total, MOST_RECORDS * self.size)
        if self.kind == "read":
            total *= 2
        if self.records:
            total = self.records * self.size
        return Load(self.size, self.partitions, total, self.batch_bytes)


def _size(count: int) -> str:
    return "1 MB" if count == 1_000_000 else f"{count // 1024} KB"


@dataclass
class Seen:
    """The result of a turn, as the client has seen it.

    Attributes:
        records: Records that were written or read.
        requests: Requests of the raw client.
        seconds: Duration.
        cpu: Processor seconds of the client; None: those of the programs that have ended.
        latencies: In seconds.
        figures: Figures that the client itself has computed, and those of other parts of the turn.
    """

    records: int
    seconds: float
    cpu: float | None = None
    requests: int = 0
    latencies: Sequence[float] = ()
    figures: Figures | None = None


def topic_of(case: Case, target: Target, options: Options) -> str:
    """Return a new topic for the turns of a case; empty if each turn makes its own."""
    if case.kind in ("bulk", "transact"):
        return "" if case.client != "Java" else target.topic(case.partitions)
    if case.kind == "read":
        topic, load = target.topic(case.partitions, b""), case.load(options.megabytes)
        batch = load.batch()
        target.write_first(topic, case.partitions, batch)
        wire.write(target.address, topic, load, batch, 1)
        return topic
    return target.topic(case.partitions, wire.make_batch(case.size, case.batch))


def turn(case: Case, target: Target, topic: str, options: Options) -> Figures:
    """Run one turn of a case.

    Args:
        topic: What ``topic_of`` returned.

    Raises:
        RuntimeError: The client failed (its traceback is on stderr), or not all records were
            written and read.
    """
    client_before, idle_before = cpu.ended_children_seconds(), cpu.idle_seconds()
    disk_before, meter = machine.written_bytes(target.pid), cpu.Meter(target.pid)
    began = time.perf_counter()
    seen = _CLIENTS[case.client](case, target, topic, options)
    took = time.perf_counter() - began
    spent = meter.spent()
    client = cpu.ended_children_seconds() - client_before if seen.cpu is None else seen.cpu
    idle = (cpu.idle_seconds() - idle_before) / (took * (os.cpu_count() or 1))
    size = seen.records * case.size
    found = {
        "records/s": seen.records / seen.seconds,
        "MB/s": size / seen.seconds / 1e6,
        "CPU µs/record": spent / seen.records * 1e6,
        "CPU ms/MB": spent / size * 1e9,
        "client CPU µs/record": client / seen.records * 1e6,
        "idle": idle,
    }
    if seen.latencies:
        found |= {name: percentile(seen.latencies, at) * 1e3 for name, at in PERCENTILES.items()}
    if seen.requests:
        found["CPU µs/request"] = spent / seen.requests * 1e6
    machine.settle()
    disk_after = machine.written_bytes(target.pid)
    if disk_before is not None and disk_after is not None and case.kind not in ("read", "fetch"):
        found["disk bytes/byte"] = (disk_after - disk_before) / size
    return found | dict(seen.figures or {})


# --- clients -------------------------------------------------------------------------------------


def _raw(case: Case, target: Target, topic: str, options: Options) -> Seen:
    if case.kind == "bulk":
        return _raw_bulk(case, target, options)
    batch = wire.make_batch(case.size, case.batch)
    acks = -1 if case.acks == "all" else 1
    places = range(case.partitions)
    if case.kind == "fetch":
        size = len(batch)
        frames = [wire.fetch_frame(topic, [(place, 0)], size, size) for place in places]
    elif case.everywhere:
        frames = [wire.produce_frame_to(topic, places, batch, acks)]
    else:
        frames = [wire.produce_frame(topic, place, batch, acks) for place in places]
    used, began = time.process_time(), time.perf_counter()
    if case.kind == "rate":
        seconds = case.seconds_in(options)
        each = wire.paced(target.address, frames, case.connections, case.rate, seconds)
        requests = len(each)
    else:
        rounds = case.rounds_in(options)
        each = wire.rounds(target.address, frames, case.together, rounds)
        each = each[min(DISCARDED, rounds // 5) :]
        requests = rounds * case.together
    took, used = time.perf_counter() - began, time.process_time() - used
    records = requests * case.batch * (case.partitions if case.everywhere else 1)
    return Seen(records, took, used, requests, each)


def _raw_bulk(case: Case, target: Target, options: Options) -> Seen:
    load = case.load(options.megabytes)
    batch, first = load.batch(), load.records_per_batch
    topic = target.topic(case.partitions, batch)
    machine.settle()
    used = time.process_time()
    wrote = wire.write(target.address, topic, load, batch, -1 if case.acks == "all" else 1)
    machine.settle()
    # The first batch of each partition was not measured, so it is not read.
    ends = {p: (first, first * (1 + load.batches_of(p))) for p in range(case.partitions)}
    read = wire.read(target.address, topic, ends, len(batch))
    return _bulk(case, load.records, wrote, read, time.process_time() - used, load.batches)


def _bulk(
    case: Case, records: int, wrote: float, read: float, used: float, requests: int = 0
) -> Seen:
    size = records * case.size / 1e6
    figures = {"produce MB/s": size / wrote, "consume MB/s": size / read}
    return Seen(records, wrote + read, used, requests, figures=figures)


def _librdkafka(case: Case, target: Target, topic: str, options: Options) -> Seen:
    if case.kind == "rate":
        return _at_a_rate(case, target, topic, options)
    about: dict[str, Any] = {"size": case.size, "acks": case.acks}
    if case.kind == "rounds":
        about |= {"count": case.rounds_in(options), "together": case.together}
        found = program("rounds", target, topic, **about)
        records = case.rounds_in(options) * case.together
        return Seen(records, found["seconds"], found["cpu"], latencies=found["each"])
    load = case.load(options.megabytes)
    count, wanted = load.records, load.records * case.size
    if case.kind == "read":
        found = program("consume", target, topic, count=count)
        return Seen(count, found["seconds"], found["cpu"])
    if case.each:
        count = min(count, case.each * MOST_TRANSACTIONS)
        wanted = count * case.size
    topic = target.topic(case.partitions, b"")
    machine.settle()
    job = "transact" if case.kind == "transact" else "bulk"
    wrote = program(job, target, topic, count=count, each=case.each, **about)
    machine.settle()
    read = program("consume", target, topic, count=count)
    if read["bytes"] != wanted:
        raise RuntimeError(f"{wanted} bytes written, {read['bytes']} read")
    if case.kind == "transact":
        return Seen(count, wrote["seconds"], wrote["cpu"], latencies=wrote["each"])
    return _bulk(case, count, wrote["seconds"], read["seconds"], wrote["cpu"] + read["cpu"])


def _at_a_rate(case: Case, target: Target, topic: str, options: Options) -> Seen:
    """Run the client processes of a load, and return what all have seen."""
    found = at_a_rate(case, target, topic, case.seconds_in(options))
    each = [latency for client in found for latency in client["each"]]
    within = sum(at <= client["seconds"] for client in found for at in client["at"])
    sent = sum(int(client["sent"]) for client in found)
    seconds = max(float(client["seconds"]) for client in found)
    used = sum(float(client["cpu"]) for client in found)
    figures = {"records/s": within / seconds}
    return Seen(sent, seconds, used, latencies=each or (0.0,), figures=figures)


def at_a_rate(case: Case, target: Target, topic: str, seconds: float) -> list[dict[str, Any]]:
    """Run the client processes of a load that has a rate, and return what each has printed.

    Raises:
        RuntimeError: A client failed; its traceback is on stderr.
    """
    options = _options(target, topic, size=case.size, acks=case.acks, rate=case.rate)
    options += ["--seconds", str(seconds), "--producers"]
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                programs.start(_PROGRAM, "rate", *options, min(PER_PROCESS, case.connections - n))
            )
            for n in range(0, case.connections, PER_PROCESS)
        ]
        return [programs.result_of(client, seconds + 180) for client in clients]


def _options(target: Target, topic: str, **options: object) -> list[str]:
    named = {"bootstrap": target.bootstrap, "topic": topic, **options}
    return list(itertools.chain(*((f"--{key}", str(value)) for key, value in named.items())))


def program(job: str, target: Target, topic: str, **options: object) -> dict[str, Any]:
    """Run one job of ``clients/program.py`` and return its result.

    Raises:
        RuntimeError: It failed; its traceback is on stderr.
    """
    found: dict[str, Any] = programs.result(_PROGRAM, job, *_options(target, topic, **options))
    return found


def _java(case: Case, target: Target, topic: str, options: Options) -> Seen:
    if case.kind == "read":
        count = case.load(options.megabytes).records
        rate = perf_tools.consume(target.bootstrap, topic, count, case.size)
        return Seen(count, count * case.size / rate / 1e6)
    count = max(20_000, options.megabytes * 1_000_000 // case.size // 2)
    properties = {"acks": case.acks, "compression_type": case.codec}
    if case.acks != "all":
        properties["enable_idempotence"] = "false"
    found = perf_tools.produce(target.bootstrap, topic, count, case.size, **properties)
    figures = {
        "records/s": found.records_per_s,
        "MB/s": found.mb_per_s,
        "p50 ms": found.p50_ms,
        "p99 ms": found.p99_ms,
        "p99.9 ms": found.p999_ms,
    }
    records = int(count * JAVA_WARM_UP)
    return Seen(records, records / found.records_per_s, figures=figures)


_CLIENTS: dict[str, Callable[[Case, Target, str, Options], Seen]] = {
    "raw": _raw,
    "librdkafka": _librdkafka,
    "Java": _java,
}


# --- without a broker ----------------------------------------------------------------------------


def bare(case: Case, options: Options) -> Figures:
    """Append and sync the same batches without a server; return percentiles."""
    batch, each = wire.make_batch(case.size, case.batch), []
    with tempfile.NamedTemporaryFile(prefix="bare-", dir=options.folder, buffering=0) as file:
        for _ in range(max(100, case.rounds_in(options))):
            began = time.perf_counter()
            file.write(batch)
            os.fdatasync(file.fileno())
            each.append(time.perf_counter() - began)
    return {name: percentile(each[1:], at) * 1e3 for name, at in PERCENTILES.items()}


def copied(case: Case, options: Options, *, checked: bool = False) -> Figures:
    """Move the bytes of a bulk load through the raw baseline."""
    load = case.load(options.megabytes)
    if case.client == "Java":
        load = Load(case.size, case.partitions, load.total_bytes // 2, batch_bytes=16_384)
    frame = wire.produce_frame("bench-raw", 0, load.batch(), -1)
    buffer = bytearray(wire.FETCH_BYTES + 8)
    with tempfile.TemporaryDirectory(prefix="raw-", dir=options.folder) as name:
        folder, sync = Path(name), case.acks == "all"
        with (
            baseline("write", folder, files=load.partitions, sync=sync, checked=checked) as address,
            closing(wire.connect(address)) as sock,
        ):
            began = time.perf_counter()
            wire.windowed(sock, [frame], load.batches, load.window)
            wrote = time.perf_counter() - began
        machine.settle()
        with (
            baseline("read", folder, files=load.partitions, chunk=wire.FETCH_BYTES) as address,
            closing(wire.connect(address)) as sock,
        ):
            total, moved = sum(path.stat().st_size for path in folder.glob("raw-*")), 0
            began = time.perf_counter()
            while moved < total:
                sock.sendall(struct.pack(">q", 0))
                moved += wire.read_response(sock, buffer)
            read = time.perf_counter() - began
    produced, consumed = load.megabytes / wrote, load.megabytes / read
    rate = consumed if case.kind == "read" else produced
    return {"MB/s": rate, "produce MB/s": produced, "consume MB/s": consumed}


def warm_up(target: Target, options: Options) -> None:
    """Write and read without measuring, so that JIT compilers have run and files exist."""
    for acks in (1, -1):
        load = Load(1024, 4, 2 * options.megabytes * 1_000_000)
        batch = load.batch()
        topic = target.topic(4, batch)
        wire.write(target.address, topic, load, batch, acks)
        ends = {p: (0, load.records_per_batch * load.batches_of(p)) for p in range(4)}
        wire.read(target.address, topic, ends, len(batch))
