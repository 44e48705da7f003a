"""The errors of sealed content."""

from __future__ import annotations

from tidemill.eventstore.errors import EventStoreError


class KeyFileError(EventStoreError):
    """The file with the master keys is missing or malformed, or lacks a key that is needed."""


class SealedContentError(EventStoreError):
    """Sealed content is damaged, or was moved from another event."""
