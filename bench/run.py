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
    """How much is measured.

    Attributes:
        folder: where all data goes; a disk, or syncs mean nothing.
        quick: fewer cases.
        rounds: turns of each contender per case.
        megabytes: bytes moved per turn.
        history_gb: size of the large history.
        partitions: how many partitions the start-up is measured with.
        kafka: compare with Apache Kafka; None: where it is to hand.
    """

    folder: Path
    quick: bool
    rounds: int
    megabytes: int
    history_gb: float
    partitions: int
    kafka: bool | None


class Run:
    """What the sections share."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.kafka_wanted = options.kafka is not False

    def say(self, text: str) -> None:
        """Progress, on stderr."""
        print(text, file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def servers(self) -> Iterator[list[Target]]:
        """A fresh tidemill broker, and Apache Kafka where it is wanted and to hand."""
        with contextlib.ExitStack() as stack:
            found = [stack.enter_context(targets.tidemill(self.options.folder))]
            if self.kafka_wanted:
                kafka = stack.enter_context(
                    targets.apache_kafka(self.options.folder, required=self.options.kafka is True)
                )
                if kafka is None:
                    self.kafka_wanted = False
                else:
                    found.append(kafka)
            yield found

    def take_turns(
        self, contenders: Mapping[str, Callable[[], Result]], rounds: int | None = None
    ) -> dict[str, list[Result]]:
        """Call each contender once per round, with another one first each time.

        Before each turn all dirty pages are written back.
        """
        results: dict[str, list[Result]] = {name: [] for name in contenders}
        names = list(contenders)
        for turn in range(rounds or self.options.rounds):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                machine.settle()
                results[name].append(contenders[name]())
        return results


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` per cent do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
