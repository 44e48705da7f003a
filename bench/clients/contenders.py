"""The servers of one run, their topics, and what a load costs them."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from bench import cpu, librdkafka, machine, wire
from bench.report import Cell
from bench.run import Run
from bench.targets import Target, floor
from bench.wire import Load

Result = TypeVar("Result")

_topic_numbers = itertools.count()


@dataclass(frozen=True)
class Contender:
    """A server with one kind of topics.

    Attributes:
        name: The server, and what differs from its defaults.
        target: The server.
        configs: Topic configs, with ``_`` instead of dots.
    """

    name: str
    target: Target
    configs: dict[str, str] = field(default_factory=dict)

    def topic(self, partitions: int) -> str:
        """Create a topic, and write one record to each partition."""
        name = f"clients-{next(_topic_numbers)}"
        self.target.create_topic(name, partitions, **self.configs)
        self.target.write_first(name, partitions, wire.make_batch(Load(100, 1, 1, batch_bytes=100)))
        return name


@dataclass(frozen=True)
class Cost:
    """The cost of a load.

    Attributes:
        cpu_seconds: Processor time of the server.
        disk_bytes: Bytes that the server wrote to disks; None if that is not known.
        client_seconds: Processor time of programs that the load has started and waited for.
        idle: The part of the machine's processor time in which there was nothing to do.
    """

    cpu_seconds: float
    disk_bytes: int | None
    client_seconds: float
    idle: float


@contextmanager
def contenders(run: Run) -> Iterator[list[Contender]]:
    """Start the servers."""
    with run.servers() as targets:
        found = []
        for target in targets:
            librdkafka.prepare(target)
            found.append(Contender(target.name, target))
            if target.name == "kafka":
                found.append(Contender("kafka, flush.messages=1", target, {"flush_messages": "1"}))
        yield found


@contextmanager
def floors(run: Run) -> Iterator[list[Contender]]:
    """Start the servers that do nothing but answer, without and with one fdatasync."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(dir=run.options.folder)))
        found = [stack.enter_context(floor(folder, sync=sync)) for sync in (False, True)]
        yield [Contender(target.name, target) for target in found]


def costing(target: Target, load: Callable[[], Result]) -> tuple[Result, Cost]:
    """Run a load, and return what it cost the server. Written bytes are waited for."""
    cpu_before, disk_before = cpu.seconds(target.pid), machine.written_bytes(target.pid)
    client_before, idle_before = cpu.ended_children_seconds(), cpu.idle_seconds()
    began = time.perf_counter()
    result = load()
    took = time.perf_counter() - began
    client = cpu.ended_children_seconds() - client_before
    idle = (cpu.idle_seconds() - idle_before) / (took * (os.cpu_count() or 1))
    cpu_after = cpu.seconds(target.pid)
    machine.settle()
    disk_after = machine.written_bytes(target.pid)
    disk = None if disk_before is None or disk_after is None else disk_after - disk_before
    return result, Cost(cpu_after - cpu_before, disk, client, idle)


def guarded(run: Run, target: Target, load: Callable[[], Result]) -> tuple[Result, Cost] | None:
    """Run a load like ``costing``; report a failure and return None, so that the run continues."""
    try:
        return costing(target, load)
    except (RuntimeError, subprocess.SubprocessError) as error:
        run.say(f"note: a turn of {target.name} has failed: {error}")
        return None


def completed(turns: Sequence[tuple[Result, Cost] | None]) -> list[tuple[Result, Cost]]:
    """Return the turns that did not fail."""
    return [turn for turn in turns if turn is not None]


def to_kafka(ours: Sequence[float], kafka: Sequence[float] | None) -> Cell:
    """Return the median ratio of our figures to Apache Kafka's, of the same rounds."""
    if not kafka or len(ours) != len(kafka):  # a turn has failed
        return None
    ratios = sorted(a / b if b else 0.0 for a, b in zip(ours, kafka, strict=True))
    return ratios[len(ratios) // 2]
