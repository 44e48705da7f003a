"""Keep what a board defines at work, and publish statuses: of webhooks, of bridges.

One event loop has all of it; what waits for a broker is in threads. Must not know: a kind of
definition, or what a keeper does.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import structlog

from tidemill import system
from tidemill.confluent.clients import Kafka
from tidemill.confluent.metrics import MetricsPublisher
from tidemill.connect.base.board import BoardFollower, BoardWriter
from tidemill.connect.base.errors import TakenOverError
from tidemill.connect.base.metrics import Statuses
from tidemill.errors import TidemillError
from tidemill.metrics.registry import Registry

LOOK_S = 0.1
STATUS_S = 1.0
HEARTBEAT_S = 10.0
STOP_S = 25.0

log = structlog.get_logger("tidemill.connect")

Commands = Mapping[str, Mapping[str, Any]]


class Managed(Protocol):
    """A definition that a topic stores and a worker runs."""

    @property
    def managed(self) -> bool:
        """Whether the worker of ``dev`` and ``serve`` runs it."""
        ...


D = TypeVar("D", bound=Managed)


class Keeper(Protocol):
    """Keeps one definition at work. All is called on the event loop."""

    async def run(self) -> None:
        """Work until ``stop``. It ends by itself never, whatever fails."""

    def order(self, commands: Commands) -> None:
        """Take over the present commands."""

    def stop(self) -> None:
        """Ask it to end; ``run`` then returns soon."""

    def take_finished(self, writer: BoardWriter) -> Collection[str]:
        """Store what was decided, and return the commands that were carried out since."""

    def status(self) -> dict[str, Any]:
        """Return the present status, as JSON values with ``updated_ms``."""


@dataclass(slots=True)
class _Kept:
    """A keeper, and what the manager knows of it."""

    keeper: Keeper
    encoded: bytes
    task: asyncio.Task[None]
    claim: str
    commands: Commands
    ordered_at: float = 0.0
    shown: dict[str, Any] | None = None
    shown_at: float = 0.0


class Manager(Generic[D]):
    """Keeps definitions at work until it is stopped.

    Args:
        topic: of the board.
        noun: what is defined, as the command line calls it: ``bridge``.
        decode: returns the definition of a record, or raises a TidemillError.
        keep: returns the keeper of a definition, given its commands. It is called on the loop.
        only: names of the definitions; None: all that are ``managed``.
        measure: adds the metrics of this kind to a registry, from the statuses that are published.
        exclusive: whether one worker keeps a definition: the last one that has begun, until the
            definition changes, or a command comes. Otherwise keepers see to that, if need be.
        tidy: deletes what definitions have left that are none of these names. It is called in a
            thread, after the start and when keepers of deleted definitions have ended.

    Raises:
        UnreachableError: no broker answers.
    """

    def __init__(
        self,
        kafka: Kafka,
        topic: str,
        noun: str,
        decode: Callable[[bytes], D],
        keep: Callable[[D, Commands], Keeper],
        only: Collection[str] | None = None,
        measure: Callable[[Registry, Statuses], None] | None = None,
        *,
        exclusive: bool = False,
        tidy: Callable[[Collection[str]], None] = lambda names: None,
    ) -> None:
        self._kafka = kafka
        self._measure = measure
        self._noun = noun
        self._decode = decode
        self._keep = keep
        self._only = None if only is None else set(only)
        self._follower = BoardFollower(kafka, topic)
        self._writer = BoardWriter(kafka, topic)
        self._kept: dict[str, _Kept] = {}
        self._ending: dict[str, _Kept] = {}
        self._left_out: dict[str, bytes] = {}
        self._is_exclusive = exclusive
        self._taken_over: dict[str, bytes] = {}
        self._tidy = tidy
        self._has_left = True

    def run(self, stop: threading.Event) -> None:
        """Run an event loop until ``stop`` is set. Then all keepers end.

        Raises:
            TakenOverError: all that it was started for by name is kept by other workers now.
        """
        registry = Registry()
        if self._measure is not None:
            self._measure(registry, self._statuses)
        with (
            MetricsPublisher(self._kafka, f"{self._noun}s", registry),
            asyncio.Runner(loop_factory=system.new_event_loop) as runner,
        ):
            runner.run(self._run(stop))

    def _statuses(self) -> dict[str, dict[str, Any]]:
        """Return the latest published statuses. Any thread can call this."""
        return {name: kept.shown for name, kept in list(self._kept.items()) if kept.shown}

    async def _run(self, stop: threading.Event) -> None:
        try:
            await asyncio.to_thread(self._follower.catch_up)
            while not stop.is_set():
                self._reconcile()
                self._check_taken_over()
                if self._has_left:
                    self._has_left = False
                    await asyncio.to_thread(self._tidy, self._names())
                self._publish()
                await asyncio.to_thread(self._follower.poll, LOOK_S)
        finally:
            await self._stop()

    def _reconcile(self) -> None:
        """Start, stop and order keepers so that all is as the board says."""
        board = self._follower.board
        for name in [name for name, kept in self._ending.items() if kept.task.done()]:
            del self._ending[name]
            self._has_left |= name not in board.definitions
        for name in self._taken_over.keys() - board.definitions.keys():
            del self._taken_over[name]
            self._has_left = True
        for name, kept in list(self._kept.items()):
            self._store(name, kept.keeper)
            if kept.task.done():  # a bug: it is started again
                log.error(
                    "definition.ended",
                    kind=self._noun,
                    name=name,
                    error=repr(kept.task.exception()),
                )
                del self._kept[name]
            elif board.definitions.get(name) != kept.encoded:
                self._end(name)
            elif (last := self._claim_after(name, kept)) is not None:
                worker = last.partition(" ")[0]
                log.error("definition.taken_over", kind=self._noun, name=name, worker=worker)
                self._taken_over[name] = kept.encoded
                self._end(name)
        for name, encoded in board.definitions.items():
            commands = {key: dict(each) for key, each in board.commands.get(name, {}).items()}
            if name in self._kept:
                self._order(self._kept[name], commands)
            elif (
                name not in self._ending
                and self._left_out.get(name) != encoded
                and (self._taken_over.get(name) != encoded or name in board.ordered)
            ):
                self._begin(name, encoded, commands)

    def _end(self, name: str) -> None:
        kept = self._ending[name] = self._kept.pop(name)
        kept.keeper.stop()

    def _names(self) -> set[str]:
        """Return the names of all that is defined, and of what has not ended yet."""
        return {*self._follower.board.definitions, *self._kept, *self._ending}

    def _claim_after(self, name: str, kept: _Kept) -> str | None:
        """Return the claim of another worker behind that of a keeper; None if there is none."""
        claims = self._follower.board.claims.get(name, [])
        return claims[-1] if kept.claim in claims[:-1] else None

    def _check_taken_over(self) -> None:
        if self._only is not None and self._taken_over and not self._kept and not self._ending:
            raise TakenOverError(
                f"another worker has taken over {self._noun} {', '.join(sorted(self._taken_over))}",
                hint=f"One worker keeps a {self._noun}: the last one that was started.",
            )

    def _order(self, kept: _Kept, commands: Commands) -> None:
        """Pass on commands that have changed, and at times all, to hear what was carried out."""
        now = time.monotonic()
        if commands != kept.commands or now - kept.ordered_at >= STATUS_S:
            kept.commands, kept.ordered_at = commands, now
            kept.keeper.order(commands)

    def _begin(self, name: str, encoded: bytes, commands: Commands) -> None:
        try:
            definition = self._decode(encoded)
        except TidemillError as error:
            self._left_out[name] = encoded
            log.error(
                "definition.invalid", kind=self._noun, name=name, error=str(error), hint=error.hint
            )
            return
        if not (definition.managed if self._only is None else name in self._only):
            self._left_out[name] = encoded
            return
        self._taken_over.pop(name, None)
        claim = ""
        if self._is_exclusive:
            claim = f"{socket.gethostname()}:{os.getpid()} {uuid.uuid4().hex}"
            self._writer.claim(name, claim)
        keeper = self._keep(definition, commands)
        task = asyncio.create_task(keeper.run(), name=f"{self._noun} {name}")
        self._kept[name] = _Kept(keeper, encoded, task, claim, {})

    def _store(self, name: str, keeper: Keeper) -> None:
        """Store what a keeper has decided, and delete the commands that it has carried out."""
        for command in keeper.take_finished(self._writer):
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

    async def _stop(self) -> None:
        all_kept = [*self._kept.values(), *self._ending.values()]
        for kept in all_kept:
            kept.keeper.stop()
        if all_kept:
            await asyncio.wait([kept.task for kept in all_kept], timeout=STOP_S)
        for name, kept in self._kept.items():
            self._store(name, kept.keeper)
            self._writer.status(name, kept.keeper.status())
        self._follower.close()
        await asyncio.to_thread(self._writer.close)
