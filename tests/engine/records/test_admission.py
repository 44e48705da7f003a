"""Which batches of a run can be appended as they are."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, cast

import pytest

from tidemill.engine.runs import RunWrite, Target
from tidemill.log.config.topic import LogConfig
from tidemill.log.format.validate import Limits
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.native import extension

NOW = 1_700_000_000_000
LIMITS = Limits(most_bytes=100, ahead_ms=1000, behind_ms=(1 << 63) - 1, needs_keys=False)


class FakeLog:
    """A log as far as an admission looks at it."""

    def __init__(self) -> None:
        self.config = LogConfig()
        self.head = extension.Head()
        self.head.config = self.config


class World:
    """Partitions with their targets, all of which are current at first."""

    def __init__(self, count: int = 3, limits: Limits | None = LIMITS) -> None:
        self.logs: dict[TopicPartition, FakeLog] = {}
        self.hidden: set[TopicPartition] = set()
        self.targets: list[Target] = []
        self.is_outdated = False
        for number in range(count):
            tp = TopicPartition("t", number)
            log = self.logs[tp] = FakeLog()
            target = Target(TopicPartition("t", number), None)
            target.log, target.head, target.config = cast(PartitionLog, log), log.head, log.config
            target.limits = limits
            self.targets.append(target)

    def write(
        self,
        number: int = 0,
        size: int = 50,
        latest: int = NOW,
        earliest: int = NOW,
        keyless: int = 0,
    ) -> RunWrite:
        return self.targets[number], memoryview(bytes(size)), (1, latest, earliest, keyless, -1)

    def admit(self, *run: RunWrite) -> tuple[int, dict[int, list[int]], int]:
        """Return the number of admitted batches, their places by partition, and their bytes."""
        logs = cast(Mapping[TopicPartition, PartitionLog], self.logs)
        count, places, size, self.is_outdated = extension.admit_run(
            list(run), logs, self.hidden, NOW
        )
        return count, {target.tp.partition: of for target, of in places.items()}, size


def test_ordinary_batches_are_admitted_with_their_places() -> None:
    world = World()
    run = [world.write(1), world.write(0, 70), world.write(1, 30)]
    assert world.admit(*run) == (3, {1: [0, 2], 0: [1]}, 150)
    assert world.admit() == (0, {}, 0)


@pytest.mark.parametrize(
    ("limits", "wrong"),
    [
        (LIMITS, {"size": 101}),
        (LIMITS, {"latest": NOW + 1001}),
        (LIMITS._replace(behind_ms=1000), {"earliest": NOW - 1001}),
        (LIMITS._replace(needs_keys=True), {"keyless": 1}),
        (None, {}),
    ],
    ids=["size", "ahead", "behind", "without a key", "no limits"],
)
def test_a_batch_beyond_the_limits_ends_the_admission(
    limits: Limits | None, wrong: dict[str, int]
) -> None:
    world = World()
    world.targets[1].limits = limits
    assert world.admit(world.write(0), world.write(1, **wrong), world.write(0)) == (1, {0: [0]}, 50)
    assert not world.is_outdated
    if limits is not None:
        right = {"size": 100, "latest": NOW + 1000, "earliest": NOW - 1000}
        assert world.admit(world.write(1, **right)) == (1, {1: [0]}, 100)


@pytest.mark.parametrize("what", ["unknown", "another log", "configs", "hidden", "never looked up"])
def test_a_target_that_is_not_current_ends_the_admission(what: str) -> None:
    world = World()
    target = world.targets[1]
    if what == "unknown":
        del world.logs[target.tp]
    elif what == "another log":
        world.logs[target.tp] = FakeLog()
    elif what == "configs":
        target.config = LogConfig()
    elif what == "hidden":
        world.hidden.add(target.tp)
    else:
        target.log = None
    assert world.admit(world.write(0), world.write(1)) == (1, {0: [0]}, 50)
    assert world.is_outdated


def is_current(target: Target, world: World) -> bool:
    """Return whether clients can still write to what was found out about a partition."""
    log = world.logs.get(target.tp)
    is_same = cast(FakeLog | None, target.log) is log and log is not None
    return is_same and target.config is target.log.config and target.tp not in world.hidden  # type: ignore[union-attr]


def admit(world: World, run: list[RunWrite]) -> tuple[int, dict[int, list[int]], int]:
    """Admit batches one by one."""
    places: dict[int, list[int]] = {}
    count = size = 0
    for target, data, (_, latest, earliest, without_key, _) in run:
        limits = target.limits
        assert limits is not None
        if (
            not is_current(target, world)
            or len(data) > limits.most_bytes
            or latest - NOW > limits.ahead_ms
            or NOW - earliest > limits.behind_ms
            or (without_key and limits.needs_keys)
        ):
            break
        places.setdefault(target.tp.partition, []).append(count)
        count += 1
        size += len(data)
    return count, places, size


@pytest.mark.parametrize("seed", range(20))
def test_random_runs_are_admitted_up_to_the_first_batch_that_is_not_ordinary(seed: int) -> None:
    rng = random.Random(seed)
    world = World(8)
    for target in world.targets:
        target.limits = LIMITS._replace(needs_keys=rng.random() < 0.3)
    if rng.random() < 0.5:
        world.hidden.add(world.targets[rng.randrange(8)].tp)
    run = [
        world.write(
            rng.randrange(8),
            rng.choice([0, 50, 100, 100, 100] + [101] * (rng.random() < 0.1)),
            NOW + rng.choice([-5000, 0, 1000]),
            NOW - rng.choice([0, 5000]),
            rng.random() < 0.05,
        )
        for _ in range(rng.randrange(40))
    ]
    assert world.admit(*run) == admit(world, run)


def test_wrong_arguments_are_refused() -> None:
    run: Any
    for run in ([1], [()], [(1, 2, 3)], [(object(), b"", (1, 2, 3, 4, 5))]):
        with pytest.raises((TypeError, AttributeError, IndexError, SystemError)):
            extension.admit_run(run, {}, set(), NOW)
