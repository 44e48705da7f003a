"""Incremental fetch sessions (KIP-227): the broker remembers what a consumer fetches.

In a session, a request names only the partitions that changed, and a response only those with
news. A session ends with its connection; after that the client gets "session not found" and starts
a full fetch. Plain data: no I/O, no wire format.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from tidemill.protocols.kafka.errors import FetchSessionNotFoundError, InvalidFetchSessionEpochError

NO_SESSION = 0
"""Session id of a request outside a session."""
NO_EPOCH = -1
"""The leader epoch of a client that does not know it."""
INITIAL_EPOCH = 0
"""Epoch of a full fetch that starts a session."""
FINAL_EPOCH = -1
"""Epoch of a full fetch without a session. It ends the session that it names."""
MAX_PARTITIONS = 10_000
"""Most partitions in one session. A fetch of more gets no session, as the protocol allows."""

TopicKey: TypeAlias = str | UUID
"""A topic as the request names it: by name up to v12, by id since v13."""

_ids = itertools.count(1)


@dataclass(slots=True)
class FetchPart:
    """One partition that is fetched, and what the last response said about it."""

    topic: TopicKey
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = -1
    sent_high_watermark: int = -2
    sent_log_start: int = -2
    sent_error: int = 0

    @property
    def key(self) -> tuple[TopicKey, int]:
        """Topic and partition."""
        return self.topic, self.partition

    def update_sent(
        self, *, error_code: int, record_bytes: int, high_watermark: int, log_start: int
    ) -> bool:
        """Record what a response says. Return whether an incremental one must have this part."""
        news = (
            record_bytes > 0
            or error_code != 0
            or self.sent_error != 0
            or high_watermark != self.sent_high_watermark
            or log_start != self.sent_log_start
        )
        self.sent_error = error_code
        self.sent_high_watermark = high_watermark
        self.sent_log_start = log_start
        return news


@dataclass(slots=True)
class FetchSession:
    """The partitions of a session, in the order in which they are served."""

    session_id: int
    epoch: int = 1
    """The epoch that the next request must have."""
    parts: dict[tuple[TopicKey, int], FetchPart] = field(default_factory=dict)

    def move_to_end(self, part: FetchPart) -> None:
        """Serve the other partitions first in the next fetch."""
        if self.parts.pop(part.key, None) is not None:
            self.parts[part.key] = part


class FetchSessions:
    """The session of one connection, if it has one."""

    def __init__(self) -> None:
        self._session: FetchSession | None = None

    def begin(
        self,
        session_id: int,
        epoch: int,
        asked: list[FetchPart],
        forgotten: Iterable[tuple[TopicKey, int]],
    ) -> tuple[FetchSession | None, bool, list[FetchPart]]:
        """Apply a Fetch request to the session that it names, or start one.

        Returns:
            The session or None, whether the response is incremental, and the partitions to read.

        Raises:
            FetchSessionNotFoundError: this connection does not have the session.
            InvalidFetchSessionEpochError: a request was lost, or was sent twice.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._session = None
            if epoch == INITIAL_EPOCH and asked and len(asked) <= MAX_PARTITIONS:
                self._session = FetchSession(next(_ids) & 0x7FFFFFFF or 1)
                self._session.parts = {part.key: part for part in asked}
            return self._session, False, asked
        session = self._session
        if session is None or session.session_id != session_id:
            raise FetchSessionNotFoundError(f"fetch session {session_id} does not exist")
        if epoch != session.epoch:
            raise InvalidFetchSessionEpochError(
                f"invalid epoch {epoch} of fetch session {session_id}: expected {session.epoch}"
            )
        session.epoch = 1 if session.epoch == 0x7FFFFFFF else session.epoch + 1
        for part in asked:
            known = session.parts.setdefault(part.key, part)
            known.offset, known.max_bytes = part.offset, part.max_bytes
            known.leader_epoch = part.leader_epoch
        for key in forgotten:
            session.parts.pop(key, None)
        if len(session.parts) > MAX_PARTITIONS:
            self._session = None
            raise FetchSessionNotFoundError(
                f"fetch session {session_id} has more than {MAX_PARTITIONS} partitions"
            )
        return session, True, list(session.parts.values())
