"""Measures throughput with a large history, compared with an empty broker."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.support.broker_process import BrokerProcess

from bench import machine, wire
from bench.compare import Comparison, Figures, ratio_of
from bench.programs import environment_of
from bench.report import Aim, Section
from bench.run import Run
from bench.targets import Target
from bench.wire import Load

TOPIC = "history"
PARTITIONS = 8
SEGMENT_BYTES = 128 << 20
FIGURES = ("produce MB/s", "consume MB/s")
AIM = 0.95


class Writer:
    """Appends loads of 1 KB records to a topic, and reads the last ones.

    Args:
        target: The server.
        topic: The topic.
        partitions: Number of its partitions.
    """

    def __init__(self, target: Target, topic: str, partitions: int) -> None:
        self.target = target
        self.topic = topic
        self.partitions = partitions
        self._batches = [0] * partitions

    def write(self, megabytes: float, acks: int = 1) -> tuple[Load, float]:
        """Append a load of this size; return it, and the seconds."""
        load = Load(1024, self.partitions, int(megabytes * 1e6))
        took = wire.write(self.target.address, self.topic, load, load.batch(), acks)
        for partition in range(self.partitions):
            self._batches[partition] += load.batches_of(partition)
        return load, took

    def turn(self, megabytes: float, acks: int) -> Figures:
        """Write a load, and read the last records, as many as in a load."""
        load, write_s = self.write(megabytes, acks)
        machine.settle()
        each = load.records_per_batch
        ranges = {
            p: (each * (count - load.batches_of(p)), each * count)
            for p, count in enumerate(self._batches)
        }
        read_s = wire.read(self.target.address, self.topic, ranges, len(load.batch()))
        return {"produce MB/s": load.megabytes / write_s, "consume MB/s": load.megabytes / read_s}


@contextlib.contextmanager
def broker_with_topic(
    folder: Path, checkout: Path | None = None
) -> Iterator[tuple[BrokerProcess, Writer]]:
    """Start a broker with a history topic that has at least one batch in each partition."""
    with BrokerProcess(folder, env=environment_of(checkout), fresh=True) as broker:
        target = Target("tidemill", broker.bootstrap, broker.pid)
        target.create_topic(TOPIC, PARTITIONS, segment_bytes=str(SEGMENT_BYTES))
        writer = Writer(target, TOPIC, PARTITIONS)
        writer.write(1, acks=-1)
        yield broker, writer


def section(run: Run) -> Section:
    """Send the same loads to the same topic of two brokers, in turns."""
    size = run.options.history_gb
    compared = Comparison(
        run,
        f"Throughput with {size:g} GB of history against an empty broker",
        FIGURES,
        about=("acks",),
        base="empty",
        by=FIGURES,
        note="The written topic itself has the history; 1 KB records.",
    )
    ratios = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="history-", dir=run.options.folder)
        )
        _, empty = stack.enter_context(broker_with_topic(Path(folder) / "empty"))
        _, large = stack.enter_context(broker_with_topic(Path(folder) / "large"))
        run.say(f"history: writing {size:g} GB")
        large.write(size * 1000)
        for name, acks in (("1", 1), ("all", -1)):
            run.say(f"history: acks {name}")
            contenders = {
                who: partial(writer.turn, run.options.megabytes, acks)
                for who, writer in (("empty", empty), ("history", large))
            }
            # The two differ by a few percent only, so there are more rounds than elsewhere. The
            # number is even, so that each is first in half of them.
            found = compared.measure([name], contenders, rounds=4 * run.options.rounds)
            ratios += [ratio_of(found["history"], found["empty"], each) for each in FIGURES]
    worst = min(each for each in ratios if each is not None)
    aim = Aim("throughput with history to that without, worst case", worst, AIM, "", at_most=False)
    return Section("history", [compared.table()], [aim])
