"""The groups as committed offsets see them: who can commit, and which offsets can expire.

This module must not know a kind of group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tidemill.state.outcome import StateRecord
from tidemill.state.types import CommitRequest


class OffsetOwner(Protocol):
    """A group of any kind."""

    @property
    def group_id(self) -> str:
        """The id of the group."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""

    @property
    def is_removable(self) -> bool:
        """Whether it has no members, and no client is about to join."""

    @property
    def uses_consumer_protocol(self) -> bool:
        """Whether its members are consumers, so that their topics are known."""

    def is_subscribed(self, topic: str) -> bool:
        """Return whether members read the topic, or possibly do."""

    def retained_since_ms(self, commit_timestamp_ms: int) -> int | None:
        """Return when the retention of an offset starts; None if it does not expire now."""


class OffsetOwners(Protocol):
    """All groups."""

    def check_commit(self, request: CommitRequest, now_ms: int) -> None:
        """Check that the sender may commit offsets now."""

    def check_transactional_commit(self, request: CommitRequest) -> None:
        """Check that the sender may commit offsets in a transaction."""

    def check_removable(self, group_id: str) -> None:
        """Check that a client may delete the group."""

    def ensure(self, group_id: str, now_ms: int) -> object:
        """Create the group if it does not exist."""

    def get(self, group_id: str) -> OffsetOwner | None:
        """Return the group, or None."""

    def __iter__(self) -> Iterator[OffsetOwner]:
        """Return all groups."""

    def tombstones(self, group_id: str) -> list[StateRecord]:
        """Return the records that remove the group."""

    def needs_tombstone(self, group_id: str) -> bool:
        """Return whether a record of the group is in the log, or is being written."""

    def forget(self, group_id: str) -> None:
        """Remove an empty group that was never written to the log."""
