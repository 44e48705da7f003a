"""The metadata of events: who, and why. Pure values; knows no store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import orjson

from tidemill.eventstore.events import StoredEvent


@dataclass(frozen=True, slots=True)
class Context:
    """The author of events and their reason. It is stored as the metadata of each event.

    Metadata is never sealed, so it must not hold personal data: use ids.

    Attributes:
        actor: who, as an id: ``user:17``, ``process:transfer``.
        reason: why, in words or as a code.
        correlation: what all events of one business case have in common.
        causation: the id of the event or of the request that caused this one.
        command: the id of the command that produced the event.
        process: the stream of the process manager that sent the command.
        extra: more, such as the id of a request.
    """

    actor: str = ""
    reason: str = ""
    correlation: str = ""
    causation: str = ""
    command: str = ""
    process: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the context as JSON; fields without a value are left out."""
        given = {each.name: value for each in fields(self) if (value := getattr(self, each.name))}
        return orjson.dumps(given) if given else b""

    @classmethod
    def decode(cls, metadata: bytes) -> Context:
        """Return the context in the metadata of an event.

        Metadata that another program wrote has another format; then the context is empty.
        """
        try:
            found = orjson.loads(metadata) if metadata else {}
        except orjson.JSONDecodeError:
            return cls()
        if not isinstance(found, dict):
            return cls()
        extra = found.pop("extra", None)
        names = {each.name for each in fields(cls)}
        known = {k: v for k, v in found.items() if k in names and isinstance(v, str)}
        return cls(**known, extra=extra if isinstance(extra, dict) else {})

    def because_of(self, event: StoredEvent) -> Context:
        """Return this context with the cause and the correlation of an event."""
        cause = Context.decode(event.metadata)
        return replace(
            self,
            causation=str(event.id),
            correlation=self.correlation or cause.correlation or str(event.id),
        )
