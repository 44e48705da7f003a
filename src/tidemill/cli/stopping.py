"""Stops commands that run until Ctrl-C or SIGTERM.

A worker gets SIGTERM many times in a row when its broker is killed: Linux sends it for each thread
of the broker that ends. ``threading.Event.set`` takes a lock, so a handler that interrupts it, or a
``wait``, would wait for its own thread for ever. Handlers only put into a queue, which can be
interrupted anywhere, and a thread sets the event. Must not know: a command.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import FrameType

from tidemill.cli import output

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def event_of_signals(
    numbers: Sequence[int] = SIGNALS,
    *,
    first: Callable[[], None] = lambda: None,
    again: Callable[[int], None] = lambda number: None,
) -> threading.Event:
    """Return an event that the first of these signals sets.

    Args:
        first: called in the handler of the first signal.
        again: called in the handler of each later one, and of any while the event is set.
    """
    stop = threading.Event()
    asked: SimpleQueue[int] = SimpleQueue()
    is_asked = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal is_asked
        if is_asked or stop.is_set():
            again(number)
            return
        is_asked = True
        asked.put(number)
        first()

    def set_when_asked() -> None:
        asked.get()
        stop.set()

    threading.Thread(target=set_when_asked, name="stop", daemon=True).start()
    for number in numbers:
        signal.signal(number, handle)
    return stop


def until_signal(run: Callable[[threading.Event], None]) -> None:
    """Run with an event that Ctrl-C or SIGTERM sets."""
    run(event_of_signals())
    output.note("Stopped.")
