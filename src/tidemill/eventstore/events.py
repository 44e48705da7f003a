"""Events, versions, queries and conditions: what callers of a store give and get.

Pure values. Knows no client, no file, no clock. Terms: the *version* of a stream is the number of
its events, so the first event has version 1 and an empty stream version 0. A *position* is the
place of an event among all accepted events of a store: dense, from 1, never an offset.
"""

from __future__ import annotations

import contextlib
import enum
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypedDict

from tidemill.eventstore.errors import OutcomeUnknownError
from tidemill.eventstore.ids import new_id


class Expected(enum.Enum):
    """Expectations of a stream that do not name a version."""

    ANY = "any"
    """Nothing."""
    NONE = "no events"
    """The stream has no events: version 0."""
    EXISTS = "at least one event"


ANY, NONE, EXISTS = Expected.ANY, Expected.NONE, Expected.EXISTS
Version = int | Expected


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that is to be stored.

    Attributes:
        type: the name of what happened. Not personal: it can't be forgotten.
        data: the content.
        id: makes a repeated append recognizable; by default a new UUID of version 7. Others are
            as good, but random ones make the index slower.
        metadata: bytes beside the content: who, why (causation, correlation). Not personal either.
        tags: for append conditions and queries, as ``"order:17"``. Not personal either.
        schema: the version of the content's schema, for upcasting.
    """

    type: str
    data: bytes = b""
    id: uuid.UUID = field(default_factory=new_id)
    metadata: bytes = b""
    tags: frozenset[str] = frozenset()
    schema: int = 1


class StoredEvent(NamedTuple):
    """An accepted event. The first attributes are those of ``NewEvent``.

    A named tuple, because a frozen dataclass takes five times as long to make.

    Attributes:
        stream: the name of its stream. The part before the first ``-`` is its category.
        version: its number in the stream, from 1.
        position: its number in the store, from 1, without gaps.
        time_ms: when its writer proposed it, in milliseconds since 1970 (the record's timestamp).
    """

    type: str
    data: bytes
    id: uuid.UUID
    metadata: bytes
    tags: frozenset[str]
    schema: int
    stream: str
    version: int
    position: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Query:
    """Selects events: those of one of ``types`` (empty: of any) that have all ``tags``."""

    types: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()

    def matches(self, event_type: str, tags: Iterable[str]) -> bool:
        """Return whether an event with this type and these tags is selected."""
        if self.types and event_type not in self.types:
            return False
        return not self.tags or self.tags.issubset(tags)


@dataclass(frozen=True, slots=True)
class Condition:
    """An append condition: no event of these queries is stored behind a position.

    Attributes:
        none_of: the queries; an event of any of them counts.
        after: the last position that the writer has seen. Events up to it do not count.
    """

    none_of: tuple[Query, ...]
    after: int = 0


@dataclass(frozen=True, slots=True)
class StreamAppend:
    """The part of a commit for one stream."""

    stream: str
    events: tuple[NewEvent, ...]
    expected: Version = ANY


class Appended(NamedTuple):
    """The places that an accepted commit got.

    Attributes:
        positions: of its events, in the order given.
        versions: the version of each stream of the commit behind it.
        repeated: whether the same commit was stored before; then these are its old places.
    """

    positions: range
    versions: Mapping[str, int]
    repeated: bool = False


class Range(TypedDict, total=False):
    """The arguments of ``Events.read``, for what passes them on."""

    after: int
    to: int | None
    backwards: bool
    limit: int | None
    fresh: bool


class Selection(Range, total=False):
    """The arguments of ``Events.read_all``."""

    queries: Sequence[Query]
    category: str | None


class Subscription(TypedDict, total=False):
    """The arguments of ``Events.follow``."""

    after: int
    queries: Sequence[Query]
    category: str | None
    wait_s: float | None


class Events(Protocol):
    """The part of a store that applications use. ``Store`` and the store in memory have it.

    Methods raise ``ConflictError`` if the log decided against a commit, ``OutcomeUnknownError`` if
    the answer is not known in time.
    """

    def append(
        self,
        stream: str,
        events: Sequence[NewEvent],
        *,
        expected: Version = ANY,
        conditions: Sequence[Condition] = (),
    ) -> Appended:
        """Store events of one stream, all or none.

        Raises:
            ConflictError: the log decided against it.
            OutcomeUnknownError: the outcome is not known in time. The same events, with the same
                ids, can be appended again: they are stored once.
            CommitTooLargeError, InvalidCommitError: it can't be stored.
        """
        return self.commit((StreamAppend(stream, tuple(events), expected),), conditions=conditions)

    def commit(
        self, appends: Sequence[StreamAppend], *, conditions: Sequence[Condition] = ()
    ) -> Appended:
        """Store events of several streams, all or none."""

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        to: int | None = None,
        backwards: bool = False,
        limit: int | None = None,
        fresh: bool = False,
    ) -> Iterator[StoredEvent]:
        """Read a stream: versions above ``after``, up to and with ``to``.

        Sees at least what this process has written; with ``fresh``, all that was in the log.
        """

    def read_all(
        self,
        *,
        after: int = 0,
        to: int | None = None,
        queries: Sequence[Query] = (),
        category: str | None = None,
        backwards: bool = False,
        limit: int | None = None,
        fresh: bool = False,
    ) -> Iterator[StoredEvent]:
        """Read all streams in the order of positions: those of any query and of the category."""

    def version(self, stream: str) -> int:
        """Return the number of events in a stream, also of those that were truncated."""

    def position(self) -> int:
        """Return the position of the last event that this process knows; 0 if there is none."""

    def follow(
        self,
        *,
        after: int = 0,
        queries: Sequence[Query] = (),
        category: str | None = None,
        wait_s: float | None = None,
    ) -> Iterator[StoredEvent]:
        """Read all behind a position, then what comes, without gap or double.

        Ends ``wait_s`` seconds after the last event; never without it.
        """


SOME_BYTES = 4_194_304
"""A batch of events ends when their contents have so many bytes."""


def content_size(event: StoredEvent) -> int:
    """Return the bytes of an event's contents."""
    return len(event.data) + len(event.metadata)


def some(events: Iterator[StoredEvent], most: int) -> list[StoredEvent]:
    """Return the next events: at most so many, and fewer if they are large."""
    found: list[StoredEvent] = []
    size = 0
    for event in events:
        found.append(event)
        size += content_size(event)
        if len(found) >= most or size >= SOME_BYTES:
            break
    return found


def surely(store: Callable[[], Appended], attempts: int = 3) -> Appended:
    """Store events, and store them again with the same ids if the outcome is not known.

    Args:
        store: appends or commits them.

    Raises:
        ConflictError: the log decided against them.
        OutcomeUnknownError: the outcome is not known after all attempts.
    """
    for _ in range(attempts - 1):
        with contextlib.suppress(OutcomeUnknownError):
            return store()
    return store()
