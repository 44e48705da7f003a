"""The amount of work of random tests, in a normal run and in ``make test-nightly``.

``TEST_EFFORT=nightly`` in the environment selects the long one. In a normal run every random test
does at least what once found the bugs that it is there for.
"""

from __future__ import annotations

import os

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
