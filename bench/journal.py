"""Measures what acks=all costs with many partitions and with many small producers.

The first table has one librdkafka producer that writes 100 records over some partitions and waits
for all of them. It sends a request for each partition, which costs the client itself more than the
server, as the floor shows (``clients/floor.py``). In the second table the same records are in one
request, as Java's producer sends them. The third has 50 connections that each send 20 single-record
requests a second; their client is a few lines of asyncio, so that it costs little of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import cpu, librdkafka, machine, wire
from bench.report import Aim, Section, Table
from bench.run import Run, percentile
from bench.targets import Target, floor
from bench.wire import Load

RECORD_BYTES = 200
RECORDS = 100
CLIENTS, RATE, CROWD_PARTITIONS = 50, 20, 12
SPREAD_NOTE = (
    "One librdkafka producer, linger 0, acks=all: 100 records of 200 B over the partitions, then "
    "flush. Times from the first record to the last acknowledgement. Disk: bytes that the server "
    "wrote for each byte of records (write_bytes in /proc; -1 elsewhere). Client CPU: of 100 "
    "records. Floor: a server that answers immediately, or after one write and fdatasync."
)
TOGETHER_NOTE = (
    "One request with 100 records of 200 B, acks=all, over the partitions, encoded beforehand; the "
    "next one after its answer. CPU: of the server."
)
CROWD_NOTE = (
    "50 connections, each sends one record of 200 B with acks=all every 50 ms to one of 12 "
    "partitions. Apache Kafka by default does not sync; with flush.messages=1 it promises the same."
)
LIMIT = 1.3

_topic_numbers = itertools.count()


def section(run: Run) -> Section:
    """Measure 1, 12, 100 and 1,000 partitions, one request to many, and the crowd."""
    spread_table = Table(
        "acks=all over many partitions",
        [
            *("partitions", "who", "p50 ms", "p10 ms", "p99 ms", "to 1 partition"),
            *("client CPU ms", "disk bytes/byte"),
        ],
        note=SPREAD_NOTE,
    )
    together_table = Table(
        "acks=all, one request to many partitions",
        ["partitions", "who", "p50 ms", "p10 ms", "p99 ms", "to 1 partition", "CPU ms"],
        note=TOGETHER_NOTE,
    )
    crowd_table = Table(
        "50 producers x 20 records/s, acks=all", ["who", "p50 ms", "p99 ms"], note=CROWD_NOTE
    )
    result = Section("journal", [spread_table, together_table, crowd_table])
    with run.servers() as targets, _floors(run) as floors:
        every = [*targets, *floors]
        for target in every:
            librdkafka.prepare(target)
        counts = (1, 12, 100) if run.options.quick else (1, 12, 100, 1000)
        _add_spread(run, every, counts, spread_table, result)
        _add_together(run, every, together_table, result)
        run.say("journal: 50 producers")
        for name, turns in _crowd_turns(run, targets).items():
            waits = [s for turn in turns for s in turn]
            p50, p99 = percentile(waits, 50) * 1e3, percentile(waits, 99) * 1e3
            crowd_table.rows.append([name, p50, p99])
            if name == "tidemill":
                what = "50 producers x 20/s, acks=all, p50"
                result.aims.append(Aim(what, p50, 1.5, "ms", at_most=True))
    return result


@contextlib.contextmanager
def _floors(run: Run) -> Iterator[list[Target]]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(dir=run.options.folder)))
        yield [stack.enter_context(floor(folder, sync=sync)) for sync in (False, True)]


def _add_spread(
    run: Run, targets: list[Target], counts: tuple[int, ...], table: Table, result: Section
) -> None:
    p50: dict[tuple[str, int], float] = {}
    for partitions in counts:
        run.say(f"journal: {partitions} partition(s)")
        for name, each in _spread_turns(run, targets, partitions).items():
            cells = _percentiles([s for turn in each for s in turn.seconds])
            p50[name, partitions] = cells[0]
            client = statistics.median(turn.client for turn in each) * 1e3
            disk = statistics.median(turn.disk for turn in each)
            to_one = cells[0] / p50[name, 1]
            table.rows.append([partitions, name, *cells, to_one, client, disk])
    ours = p50["tidemill", 100]
    what = "acks=all p50 of librdkafka, 100 partitions to 1"
    result.aims.append(Aim(what, ours / p50["tidemill", 1], LIMIT, "x", at_most=True))
    what = "the same at 100 partitions, tidemill to a server that only syncs"
    result.aims.append(Aim(what, ours / p50["floor, fdatasync", 100], LIMIT, "x", at_most=True))


def _add_together(run: Run, targets: list[Target], table: Table, result: Section) -> None:
    one: dict[str, float] = {}
    for partitions in (1, 10, 100):
        run.say(f"journal: one request to {partitions} partition(s)")
        rounds = 200 if run.options.quick else 500
        contenders = {
            name: partial(together, target, _topic(target, partitions, flush), partitions, rounds)
            for name, (target, flush) in _kinds(targets).items()
        }
        turns = run.take_turns(contenders, rounds=max(2, run.options.rounds))
        for name, each in turns.items():
            cells = _percentiles([s for seconds, _ in each for s in seconds])
            to_one = cells[0] / one.setdefault(name, cells[0])
            spent = statistics.median(cpu_seconds for _, cpu_seconds in each) * 1e3
            table.rows.append([partitions, name, *cells, to_one, spent])
            if name == "tidemill" and partitions == 100:
                what = "acks=all p50 of one request, 100 partitions to 1"
                result.aims.append(Aim(what, to_one, LIMIT, "x", at_most=True))


def _percentiles(seconds: list[float]) -> list[float]:
    """Return p50, p10 and p99 in milliseconds."""
    return [percentile(seconds, percent) * 1e3 for percent in (50, 10, 99)]


def together(target: Target, topic: str, partitions: int, rounds: int) -> tuple[list[float], float]:
    """Send requests to all partitions of a topic, one after the other.

    Returns:
        The seconds of each, and the processor seconds of the server for one.

    Raises:
        RuntimeError: the last answer has an error code.
    """
    size = RECORDS // partitions * (RECORD_BYTES + wire.RECORD_OVERHEAD)
    batch = wire.make_batch(Load(RECORD_BYTES, 1, 1, batch_bytes=size))
    frame = wire.produce_frame_to(topic, range(partitions), batch, -1)
    with contextlib.closing(wire.connect(target.address)) as sock:
        wire.pipelined(sock, [frame], 20, 1)
        before = cpu.seconds(target.pid)
        seconds = [wire.pipelined(sock, [frame], 1, 1) for _ in range(rounds)]
        spent = cpu.seconds(target.pid) - before
    return seconds, spent / rounds


@dataclass(frozen=True, slots=True)
class SpreadTurn:
    """The seconds of each 100 records, the client's processor seconds for them, and the bytes on
    disk for each byte of records."""

    seconds: list[float]
    client: float
    disk: float


def _kinds(targets: list[Target]) -> dict[str, tuple[Target, str]]:
    """Return the contenders: name, server and its ``flush.messages``."""
    kinds = {target.name: (target, "") for target in targets}
    for target in targets:
        if target.name == "kafka":
            kinds["kafka, flush.messages=1"] = (target, "1")
    return kinds


def _topic(target: Target, partitions: int, flush: str) -> str:
    topic = f"journal-{next(_topic_numbers)}"
    target.create_topic(topic, partitions, **({"flush_messages": flush} if flush else {}))
    batch = wire.make_batch(Load(RECORD_BYTES, 1, RECORD_BYTES, batch_bytes=RECORD_BYTES))
    target.write_first(topic, partitions, batch)
    return topic


def _spread_turns(run: Run, targets: list[Target], partitions: int) -> dict[str, list[SpreadTurn]]:
    rounds = 50 if run.options.quick else 200
    contenders = {
        name: partial(spread, target, _topic(target, partitions, flush), rounds)
        for name, (target, flush) in _kinds(targets).items()
    }
    return run.take_turns(contenders, rounds=max(2, run.options.rounds))


def spread(target: Target, topic: str, rounds: int) -> SpreadTurn:
    """Write 100 records to all partitions of a topic, so many times."""
    before = machine.written_bytes(target.pid)
    found = librdkafka.client("spread", target, topic, count=rounds, size=RECORD_BYTES)
    after = machine.written_bytes(target.pid)
    disk = -1.0
    if before is not None and after is not None:
        disk = (after - before) / (rounds * RECORDS * RECORD_BYTES)
    client = float(found["cpu"]) / rounds
    return SpreadTurn([float(each) for each in found["each"]], client, disk)


def _crowd_turns(run: Run, targets: list[Target]) -> dict[str, list[list[float]]]:
    seconds = 3.0 if run.options.quick else 10.0
    contenders = {
        name: partial(crowd, target.address, _topic(target, CROWD_PARTITIONS, flush), seconds)
        for name, (target, flush) in _kinds(targets).items()
    }
    return run.take_turns(contenders, rounds=max(2, run.options.rounds))


def crowd(address: tuple[str, int], topic: str, seconds: float) -> list[float]:
    """Let 50 connections send for some seconds; return the seconds of each answer."""
    batch = wire.make_batch(Load(RECORD_BYTES, 1, RECORD_BYTES, batch_bytes=RECORD_BYTES))
    waits: list[float] = []

    async def one(number: int) -> None:
        loop = asyncio.get_running_loop()
        reader, writer = await asyncio.open_connection(*address)
        frame = wire.produce_frame(topic, number % CROWD_PARTITIONS, batch, -1)
        due = loop.time() + number / CLIENTS / RATE
        ends = due + seconds
        with contextlib.closing(writer):
            while due < ends:
                await asyncio.sleep(max(due - loop.time(), 0))
                began = loop.time()
                writer.write(frame)
                size = int.from_bytes(await reader.readexactly(4), "big")
                await reader.readexactly(size)
                waits.append(loop.time() - began)
                due = max(due + 1 / RATE, loop.time())

    async def every() -> None:
        await asyncio.gather(*(one(number) for number in range(CLIENTS)))

    asyncio.run(every())
    return waits
