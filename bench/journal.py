"""Measures what acks=all costs with many partitions and with many small producers.

The first table has one librdkafka producer that writes 100 records over some partitions and waits
for all of them. The second has 50 connections that each send 20 single-record requests a second;
their client is a few lines of asyncio, so that it costs little of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
from dataclasses import dataclass
from functools import partial

from bench import librdkafka, machine, wire
from bench.report import Aim, Section, Table
from bench.run import Run, percentile
from bench.targets import Target
from bench.wire import Load

RECORD_BYTES = 200
RECORDS = 100
CLIENTS, RATE, CROWD_PARTITIONS = 50, 20, 12
SPREAD_NOTE = (
    "One librdkafka producer, linger 0, acks=all: 100 records of 200 B over the partitions, then "
    "flush. Times from the first record to the last acknowledgement. Disk: bytes that the server "
    "wrote for each byte of records (write_bytes in /proc; -1 elsewhere)."
)
CROWD_NOTE = (
    "50 connections, each sends one record of 200 B with acks=all every 50 ms to one of 12 "
    "partitions. Apache Kafka by default does not sync; with flush.messages=1 it promises the same."
)
LIMIT = 1.3

_topic_numbers = itertools.count()


def section(run: Run) -> Section:
    """Measure 1, 12, 100 and 1,000 partitions, and the crowd."""
    spread_table = Table(
        "acks=all over many partitions",
        ["partitions", "who", "p50 ms", "p99 ms", "to 1 partition", "disk bytes/byte"],
        note=SPREAD_NOTE,
    )
    crowd_table = Table(
        "50 producers x 20 records/s, acks=all", ["who", "p50 ms", "p99 ms"], note=CROWD_NOTE
    )
    result = Section("journal", [spread_table, crowd_table])
    with run.servers() as targets:
        for target in targets:
            librdkafka.prepare(target)
        one: dict[str, float] = {}
        for partitions in (1, 12, 100) if run.options.quick else (1, 12, 100, 1000):
            run.say(f"journal: {partitions} partition(s)")
            for name, each in _spread_turns(run, targets, partitions).items():
                seconds = [s for turn in each for s in turn.seconds]
                p50 = percentile(seconds, 50) * 1e3
                one.setdefault(name, p50)
                disk = statistics.median(turn.disk for turn in each)
                p99 = percentile(seconds, 99) * 1e3
                spread_table.rows.append([partitions, name, p50, p99, p50 / one[name], disk])
                if name == "tidemill" and partitions == 100:
                    what = "acks=all p50, 100 partitions to 1"
                    result.aims.append(Aim(what, p50 / one[name], LIMIT, "x", at_most=True))
        run.say("journal: 50 producers")
        for name, turns in _crowd_turns(run, targets).items():
            waits = [s for turn in turns for s in turn]
            p50, p99 = percentile(waits, 50) * 1e3, percentile(waits, 99) * 1e3
            crowd_table.rows.append([name, p50, p99])
            if name == "tidemill":
                what = "50 producers x 20/s, acks=all, p50"
                result.aims.append(Aim(what, p50, 1.5, "ms", at_most=True))
    return result


@dataclass(frozen=True, slots=True)
class SpreadTurn:
    """The seconds of each 100 records, and the bytes on disk for each byte of records."""

    seconds: list[float]
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
    return SpreadTurn([float(each) for each in found["each"]], disk)


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
