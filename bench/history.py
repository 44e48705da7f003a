"""Measures throughput with a large history, compared with an empty broker."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.support.broker_process import BrokerProcess

from bench import machine, wire
from bench.report import Aim, Section, Table
from bench.run import Run, ratio
from bench.targets import Target
from bench.throughput import Took, label
from bench.wire import Load

TOPIC = "history"
PARTITIONS = 8
SEGMENT_BYTES = 128 << 20
COLUMNS = ["what", "acks", "empty MB/s", "history MB/s", "history/empty"]
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

    def load(self, megabytes: float) -> Load:
        """Return a load for this topic."""
        return Load(1024, self.partitions, int(megabytes * 1e6))

    def write(self, load: Load, batch: bytes, acks: int) -> float:
        """Append a load and return the seconds."""
        frames = [wire.produce_frame(self.topic, p, batch, acks) for p in range(self.partitions)]
        with contextlib.closing(wire.connect(self.target.address)) as sock:
            took = wire.pipelined(sock, frames, load.batches, load.window)
        for partition in range(self.partitions):
            self._batches[partition] += load.batches_of(partition)
        return took

    def read_last(self, load: Load, batch: bytes) -> float:
        """Read the last records, as many as in a load, and return the seconds."""
        each = load.records_per_batch
        ranges = {
            p: (each * (count - load.batches_of(p)), each * count)
            for p, count in enumerate(self._batches)
        }
        with contextlib.closing(wire.connect(self.target.address)) as sock:
            return wire.consume(sock, self.topic, ranges, len(batch))

    def turn(self, load: Load, batch: bytes, acks: int) -> Took:
        """Write and read a load."""
        write_s = self.write(load, batch, acks)
        machine.settle()
        return Took(write_s, self.read_last(load, batch))

    def fill(self, megabytes: float, acks: int = 1) -> None:
        """Write a load of this size."""
        load = self.load(megabytes)
        self.write(load, wire.make_batch(load), acks)


@contextlib.contextmanager
def broker_with_topic(folder: Path) -> Iterator[tuple[BrokerProcess, Writer]]:
    """Start a broker with a history topic that has at least one batch in each partition."""
    with BrokerProcess(folder, fresh=True) as broker:
        target = Target("tidemill", broker.bootstrap, broker.pid)
        target.create_topic(TOPIC, PARTITIONS, segment_bytes=str(SEGMENT_BYTES))
        writer = Writer(target, TOPIC, PARTITIONS)
        writer.fill(1, acks=-1)
        yield broker, writer


def section(run: Run) -> Section:
    """Send the same loads to the same topic of two brokers, in turns."""
    size = run.options.history_gb
    title = f"Throughput with {size:g} GB of history against an empty broker"
    table = Table(title, COLUMNS, note="The written topic itself has the history; 1 KB records.")
    with contextlib.ExitStack() as stack:
        parent = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="history-", dir=run.options.folder)
            )
        )
        _, empty = stack.enter_context(broker_with_topic(parent / "empty"))
        _, large = stack.enter_context(broker_with_topic(parent / "large"))
        run.say(f"history: writing {size:g} GB")
        large.fill(size * 1000)
        for acks in (1, -1):
            run.say(f"history: acks {label(acks)}")
            _compare(run, table, acks, empty, large)
    ratios = [row[4] for row in table.rows]
    worst = min(each for each in ratios if isinstance(each, float))
    aim = Aim("throughput with history to that without, worst case", worst, AIM, "", at_most=False)
    return Section("history", [table], [aim])


def _compare(run: Run, table: Table, acks: int, empty: Writer, large: Writer) -> None:
    load = empty.load(run.options.megabytes)
    batch = wire.make_batch(load)
    contenders: dict[str, Callable[[], Took]] = {
        "empty": partial(empty.turn, load, batch, acks),
        "large": partial(large.turn, load, batch, acks),
    }
    # The two differ by a few percent only, so there are more rounds than elsewhere. The number is
    # even, so that each is first in half of them.
    took = run.take_turns(contenders, rounds=4 * run.options.rounds)
    megabytes = load.batches * len(batch) / 1e6
    for what in ("produce", "consume"):
        bare, full = ([getattr(turn, what) for turn in took[name]] for name in ("empty", "large"))
        rates = (megabytes / statistics.median(bare), megabytes / statistics.median(full))
        table.rows.append([what, label(acks), *rates, ratio(bare, full)])
