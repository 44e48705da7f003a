"""Run the sources that ``tidemill.sources`` defines, each in a thread, and publish their statuses.

Must not know: a database.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import Any

import structlog

from tidemill.confluent.clients import Kafka
from tidemill.confluent.metrics import MetricsPublisher
from tidemill.connect.base.board import BoardFollower, BoardWriter
from tidemill.connect.cdc.definition import Definition
from tidemill.connect.cdc.errors import DefinitionError, FencedError
from tidemill.connect.cdc.metrics import add_sources
from tidemill.connect.cdc.runner import Runner
from tidemill.connect.cdc.topics import SOURCES
from tidemill.metrics.registry import Registry

STATUS_S = 1.0
HEARTBEAT_S = 10.0
STOP_S = 20.0

log = structlog.get_logger("tidemill.cdc")


class Manager:
    """Runs sources until it is stopped.

    Args:
        only: names of the sources to run; None: all sources that are ``managed``.

    Raises:
        UnreachableError: no broker answers.
    """

    def __init__(self, kafka: Kafka, only: Collection[str] | None = None) -> None:
        self._kafka = kafka
        self._only = None if only is None else set(only)
        self._follower = BoardFollower(kafka, SOURCES)
        self._writer = BoardWriter(kafka, SOURCES)
        self._runners: dict[str, Runner] = {}
        self._encoded: dict[str, bytes] = {}
        self._ending: list[Runner] = []
        self._published: dict[str, tuple[dict[str, Any], float]] = {}

    def run(self, stop: threading.Event) -> None:
        """Run until ``stop`` is set. Then all sources stop, and their last statuses are published.

        Raises:
            FencedError: all sources that this manager was started for run elsewhere now.
        """
        registry = Registry()
        add_sources(registry, self._statuses)
        with MetricsPublisher(self._kafka, "sources", registry):
            self._run(stop)

    def _statuses(self) -> dict[str, dict[str, Any]]:
        """Return the latest published statuses. Any thread can call this."""
        return {name: each for name, (each, _) in list(self._published.items())}

    def _run(self, stop: threading.Event) -> None:
        try:
            self._follower.catch_up()
            while not stop.is_set():
                self._reconcile()
                self._publish()
                self._check_fenced()
                self._follower.poll(0.1)
        finally:
            self._stop()

    def _reconcile(self) -> None:
        """Start, stop and order sources so that they are as the board says."""
        board = self._follower.board
        self._ending = [each for each in self._ending if not each.join(0)]
        for name, runner in list(self._runners.items()):
            if runner.deleted:
                self._writer.forget(name, board)
                self._writer.flush()
                board.definitions.pop(name, None)
            if board.definitions.get(name) != self._encoded[name]:
                self._end(name)
        for name, encoded in board.definitions.items():
            if name in self._runners:
                self._runners[name].order(board.commands.get(name, {}))
            elif self._encoded.get(name) != encoded and not self._is_ending(name):
                self._encoded[name] = encoded
                self._begin(name)

    def _begin(self, name: str) -> None:
        board = self._follower.board
        try:
            definition = Definition.decode(board.definitions[name])
        except DefinitionError as error:
            log.error("source.invalid", source=name, error=str(error), hint=error.hint)
            return
        if definition.managed if self._only is None else name in self._only:
            runner = Runner(definition, self._kafka, board.commands.get(name, {}))
            self._runners[name] = runner
            runner.start()

    def _end(self, name: str) -> None:
        runner = self._runners.pop(name)
        self._published.pop(name, None)
        self._encoded.pop(name, None)
        runner.stop()
        self._ending.append(runner)

    def _is_ending(self, name: str) -> bool:
        return any(each.definition.name == name for each in self._ending)

    def _publish(self) -> None:
        """Publish statuses that have changed, at most once a second; the others at times."""
        now = time.monotonic()
        for name, runner in self._runners.items():
            last, at = self._published.get(name, ({}, 0.0))
            if now - at < STATUS_S or runner.fenced is not None or runner.deleted:
                continue
            status = runner.status()
            values = status.values()
            shown = {key: value for key, value in values.items() if key != "updated_ms"}
            if shown != last or now - at >= HEARTBEAT_S:
                self._writer.status(name, values)
                self._published[name] = (shown, now)

    def _check_fenced(self) -> None:
        """End if every source that was named on the command line runs elsewhere now.

        Raises:
            FencedError: they do.
        """
        if self._only is None or not self._runners:
            return
        errors = [each.fenced for each in self._runners.values()]
        if all(error is not None for error in errors):
            raise errors[0] or FencedError("all sources run elsewhere")

    def _stop(self) -> None:
        for runner in self._runners.values():
            runner.stop()
        deadline = time.monotonic() + STOP_S
        for name, runner in self._runners.items():
            if runner.join(max(deadline - time.monotonic(), 0.1)) and runner.fenced is None:
                self._writer.status(name, runner.status().values())
        for runner in self._ending:
            runner.join(max(deadline - time.monotonic(), 0.1))
        self._follower.close()
        self._writer.close()
