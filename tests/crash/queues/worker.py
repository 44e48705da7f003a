"""A process with a broker's engine, publishers and consumers. It is killed at any moment.

Run as ``python -m tests.crash.queues.worker FOLDER FIRST_NUMBER MODE``. Each line on stdout is
written before the next thing happens: ``P n`` confirmed, ``D n 0|1 c`` delivered to consumer c
(redelivered or not), ``A n`` its acknowledgement is on disk, ``L n`` it is in the dead-letter
queue, ``END``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.engine.support import running
from tidemill.engine.engine import Engine
from tidemill.engine.queues import declarations
from tidemill.engine.queues.api import Consumer, ConsumerSpec, Delivery, Message, Owner, QueueSpec
from tidemill.engine.queues.live import lane as lanes

JOBS, DEAD = "jobs", "dead"
POISON, HESITANT = 7, 11
"""Multiples of the first are always rejected. Multiples of the second are released once."""
MOST_WAITING = 400
PAD = bytes(400)
ARGUMENTS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}


def note(*fields: object) -> None:
    os.write(1, (" ".join(map(str, fields)) + "\n").encode())


def number_of(delivery: Delivery) -> int:
    return int(bytes(delivery.value[:12]))


_workers = itertools.count()


class Worker:
    """A consumer that settles what it gets a turn later."""

    shares_credit = False

    def __init__(self, engine: Engine, prefetch: int) -> None:
        self._engine = engine
        self._prefetch = prefetch
        self._out = 0
        self.number = next(_workers)
        self.consumer: Consumer | None = None
        self.owner = Owner("worker")

    def credit(self) -> int:
        return self._prefetch - self._out

    def deliver(self, deliveries: list[Delivery]) -> None:
        self._out += len(deliveries)
        for delivery in deliveries:
            note("D", number_of(delivery), int(delivery.redelivered), self.number)
        asyncio.get_running_loop().call_soon(self._settle, deliveries)

    def cancelled(self, why: str) -> None:
        self.consumer = None

    def _settle(self, deliveries: Sequence[Delivery]) -> None:
        if self.consumer is None:
            return
        self._out -= len(deliveries)
        numbers = [(number_of(each), each) for each in deliveries]
        poison = [each for n, each in numbers if n % POISON == 0]
        later = [
            each for n, each in numbers if n % POISON and n % HESITANT == 0 and not each.redelivered
        ]
        done = [each for each in deliveries if each not in poison and each not in later]
        self.consumer.reject(poison)
        self.consumer.release(later)
        self.consumer.acknowledge(done)
        core = self._engine._queues
        lane = core.registry.get(JOBS).lanes[0]
        acknowledged = [number_of(each) for each in done]
        core._ack_log.after(lane, partial(_stored, acknowledged))


def _stored(numbers: Sequence[int]) -> None:
    for number in numbers:
        note("A", number)


async def consume(engine: Engine, prefetch: int) -> Worker:
    worker = Worker(engine, prefetch)
    spec = ConsumerSpec("t", worker.owner)
    worker.consumer = await engine.queues.consume(JOBS, spec, worker)
    return worker


async def work(engine: Engine, first: int) -> None:
    """Publish and consume, and close and open consumers, until the end."""
    waiting = 0

    def settled(accepted: list[int], refused: list[int]) -> None:
        nonlocal waiting
        waiting -= len(accepted) + len(refused)
        for tag in accepted:
            note("P", tag)

    publisher = engine.queues.publisher(settled)
    numbers = itertools.count(first)
    workers = [await consume(engine, prefetch) for prefetch in (1, 30)]
    dice = random.Random(first)
    while True:
        for _ in range(dice.randint(1, 60) if waiting < MOST_WAITING else 0):
            number = next(numbers)
            message = Message(b"%012d" % number + PAD, JOBS.encode())
            waiting += publisher.publish(number, "", JOBS, message)
        await asyncio.sleep(0)
        if dice.random() < 0.02:  # a consumer dies with what it holds
            dead = workers.pop(0)
            dead.consumer = None
            await engine.queues.connection_closed(dead.owner)
            workers.append(await consume(engine, dice.choice((1, 7, 100))))


async def drain(engine: Engine) -> None:
    """Consume everything, and read the dead letters."""
    worker = await consume(engine, 200)
    queues, owner = engine.queues, Owner("drain")

    def is_empty() -> bool:
        # Messages whose dead letters are not on disk yet are out to the broker itself.
        (lane,) = engine._queues.registry.get(JOBS).lanes
        return queues.describe(JOBS).ready == 0 and lane.window.acquired == 0

    await wait_for(is_empty)
    while (found := await queues.get(DEAD, owner, no_ack=True)) is not None:
        note("L", number_of(found.delivery))
    if worker.consumer is not None:
        worker.consumer.cancel()


async def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def main(folder: Path, first: int, mode: str) -> None:
    async with running(folder) as engine:
        owner = Owner("main")
        await engine.queues.declare_queue(DEAD, QueueSpec(), owner)
        await engine.queues.declare_queue(JOBS, QueueSpec(arguments=ARGUMENTS), owner)
        if mode == "work":
            await work(engine, first)
        else:
            await drain(engine)
    note("END")


if __name__ == "__main__":
    # Small, so that segments are deleted and messages are read from the log.
    declarations.SEGMENT_BYTES = 1 << 20
    lanes.RECENT_BYTES = 1 << 15
    lanes.READ_BYTES = 1 << 15
    sys.stdout.flush()
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
