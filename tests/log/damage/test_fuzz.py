"""Thousands of damaged data folders: the store starts, tells, and serves nothing wrong."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.log.damage.world import World, check, make_world
from tests.support.damage import damages
from tests.support.effort import rounds

CASES = rounds("DAMAGE_CASES", 80, 10_000)
SEED = rounds("DAMAGE_SEED", 1, 1)


@pytest.fixture(scope="module", params=[True, False], ids=["clean stop", "kill"])
def world(request: pytest.FixtureRequest) -> World:
    return make_world(clean=request.param)


def test_an_undamaged_folder_has_no_problem(world: World) -> None:
    assert check(world, world.files, "") == []


@pytest.mark.slow
def test_damage_is_told_and_nothing_wrong_is_read(world: World) -> None:
    failures = []
    for files, victim, done in islice(damages(world.files, SEED), CASES):
        if "/sparse-0/" in victim and ("cut out of" in done or "exchanged in" in done):
            continue  # gaps are normal in a compacted log, so nothing shows that a batch is gone
        try:
            problems = check(world, files, victim)
        except Exception as error:
            problems = [f"{type(error).__name__}: {error}"]
        if problems:
            failures.append(f"{done}:\n    " + "\n    ".join(problems[:3]))
    assert not failures, f"{len(failures)} of {CASES}\n" + "\n".join(failures[:25])
