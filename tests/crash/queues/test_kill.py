"""A broker with queues under load is killed at random moments; its consumers die meanwhile."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.crash.queues.worker import POISON
from tests.support.effort import chosen_seed, rounds

pytestmark = [pytest.mark.crash, pytest.mark.disk]

KILLS = rounds("CRASH_KILLS", 2, nightly=60)
NUMBERS = 10_000_000
"""Numbers of messages for each life of the process."""


@dataclass
class Life:
    """The lines of one process."""

    published: set[int] = field(default_factory=set)
    delivered: list[tuple[int, bool, int]] = field(default_factory=list)
    """Number, whether it was redelivered, consumer."""
    stored: set[int] = field(default_factory=set)
    letters: list[int] = field(default_factory=list)
    ended: bool = False

    def add(self, line: bytes) -> None:
        if not line.endswith(b"\n"):
            return
        kind, *numbers = line.split()
        if kind == b"P":
            self.published.add(int(numbers[0]))
        elif kind == b"D":
            self.delivered.append((int(numbers[0]), numbers[1] == b"1", int(numbers[2])))
        elif kind == b"A":
            self.stored.add(int(numbers[0]))
        elif kind == b"L":
            self.letters.append(int(numbers[0]))
        elif kind == b"END":
            self.ended = True


def live(folder: Path, number: int, lines: int | None) -> Life:
    """Run a process and kill it after so many lines; None lets it end by itself."""
    mode = "drain" if lines is None else "work"
    command = [sys.executable, "-m", "tests.crash.queues.worker", str(folder)]
    life = Life()
    log = folder.parent / f"life-{number}.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*command, str(number * NUMBERS), mode], stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        assert process.stdout is not None
        for count, line in enumerate(process.stdout):
            life.add(line)
            if count == lines:
                process.kill()
    assert life.ended or lines is not None, log.read_text()
    assert process.returncode == (0 if lines is None else -9), log.read_text()
    return life


def check_life(life: Life, before: list[Life]) -> None:
    """Check one life against those before it."""
    stored = {n for each in before for n in each.stored}
    again = {n for n, _, _ in life.delivered} & stored
    assert not again, f"delivered after their acknowledgement was on disk: {sorted(again)[:5]}"
    known = {n for each in before for n, _, _ in each.delivered}
    first: dict[int, list[int]] = {}
    for n, redelivered, consumer in life.delivered:
        if not redelivered:
            first.setdefault(consumer, []).append(n)
            assert n not in known, "a second delivery is not marked as redelivered"
    for numbers in first.values():
        assert numbers == sorted(numbers), "a consumer's first deliveries are out of order"


def test_nothing_confirmed_is_lost_when_broker_and_consumers_are_killed(tmp_path: Path) -> None:
    seed = chosen_seed(4)
    dice = random.Random(seed)
    folder = tmp_path / "data"
    lines = [dice.choice((5, 500, 4000)) + dice.randrange(4000) for _ in range(KILLS)]
    lives = [live(folder, number, count) for number, count in enumerate(lines, 1)]
    lives.append(live(folder, KILLS + 1, None))

    for at, life in enumerate(lives):
        check_life(life, lives[:at])
    published = {n for life in lives for n in life.published}
    delivered = {n for life in lives for n, _, _ in life.delivered}
    letters = Counter(lives[-1].letters)
    lost = published - delivered
    assert not lost, f"seed {seed}: confirmed and never delivered: {sorted(lost)[:5]}"
    assert len(published) > KILLS * 50, "the load was too small to prove anything"
    assert sum(len(life.stored) for life in lives[:-1]) > KILLS * 50
    poison = {n for n in published if n % POISON == 0}
    assert poison <= set(letters), f"seed {seed}: {sorted(poison - set(letters))[:5]} are missing"
    twice = [n for n, count in letters.items() if count > 1]
    assert not twice, f"seed {seed}: dead letters that came twice: {twice[:5]}"
    assert not [n for n in letters if n % POISON], "a message is dead that no consumer rejected"
