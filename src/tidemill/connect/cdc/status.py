"""The status of a source, as workers publish it and ``source describe`` shows it.

Must not know: a client, or a database.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

Phase = Literal[
    "created", "starting", "snapshot", "running", "paused", "waiting", "failed", "stopped"
]

STALE_MS = 30_000
"""A status that is older comes from a worker that has probably ended."""


@dataclass(slots=True)
class SourceStatus:
    """The status of a source.

    Attributes:
        phase: "waiting" restarts by itself after a failure, "failed" waits for the user.
        updated_ms: time of this status, in milliseconds since the epoch.
        worker: ``host:process id``.
        position: the stored position.
        lag_bytes: bytes of the database's log that are held back; None if unknown.
        lag_ms: age of the oldest change that is not in Kafka; None if unknown.
        lag_changes: number of such changes; None if unknown.
        written: records since the start of the worker.
        snapshots: progress by table: ``table``, ``rows``, ``estimate``.
        tables: the captured tables and their topics.
        error: the last error, or an empty string.
        hint: what to do about it.
        attempts: failures in a row.
    """

    source: str
    kind: str
    phase: Phase
    updated_ms: int
    worker: str = ""
    position: dict[str, Any] | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None
    lag_changes: int | None = None
    written: int = 0
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[str, str] = field(default_factory=dict)
    error: str = ""
    hint: str = ""
    attempts: int = 0

    def values(self) -> dict[str, Any]:
        """Return the status as JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> SourceStatus:
        """Return a published status. Fields of a newer version are left out.

        Raises:
            TypeError: a field is missing.
        """
        names = {each.name for each in fields(cls)}
        return cls(**{key: value for key, value in values.items() if key in names})
