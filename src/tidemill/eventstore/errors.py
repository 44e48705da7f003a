"""The errors of an event store. Knows no client and no file."""

from __future__ import annotations

from tidemill.errors import TidemillError


class EventStoreError(TidemillError):
    """Base of all errors of event stores."""


class ConflictError(EventStoreError):
    """Base: the log decided against a commit. Nothing of it is stored."""


class VersionConflictError(ConflictError):
    """A stream has another version than the commit expects.

    The caller reads the stream again, decides again and appends again.

    Attributes:
        stream: the name of the stream.
        expected: what was expected, in words.
        actual: the number of events in the stream.
    """

    def __init__(self, stream: str, expected: str, actual: int) -> None:
        super().__init__(
            f"stream {stream!r} has {actual} events, expected: {expected}",
            hint="Read the stream again, decide again, and append with its new version.",
        )
        self.stream = stream
        self.expected = expected
        self.actual = actual


class ConditionFailedError(ConflictError):
    """An event that an append condition excludes was stored before the commit.

    Attributes:
        position: the position of such an event.
    """

    def __init__(self, position: int) -> None:
        super().__init__(
            f"an event that the append condition excludes is at position {position}",
            hint="Read the events of the query again, decide again, and append again.",
        )
        self.position = position


class IdConflictError(ConflictError):
    """An event id is known already with other content, or only a part of a commit is known.

    Attributes:
        event_id: the id.
    """

    def __init__(self, event_id: str, why: str) -> None:
        super().__init__(
            f"event id {event_id}: {why}", hint="Give each event that happened an id of its own."
        )
        self.event_id = event_id


class ForgottenKeyError(ConflictError):
    """The key of a subject was deleted between sealing and storing an event."""


class OutcomeUnknownError(EventStoreError):
    """The writer does not know in time whether its commit was stored.

    Append the same events, with the same ids, again: they are stored once.
    """


class InvalidCommitError(EventStoreError):
    """A commit breaks a rule of its form: a name is invalid, a stream occurs twice, it is empty."""


class CommitTooLargeError(EventStoreError):
    """A commit has more bytes than the topic takes (``max.message.bytes``)."""


class UnsuitableTopicError(EventStoreError):
    """The topic can lose commits: it is compacted, has retention limits, or several partitions."""


class IndexMismatchError(EventStoreError):
    """The index belongs to another log: the log is shorter than it, or was replaced.

    One command builds the index again from the log.
    """


class IndexUnusableError(EventStoreError):
    """The index can't be used: its folder is read-only or full, its file damaged, or it is in use.

    The message says which.
    """


class NewerFoldError(EventStoreError):
    """The log asks for rules that this version does not have. The user upgrades this process."""


class ArchiveError(EventStoreError):
    """An archive can't be written or read, or is damaged."""
