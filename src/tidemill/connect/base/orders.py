"""Describe definitions and order their workers, as the commands and the console do.

Everything goes through the topic of a board. Must not know: who asks, or a connector.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import Board, BoardWriter
from tidemill.connect.base.declared import check_not_declared

STALE_MS = 30_000
"""A status that is older has no worker any more."""


@dataclass(frozen=True, slots=True)
class Described:
    """A definition with what its worker has published.

    Attributes:
        state: the phase that its worker has published last; ``no worker`` if that is too long ago,
            and ``created`` before the first one.
        status_age_ms: the age of that status; None without one.
        declared: the settings file that declares it, or None.
        definition: its keys, as JSON values; empty if the record can't be understood.
        status: what the worker has published, as JSON values.
    """

    name: str
    state: str
    status_age_ms: int | None
    declared: str | None
    definition: Mapping[str, Any]
    status: Mapping[str, Any]

    @property
    def is_paused(self) -> bool:
        """Whether nothing runs, because it was paused or disabled."""
        return self.state in ("paused", "disabled")


def describe(board: Board, name: str) -> Described:
    """Return what a board has of a definition that exists."""
    definition: Any = None
    with suppress(ValueError, RecursionError):
        definition = json.loads(board.definitions[name])
    status = board.statuses.get(name) or {}
    updated = status.get("updated_ms", 0)
    if not isinstance(updated, (int, float)) or not 0 <= updated < 1 << 53:
        updated = 0
    age_ms = max(int(time.time() * 1000 - updated), 0)
    phase = str(status.get("phase", "created"))
    if status and age_ms > STALE_MS and phase != "stopped":
        phase = "no worker"
    return Described(
        name,
        phase,
        age_ms if status else None,
        board.declared.get(name),
        definition if isinstance(definition, dict) else {},
        status,
    )


def order(kafka: Kafka, topic: str, name: str, command: str, **payload: Any) -> None:
    """Store a command for a worker.

    Raises:
        UnreachableError: no broker answers.
    """
    writer = BoardWriter(kafka, topic)
    writer.command(name, command, **payload)
    writer.flush()


def pause(kafka: Kafka, topic: str, noun: str, name: str, board: Board, *, paused: bool) -> None:
    """Store the command to pause, or to continue what was paused, disabled or has failed.

    Args:
        noun: what is defined, as the command line calls it: ``bridge``.
        board: what the topic has.

    Raises:
        DeclaredError: a settings file declares it, so it can't be paused.
        UnreachableError: no broker answers.
    """
    if paused:
        check_not_declared(board, noun, name)
    writer = BoardWriter(kafka, topic)
    if not paused and "disable" in board.commands.get(name, {}):
        writer.done(name, "disable")
    writer.command(name, "pause", paused=paused)
    writer.flush()
