"""Wait for work that must not be left in the middle, also if the caller is cancelled.

Must not know: a kind of bridge.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_its_end(work: Coroutine[Any, Any, T], stop: threading.Event | None = None) -> T:
    """Return the result of work. If this is cancelled, the work ends first.

    Args:
        stop: set if this is cancelled, so that the work ends soon.

    A thread can't be cancelled: a client that it uses must not be closed before it has ended.

    Raises:
        asyncio.CancelledError: the caller was cancelled, and the work has ended.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if stop is not None:
            stop.set()
        await asyncio.gather(task, return_exceptions=True)
        raise
