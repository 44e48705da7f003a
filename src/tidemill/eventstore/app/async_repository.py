"""A repository for asyncio: the same one, in threads.

An append waits for its own commit to come back, so many commands at a time cost threads that wait,
and no processor time. Knows nothing that ``repository`` does not know.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from tidemill.eventstore.app.repository import Done, Loaded, Repository

State = TypeVar("State")
Result = TypeVar("Result")

THREADS = 64
"""The most commands under way, of one repository."""


class AsyncRepository(Generic[State]):
    """A repository with coroutines. Commands are ordinary functions, and run in a thread.

    Args:
        repository: the repository.
        threads: the most calls under way. Further ones wait.
    """

    def __init__(self, repository: Repository[State], *, threads: int = THREADS) -> None:
        self.repository = repository
        self._pool = ThreadPoolExecutor(threads, f"repository {repository.category}")

    async def load(self, aggregate_id: str | uuid.UUID, *, fresh: bool = False) -> Loaded[State]:
        """Return an aggregate; see ``Repository.load``."""
        return await self._run(self.repository.load, aggregate_id, fresh=fresh)

    async def as_of(self, aggregate_id: str | uuid.UUID, **moment: Any) -> Loaded[State]:
        """Return an aggregate as it was; see ``Repository.as_of``."""
        return await self._run(self.repository.as_of, aggregate_id, **moment)

    async def execute(
        self, aggregate_id: str | uuid.UUID, command: Callable[[State], Any], **how: Any
    ) -> Done[State]:
        """Run a command on an aggregate; see ``Repository.execute``.

        A task that is cancelled does not stop the command: its outcome is not known then.
        """
        return await self._run(self.repository.execute, aggregate_id, command, **how)

    async def save(self, loaded: Loaded[State], events: object, **how: Any) -> Done[State]:
        """Store events of a loaded aggregate; see ``Repository.save``."""
        return await self._run(self.repository.save, loaded, events, **how)

    async def _run(self, function: Callable[..., Result], *given: Any, **named: Any) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*given, **named))

    def close(self) -> None:
        """Wait for the commands under way, and end the threads."""
        self._pool.shutdown()
