"""One run of the benchmarks: its options, its folder, and how contenders take turns."""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench import machine, targets
from bench.targets import Target

Result = TypeVar("Result")


@dataclass(frozen=True)
class Options:
    """The options of a run.

    Attributes:
        folder: Folder for all data. It must be on a disk, because a sync of a tmpfs does nothing.
        quick: Whether to measure fewer cases.
        rounds: Turns of each contender per case.
        megabytes: Data per turn, in 10^6 bytes.
        history_gb: Size of the large history, in 10^9 bytes.
        partitions: Number of partitions for the start-up times.
        kafka: Whether to compare with Apache Kafka; None if it is found.
        against: Another checkout of tidemill to compare with, or None.
        events: Number of events of Nexmark.
        queries: Queries of Nexmark; empty for all.
        connector: Whether to compare with Spark's Kafka connector; None if it is found.
        flink: A Python interpreter with apache-flink, to compare Nexmark with it, or None.
    """

    folder: Path
    quick: bool
    rounds: int
    megabytes: int
    history_gb: float
    partitions: int
    kafka: bool | None
    against: Path | None = None
    events: int = 1_000_000
    queries: tuple[str, ...] = ()
    connector: bool | None = None
    flink: Path | None = None


class Run:
    """One run, which all sections share.

    Args:
        options: Options of the run.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.kafka_wanted = options.kafka is not False

    def say(self, text: str) -> None:
        """Print progress on stderr."""
        print(text, file=sys.stderr, flush=True)

    @property
    def versions(self) -> dict[str, Path | None]:
        """The versions of tidemill that take part: name -> its checkout; None for this one."""
        other = self.options.against
        if other is None:
            return {"tidemill": None}
        return {"before": other, "before, again": other, "now": None}

    @contextlib.contextmanager
    def servers(self) -> Iterator[list[Target]]:
        """Start a new tidemill broker, and Apache Kafka if it is wanted and found.

        With another checkout, start two brokers of it, ``before`` and ``before, again``, and one of
        this checkout, ``now``.
        """
        folder, other = self.options.folder, self.options.against
        with contextlib.ExitStack() as stack:
            if other is not None:
                yield [
                    stack.enter_context(targets.of_version(folder, checkout, name))
                    for name, checkout in self.versions.items()
                ]
                return
            found = [stack.enter_context(targets.tidemill(folder))]
            if self.kafka_wanted:
                kafka = stack.enter_context(
                    targets.apache_kafka(folder, required=self.options.kafka is True)
                )
                if kafka is None:
                    self.kafka_wanted = False
                else:
                    found.append(kafka)
            yield found

    def take_turns(
        self, contenders: Mapping[str, Callable[[], Result]], rounds: int | None = None
    ) -> dict[str, list[Result]]:
        """Call each contender once per round; each round starts with another one.

        Before each turn all dirty pages are written to disk.

        Args:
            contenders: Name -> function that runs one turn.
            rounds: Number of rounds; default: the option.

        Returns:
            The results of each contender, in the order of the rounds.
        """
        results: dict[str, list[Result]] = {name: [] for name in contenders}
        for name in in_turn(list(contenders), rounds or self.options.rounds):
            machine.settle()
            results[name].append(contenders[name]())
        return results


def in_turn(names: Sequence[str], rounds: int) -> Iterator[str]:
    """Yield each name once per round; each round starts with another one."""
    for number in range(rounds):
        first = number % len(names)
        yield from [*names[first:], *names[:first]]


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the ratios of all rounds."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile of values by the nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
