"""Run the bridges that ``tidemill.bridges`` defines, and publish their statuses.

All of it is on one event loop; what waits for a broker is in threads. Must not know: a kind of
bridge.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import structlog

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import BoardFollower, BoardWriter
from tidemill.connect.direct.definition import Definition
from tidemill.connect.direct.errors import DefinitionError
from tidemill.connect.direct.keeper import Keeper
from tidemill.connect.direct.topics import BRIDGES

LOOK_S = 0.1
STATUS_S = 1.0
HEARTBEAT_S = 10.0
STOP_S = 20.0

log = structlog.get_logger("tidemill.bridges")


@dataclass(slots=True)
class _Kept:
    """A keeper, its definition as stored, and the last published status."""

    keeper: Keeper
    encoded: bytes
    shown: dict[str, Any] | None = None
    shown_at: float = 0.0


class Manager:
    """Runs bridges until it is stopped.

    Args:
        only: names of the bridges; None: all that are ``managed``.

    Raises:
        UnreachableError: no broker answers.
    """

    def __init__(self, kafka: Kafka, only: Collection[str] | None = None) -> None:
        self._kafka = kafka
        self._only = None if only is None else set(only)
        self._follower = BoardFollower(kafka, BRIDGES)
        self._writer = BoardWriter(kafka, BRIDGES)
        self._kept: dict[str, _Kept] = {}
        self._ending: list[Keeper] = []
        self._left_out: dict[str, bytes] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set. Then the bridges end."""
        try:
            await asyncio.to_thread(self._follower.catch_up)
            while not stop.is_set():
                self._reconcile()
                self._publish()
                await asyncio.to_thread(self._follower.poll, LOOK_S)
        finally:
            await self._stop()

    def _reconcile(self) -> None:
        """Start, stop and order bridges so that they are as the board says."""
        board = self._follower.board
        self._ending = [each for each in self._ending if not each.task.done()]
        for name, kept in list(self._kept.items()):
            if board.definitions.get(name) != kept.encoded:
                del self._kept[name]
                kept.keeper.stop()
                self._ending.append(kept.keeper)
        ending = {each.definition.name for each in self._ending}
        for name, encoded in board.definitions.items():
            commands = {key: dict(each) for key, each in board.commands.get(name, {}).items()}
            if name in self._kept:
                self._kept[name].keeper.order(commands)
            elif name not in ending and self._left_out.get(name) != encoded:
                self._begin(name, encoded, commands)

    def _begin(self, name: str, encoded: bytes, commands: dict[str, dict[str, Any]]) -> None:
        try:
            definition = Definition.decode(encoded)
        except DefinitionError as error:
            self._left_out[name] = encoded
            log.error("bridge.invalid", bridge=name, error=str(error), hint=error.hint)
            return
        if not (definition.managed if self._only is None else name in self._only):
            self._left_out[name] = encoded
            return
        self._kept[name] = _Kept(Keeper(definition, self._kafka, commands), encoded)

    def _publish(self) -> None:
        """Publish statuses that have changed, at most once a second; the others at times."""
        now = time.monotonic()
        for name, kept in self._kept.items():
            if now - kept.shown_at < STATUS_S:
                continue
            status = kept.keeper.status()
            shown = {key: value for key, value in status.items() if key != "updated_ms"}
            if shown != kept.shown or now - kept.shown_at >= HEARTBEAT_S:
                self._writer.status(name, status)
                kept.shown, kept.shown_at = shown, now

    async def _stop(self) -> None:
        keepers = [*(kept.keeper for kept in self._kept.values()), *self._ending]
        for keeper in keepers:
            keeper.stop()
        if keepers:
            await asyncio.wait([keeper.task for keeper in keepers], timeout=STOP_S)
        for name, kept in self._kept.items():
            self._writer.status(name, kept.keeper.status())
        self._follower.close()
        await asyncio.to_thread(self._writer.close)
