"""The long work of one client: done in slices of the event loop, and ended when the client is gone.

A client can ask for work, close its connection and ask again. If the broker did all of it,
such clients would fill its memory. This module must not know what the work is, any socket or any
protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import TypeVar

from tidemill.net.errors import ClientGoneError
from tidemill.net.turns import Turns

T = TypeVar("T")
R = TypeVar("R")

PART_ITEMS = 250
"""Items of a large write that are written together."""


class Work:
    """The long work of one client.

    ``check`` and every method that waits raise ``ClientGoneError`` if the client is gone by then.

    Attributes:
        turns: the turns themselves, for work that is done although the client is gone.
        is_gone: whether the client is gone.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.is_gone = False

    @property
    def is_due(self) -> bool:
        """Whether the slice of the work that is running is over, so that it must pause."""
        return self.turns.is_due

    def check(self) -> None:
        """Return if the client is there."""
        if self.is_gone:
            raise ClientGoneError("the client closed the connection before its answer was complete")

    async def pause(self) -> None:
        """Wait for the next slice. Work that has called this earlier goes first."""
        await self.turns.pause()
        self.check()

    async def pause_if_due(self) -> None:
        """Pause if the slice of the work that is running is over."""
        if self.turns.is_due:
            await self.pause()

    async def run(self, steps: Generator[None, None, R]) -> R:
        """Run a generator to its end, with a pause whenever a slice is over."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: R = end.value
                return result
            if self.turns.is_due:
                await self.pause()

    async def each(self, function: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
        """Return ``function`` of each item, one after the other, with pauses."""
        results = []
        for item in items:
            if self.turns.is_due:
                await self.pause()
            results.append(await function(item))
        return results

    async def in_parts(
        self, function: Callable[[Sequence[T]], Awaitable[Sequence[R]]], items: Sequence[T]
    ) -> list[R]:
        """Return ``function`` of parts of ``items``, put together; few items are one part."""
        if len(items) <= PART_ITEMS:
            return list(await function(items))
        results: list[R] = []
        for start in range(0, len(items), PART_ITEMS):
            async with self.turns.large:
                await self.pause()
                results += await function(items[start : start + PART_ITEMS])
        return results

    async def select(self, items: Iterable[T], is_wanted: Callable[[T], bool]) -> list[T]:
        """Return the wanted ones of many items, with pauses."""
        results = []
        for item in items:
            if is_wanted(item):
                results.append(item)
            if self.turns.is_due:
                await self.pause()
        return results

    async def collect(self, items: Iterable[T]) -> list[T]:
        """Return all items of an iterable that takes long, with pauses."""
        results = []
        for item in items:
            results.append(item)
            if self.turns.is_due:
                await self.pause()
        return results
