"""Keep Python's garbage collector from stopping the event loop.

Python frees almost everything by counting references. The collector finds what refers to itself in
a circle. Its full collections visit every object that is alive, which takes a second with millions
of them (topics, groups, committed offsets), and nothing else runs meanwhile.
"""

from __future__ import annotations

import gc

YOUNG, MIDDLE, FULL = 700, 10, 1000
"""Objects until a collection of the youngest, and collections until one of the next older ones.
Python's own numbers are 700, 10 and 10: full collections are a hundred times as rare here."""


def tune() -> None:
    """Leave out the objects of the start, and make full collections rare. Call after the start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, FULL)
