"""The amount of work of random tests, in a normal run and in ``make test-nightly``.

``TEST_EFFORT=nightly`` in the environment selects the long one. In a normal run every random test
does at least what once found the bugs that it is there for, and the same in each run, so that a
failure is one of the change that is tested. Chance belongs to the nightly runs.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

IS_NIGHTLY = os.environ.get("TEST_EFFORT", "") == "nightly"
EXAMPLES_FACTOR = 20
"""A nightly run tries this many times as many of Hypothesis's examples."""


def examples(normal: int) -> int:
    """Return the number of Hypothesis examples to try, given that of a normal run."""
    return normal * EXAMPLES_FACTOR if IS_NIGHTLY else normal


def rounds(variable: str, normal: int, nightly: int) -> int:
    """Return how often to repeat something, e.g. a kill.

    Args:
        variable: of the environment; its value wins if it is set.
    """
    return int(os.environ.get(variable, nightly if IS_NIGHTLY else normal))


def in_nightly_runs(*values: object) -> list[Any]:
    """Return parameters of a test that only nightly runs try: others show the same in each run.

    Args:
        values: a tuple gives a value to each of several names.
    """
    return [
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.nightly)
        for each in values
    ]


def bound(nightly: float, normal: float) -> float:
    """Return the most that a measured time may be, in the caller's unit.

    Only a nightly run, on a machine that does nothing else, has the bound that is aimed at. Mark
    the test ``timing``, which puts it into that run. The bound of a normal run holds on a machine
    with a hundred times the load, and finds what hangs or grows without limit.
    """
    return nightly if IS_NIGHTLY else normal


def chosen_seed(normal: int) -> int:
    """Return the seed of a random test: a new one in a nightly run, or that of CRASH_SEED.

    A test prints it when it fails.
    """
    made = random.SystemRandom().randrange(1 << 32) if IS_NIGHTLY else normal
    return int(os.environ.get("CRASH_SEED") or made)
