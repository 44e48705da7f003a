"""Incremental fetch sessions (KIP-227): the broker remembers what a consumer fetches.

A consumer that follows many partitions then names only those that changed, and is told only of
those that have news. A session lives as long as its connection; a client that comes back is told
that the session is unknown and starts a full one. Pure bookkeeping: no I/O, no wire.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from tidemill.errors import FetchSessionNotFoundError, InvalidFetchSessionEpochError

NO_SESSION = 0
"""Session id of a request outside a session."""
INITIAL_EPOCH = 0
"""Epoch of a full fetch that asks for a session."""
FINAL_EPOCH = -1
"""Epoch of a full fetch that wants none and ends the one it names."""
MAX_PARTITIONS = 10_000
"""Partitions in one session; a fetch of more gets no session, which is legal."""

TopicKey: TypeAlias = str | UUID
"""A topic as the request names it: by name up to v12, by id from v13 on."""

_ids = itertools.count(1)


@dataclass(slots=True)
class FetchPart:
    """One partition that is fetched, and what its client was last told of it."""

    topic: TopicKey
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = -1
    told_high_watermark: int = -2
    told_log_start: int = -2
    told_error: int = 0

    @property
    def key(self) -> tuple[TopicKey, int]:
        return self.topic, self.partition

    def has_news(
        self, *, error_code: int, record_bytes: int, high_watermark: int, log_start: int
    ) -> bool:
        """Whether an incremental response must name this partition; notes what it then says."""
        news = (
            record_bytes > 0
            or error_code != 0
            or self.told_error != 0
            or high_watermark != self.told_high_watermark
            or log_start != self.told_log_start
        )
        self.told_error = error_code
        self.told_high_watermark = high_watermark
        self.told_log_start = log_start
        return news


@dataclass(slots=True)
class FetchSession:
    """The remembered partitions in the order in which they are served."""

    session_id: int
    epoch: int = 1
    """Expected in the next request."""
    parts: dict[tuple[TopicKey, int], FetchPart] = field(default_factory=dict)

    def to_back(self, part: FetchPart) -> None:
        """Serve the others first next time."""
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
        """What a Fetch request means.

        Returns:
            The session or None, whether the response is incremental, and the partitions to read.

        Raises:
            FetchSessionNotFoundError: the session is not this connection's.
            InvalidFetchSessionEpochError: a request was lost, or came twice.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._session = None
            if epoch == INITIAL_EPOCH and asked and len(asked) <= MAX_PARTITIONS:
                self._session = FetchSession(next(_ids) & 0x7FFFFFFF or 1)
                self._session.parts = {part.key: part for part in asked}
            return self._session, False, asked
        session = self._session
        if session is None or session.session_id != session_id:
            raise FetchSessionNotFoundError(f"fetch session {session_id} is not known")
        if epoch != session.epoch:
            raise InvalidFetchSessionEpochError(
                f"fetch session {session_id}: epoch {epoch}, expected {session.epoch}"
            )
        session.epoch = 1 if session.epoch == 0x7FFFFFFF else session.epoch + 1
        self._update(session, asked, forgotten)
        if len(session.parts) > MAX_PARTITIONS:
            self._session = None
            raise FetchSessionNotFoundError(
                f"fetch session {session_id} has more than {MAX_PARTITIONS} partitions"
            )
        return session, True, list(session.parts.values())

    @staticmethod
    def _update(
        session: FetchSession,
        asked: list[FetchPart],
        forgotten: Iterable[tuple[TopicKey, int]],
    ) -> None:
        for part in asked:
            known = session.parts.get(part.key)
            if known is None:
                session.parts[part.key] = part
            else:
                known.offset = part.offset
                known.max_bytes = part.max_bytes
                known.leader_epoch = part.leader_epoch
        for key in forgotten:
            session.parts.pop(key, None)
