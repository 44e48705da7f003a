"""Share sessions (KIP-932): the broker remembers what a member of a share group fetches.

In a session, a request names only the partitions that are new, forgotten, or acknowledged. A member
has one session. It ends with its connection, as in Apache Kafka 4.1: then the records that the
member holds are returned. Plain data: no I/O, no wire format.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from tidemill.protocols.kafka.errors import (
    InvalidShareSessionEpochError,
    ShareSessionLimitReachedError,
    ShareSessionNotFoundError,
)

INITIAL_EPOCH = 0
"""Epoch of the request that starts a session."""
FINAL_EPOCH = -1
"""Epoch of the request that ends it."""
MAX_PARTITIONS = 10_000
"""Most partitions of a session."""

Place = tuple[UUID, int]
SessionKey = tuple[str, str]
"""(group id, member id)."""


@dataclass(slots=True, eq=False)
class ShareSession:
    """The partitions that a member fetches, in the order in which they are served."""

    key: SessionKey
    connection: object
    epoch: int = 1
    """The epoch that the next request must have."""
    places: dict[Place, None] = field(default_factory=dict)

    def move_to_end(self, place: Place) -> None:
        """Serve the other partitions first in the next fetch."""
        if place in self.places:
            del self.places[place]
            self.places[place] = None

    def update(self, asked: Iterable[Place], forgotten: Iterable[Place]) -> None:
        """Add and remove partitions.

        Raises:
            ShareSessionLimitReachedError: the session has too many.
        """
        self.places.update(dict.fromkeys(asked))
        for place in forgotten:
            self.places.pop(place, None)
        if len(self.places) > MAX_PARTITIONS:
            self.places.clear()
            raise ShareSessionLimitReachedError(
                f"a share session has at most {MAX_PARTITIONS} partitions"
            )


class ShareSessions:
    """The share sessions of all connections."""

    def __init__(self) -> None:
        self._sessions: dict[SessionKey, ShareSession] = {}

    def open(self, key: SessionKey, connection: object, limit: int) -> ShareSession:
        """Start a session; it takes the place of the member's last one.

        Raises:
            ShareSessionLimitReachedError: there are ``limit`` sessions already.
        """
        if key not in self._sessions and len(self._sessions) >= limit:
            raise ShareSessionLimitReachedError(
                f"there are {limit} share sessions",
                hint="Close share consumers, or raise groups.share_max_sessions of the broker.",
            )
        session = self._sessions[key] = ShareSession(key, connection)
        return session

    def next(self, key: SessionKey, epoch: int) -> ShareSession:
        """Return the session of a request, and expect the next epoch.

        Raises:
            ShareSessionNotFoundError: the member has none.
            InvalidShareSessionEpochError: a request was lost, or was sent twice.
        """
        session = self._sessions.get(key)
        if session is None:
            raise ShareSessionNotFoundError(f"member {key[1]!r} has no share session")
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            raise InvalidShareSessionEpochError(
                f"invalid epoch {epoch} of the share session of member {key[1]!r}: expected "
                f"{session.epoch}"
            )
        session.epoch = 1 if epoch == 0x7FFFFFFF else epoch + 1
        return session

    def close(self, session: ShareSession) -> bool:
        """End a session; return False if another one has taken its place."""
        if self._sessions.get(session.key) is not session:
            return False
        del self._sessions[session.key]
        return True
