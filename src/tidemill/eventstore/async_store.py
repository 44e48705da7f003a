"""The asyncio twin of a store: the same methods, without a thread for each call.

An append costs no thread: its outcome comes from the tail of the store. Reads of the index run in
threads, one chunk at a time. Must not know: how a store works.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Self, Unpack

from tidemill.confluent.clients import Kafka
from tidemill.eventstore.errors import VersionConflictError
from tidemill.eventstore.events import (
    ANY,
    Appended,
    Condition,
    NewEvent,
    Range,
    Selection,
    StoredEvent,
    StreamAppend,
    Subscription,
    Version,
    some,
)
from tidemill.eventstore.fold import Outcome
from tidemill.eventstore.folded import FoldedStore, answered, may_be_behind
from tidemill.eventstore.reading import CHUNK
from tidemill.eventstore.store import Store


class AsyncStore:
    """A store for one event loop.

    Args:
        store: the store. It is closed with this one.
    """

    def __init__(self, store: FoldedStore) -> None:
        self._store = store

    @classmethod
    async def open(cls, kafka: Kafka | str, topic: str, **options: Any) -> Self:
        """Open a store in a topic; see ``Store``."""
        return cls(await asyncio.to_thread(lambda: Store(kafka, topic, **options)))

    async def append(
        self,
        stream: str,
        events: Sequence[NewEvent],
        *,
        expected: Version = ANY,
        conditions: Sequence[Condition] = (),
    ) -> Appended:
        """Store events of one stream, all or none; see ``Events.append``."""
        appends = (StreamAppend(stream, tuple(events), expected),)
        return await self.commit(appends, conditions=conditions)

    async def commit(
        self, appends: Sequence[StreamAppend], *, conditions: Sequence[Condition] = ()
    ) -> Appended:
        """Store events of several streams, all or none; see ``Events.commit``.

        If the task is cancelled, the events may be stored nevertheless.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome | BaseException] = loop.create_future()

        def settle(outcome: Outcome | BaseException) -> None:
            if not future.done():
                future.set_result(outcome)

        def answer(outcome: Outcome | BaseException) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, outcome)

        try:
            commit_id = self._store.propose(appends, conditions, answer)
        except VersionConflictError as error:
            if not may_be_behind(appends, error):
                raise
            await asyncio.to_thread(self._store.catch_up)
            commit_id = self._store.propose(appends, conditions, answer)
        try:
            outcome = await asyncio.wait_for(future, self._store.timeout_s or None)
        except TimeoutError:
            outcome = None
        finally:
            self._store.abandon(commit_id)
        return answered(outcome, self._store.timeout_s)

    async def read(self, stream: str, **how: Unpack[Range]) -> AsyncIterator[StoredEvent]:
        """Read a stream; see ``Events.read``."""
        if how.pop("fresh", False):
            await asyncio.to_thread(self._store.catch_up)
        async for event in _in_chunks(self._store.read(stream, **how)):
            yield event

    async def read_all(self, **how: Unpack[Selection]) -> AsyncIterator[StoredEvent]:
        """Read all streams in the order of positions; see ``Events.read_all``."""
        if how.pop("fresh", False):
            await asyncio.to_thread(self._store.catch_up)
        async for event in _in_chunks(self._store.read_all(**how)):
            yield event

    def version(self, stream: str) -> int:
        """Return the number of events in a stream, also of those that were truncated."""
        return self._store.version(stream)

    def position(self) -> int:
        """Return the position of the last event that this process knows; 0 if there is none."""
        return self._store.position()

    async def follow(self, **how: Unpack[Subscription]) -> AsyncIterator[StoredEvent]:
        """Read all behind a position, then what comes; see ``Events.follow``."""
        wait_s = how.pop("wait_s", None)
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(woken.set)

        with self._store.follow(**how) as following:
            following.listen(wake)
            since = loop.time()
            while not following.is_closed:
                woken.clear()
                events = (
                    following.take()
                    if following.is_in_memory()
                    else await asyncio.to_thread(following.take)
                )
                for event in events:
                    yield event
                    since = loop.time()
                if events or following.is_behind():
                    following.check()
                    continue
                try:
                    async with asyncio.timeout_at(None if wait_s is None else since + wait_s):
                        await woken.wait()
                except TimeoutError:
                    return

    async def close(self) -> None:
        """Close the store."""
        await asyncio.to_thread(self._store.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _in_chunks(events: Iterator[StoredEvent]) -> AsyncIterator[StoredEvent]:
    """Yield events of an iterator that runs in threads."""

    def take() -> list[StoredEvent]:
        return some(events, CHUNK)

    while chunk := await asyncio.to_thread(take):
        for event in chunk:
            yield event
