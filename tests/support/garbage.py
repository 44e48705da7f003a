"""Find what is dropped in circles, so that only the garbage collector can free it.

The broker makes full collections rare (``tidemill.net.garbage``): what many clients leave behind
must be freed by counting references, or memory grows for hours.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def circles() -> Iterator[Counter[str]]:
    """Yield a counter, which has the types of tidemill's objects in circles after the block."""
    found: Counter[str] = Counter()
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()  # not looked at: a run of many tests has millions of objects
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(
            type(each).__qualname__
            for each in gc.garbage
            if type(each).__module__.startswith("tidemill.")
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        if was_enabled:
            gc.enable()
