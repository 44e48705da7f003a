"""Write users, rules and quotas in their state log. Knows nothing of what they mean."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TypeVar

import structlog

from tidemill.engine.state_log import StateLog
from tidemill.state.outcome import Outcome
from tidemill.state.security.machine import Security

R = TypeVar("R")

logger = structlog.get_logger("tidemill.security")


class SecurityLog:
    """The state of security, on disk.

    Attributes:
        state: the users, rules, permissions and quotas. Changed by replayed records only.
        on_change: called after each change.
    """

    def __init__(self, state_log: StateLog) -> None:
        self.state = Security(secrets.token_bytes(32))
        self.on_change: list[Callable[[], None]] = []
        self._state_log = state_log
        self._lock = asyncio.Lock()

    def recover(self) -> None:
        """Replay the state log.

        Raises:
            CorruptLogError: the log is damaged.
        """
        with self._state_log.naming_place():
            for key, value in self._state_log.latest().items():
                self._replay(key, value)

    def _replay(self, key: bytes, value: bytes | None) -> None:
        if not self.state.replay(key, value):
            name = key[:64].decode(errors="replace")
            logger.warning("record.ignored", key=name, why="unknown record type")

    async def run(self, command: Callable[[], Outcome[R]]) -> R:
        """Run a command of the state, write its records, replay them, and return its result.

        Commands run one after the other, each to its end, also if its caller is gone.

        Raises:
            StorageError: the records could not be written. Nothing has changed.
            TidemillError: as the command.
        """
        return await asyncio.shield(asyncio.ensure_future(self._run(command)))

    async def _run(self, command: Callable[[], Outcome[R]]) -> R:
        async with self._lock:
            outcome = command()

            def ended(error: Exception | None) -> None:
                if error is None:
                    for record in outcome.records:
                        self._replay(record.key, record.value)
                    for changed in self.on_change:
                        changed()

            if outcome.records:
                await self._state_log.write(
                    outcome.records, ended, "users and rules were not stored"
                )
            return outcome.result
