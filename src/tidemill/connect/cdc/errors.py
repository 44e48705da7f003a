"""Errors of change data capture.

The worker restarts after a ``CaptureError`` with a growing pause. After a ``PermanentCaptureError``
it stops until the user asks for a restart, because the same error would occur again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tidemill.errors import TidemillError


class CaptureError(TidemillError):
    """Capture failed. The worker starts again from the stored position after a pause."""


class SourceUnavailableError(CaptureError):
    """The database does not answer, is locked or refuses the connection for now."""


class PermanentCaptureError(CaptureError):
    """Capture failed, and a restart without a change by the user would fail in the same way."""


class DefinitionError(PermanentCaptureError):
    """The definition of a source is invalid. The user corrects its file."""


class SetupError(PermanentCaptureError):
    """The database lacks a setting, a privilege or an object. The hint has the statement."""


class PositionLostError(PermanentCaptureError):
    """The database does not have the changes after the stored position any more.

    A new snapshot is needed: ``tidemill source restart NAME --resnapshot``.
    """


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that can't be captured.

    Attributes:
        table: ``schema.table``; an empty string for a logical message.
        topic: the topic that lacks it.
        key: its key as JSON; an empty string if that is not known.
        position: its place in the database's stream of changes; ``{"snapshot": true}`` for one
            that a snapshot has read.
        reason: why it can't be captured.
    """

    table: str
    topic: str
    key: str
    position: Mapping[str, Any]
    reason: str

    @property
    def id(self) -> str:
        """The identity of the row at its place. It is the same in each attempt."""
        text = json.dumps([self.table, self.topic, self.key, self.position], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def values(self) -> dict[str, Any]:
        """Return the row as JSON values, for statuses."""
        return {"id": self.id, **asdict(self)}


class RowError(PermanentCaptureError):
    """A row can't be captured, and the policy of the source is to stop."""

    def __init__(self, row: BadRow, letters: str) -> None:
        place = json.dumps(row.position)
        super().__init__(
            f"a row of {row.table} can't be captured: {row.reason}. Its key is "
            f"{row.key or 'not known'}, its place {place}",
            hint=f"`tidemill source restart NAME --dead-letter` writes it to the topic {letters}, "
            "deletes its key from the topic of its table, and continues.",
        )
        self.row = row


class UndecodableRowError(PermanentCaptureError):
    """Some row of a batch can't be decoded. The worker then looks for it row by row."""


class FencedError(PermanentCaptureError):
    """Another worker of the same source has started, so this one must stop."""
