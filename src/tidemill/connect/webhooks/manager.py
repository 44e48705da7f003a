"""Deliver the webhooks that ``tidemill.webhooks`` defines, and publish their statuses.

One thread follows the topic; one event loop, in another thread, does all the sending. Must not
know: HTTP.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass

import structlog

from tidemill import system
from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import BoardFollower, BoardWriter
from tidemill.connect.webhooks.attempts import Recorder
from tidemill.connect.webhooks.definition import Webhook
from tidemill.connect.webhooks.errors import DefinitionError
from tidemill.connect.webhooks.keeper import Commands, Keeper
from tidemill.connect.webhooks.topics import WEBHOOKS

LOOK_S = 0.1
STATUS_S = 1.0
HEARTBEAT_S = 10.0
STOP_S = 25.0

log = structlog.get_logger("tidemill.webhooks")


@dataclass
class _Kept:
    """A keeper, and what the manager's thread knows of it."""

    keeper: Keeper
    encoded: bytes
    end: concurrent.futures.Future[None]
    commands: Commands
    ordered_at: float = 0.0
    shown: object = None
    shown_at: float = 0.0


class Manager:
    """Delivers webhooks until it is stopped.

    Args:
        only: names of the webhooks; None: all that are ``managed``.

    Raises:
        UnreachableError: no broker answers.
    """

    def __init__(self, kafka: Kafka, only: Collection[str] | None = None) -> None:
        self._kafka = kafka
        self._only = None if only is None else set(only)
        self._follower = BoardFollower(kafka, WEBHOOKS)
        self._writer = BoardWriter(kafka, WEBHOOKS)
        self._kept: dict[str, _Kept] = {}
        self._ending: list[_Kept] = []
        self._left_out: dict[str, bytes] = {}
        self._loop = system.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="webhooks", daemon=True)

    def run(self, stop: threading.Event) -> None:
        """Run until ``stop`` is set. Then requests under way end, and positions are committed."""
        self._thread.start()
        recorder = asyncio.run_coroutine_threadsafe(self._recorder(), self._loop).result()
        try:
            self._follower.catch_up()
            while not stop.is_set():
                self._reconcile(recorder)
                self._publish()
                self._follower.poll(LOOK_S)
        finally:
            self._stop()

    async def _recorder(self) -> Recorder:
        return Recorder(self._kafka)

    def _reconcile(self, recorder: Recorder) -> None:
        """Start, stop and order webhooks so that they are as the board says."""
        board = self._follower.board
        self._ending = [each for each in self._ending if not each.end.done()]
        for name, kept in list(self._kept.items()):
            self._store(name, kept.keeper)
            if kept.end.done():  # it ends by itself only with an error, which is a bug
                log.error("webhook.ended", webhook=name, error=repr(kept.end.exception()))
                del self._kept[name]
                continue
            if board.definitions.get(name) != kept.encoded:
                self._ending.append(self._kept.pop(name))
                self._loop.call_soon_threadsafe(kept.keeper.stop)
        ending = {each.keeper.webhook.name for each in self._ending}
        for name, encoded in board.definitions.items():
            commands = {key: dict(each) for key, each in board.commands.get(name, {}).items()}
            if name in self._kept:
                self._order(self._kept[name], commands)
            elif name not in ending and self._left_out.get(name) != encoded:
                self._begin(name, encoded, commands, recorder)

    def _order(self, kept: _Kept, commands: Commands) -> None:
        """Pass on commands that have changed, and at times all, to hear what was carried out."""
        now = time.monotonic()
        if commands != kept.commands or now - kept.ordered_at >= STATUS_S:
            kept.commands, kept.ordered_at = commands, now
            self._loop.call_soon_threadsafe(kept.keeper.order, commands)

    def _begin(self, name: str, encoded: bytes, commands: Commands, recorder: Recorder) -> None:
        try:
            webhook = Webhook.decode(encoded)
        except DefinitionError as error:
            self._left_out[name] = encoded
            log.error("webhook.invalid", webhook=name, error=str(error), hint=error.hint)
            return
        if not (webhook.managed if self._only is None else name in self._only):
            self._left_out[name] = encoded
            return

        async def make() -> Keeper:
            return Keeper(webhook, self._kafka, recorder, commands)

        keeper = asyncio.run_coroutine_threadsafe(make(), self._loop).result()
        end = asyncio.run_coroutine_threadsafe(keeper.run(), self._loop)
        self._kept[name] = _Kept(keeper, encoded, end, {})

    def _store(self, name: str, keeper: Keeper) -> None:
        """Store what a keeper has decided, and delete the commands that it has carried out."""
        if keeper.to_disable:
            self._writer.command(name, "disable", reason=keeper.to_disable)
            keeper.to_disable = ""
        while keeper.finished:
            command = keeper.finished.popleft()
            self._writer.done(name, command)
            self._follower.board.commands.get(name, {}).pop(command, None)

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

    def _stop(self) -> None:
        for kept in self._kept.values():
            self._loop.call_soon_threadsafe(kept.keeper.stop)
        ends = [kept.end for kept in (*self._kept.values(), *self._ending)]
        concurrent.futures.wait(ends, timeout=STOP_S)
        for name, kept in self._kept.items():
            self._store(name, kept.keeper)
            self._writer.status(name, kept.keeper.status())
        self._follower.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S)
        self._writer.close()
