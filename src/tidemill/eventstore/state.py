"""The state of the fold: what is folded but not in the index yet, over what the index has.

``State`` answers what ``decide`` asks, and what readers ask. It is exact as of its position: a base
that is further on (another process writes the index) is asked as of a position, too. That is
possible because events are never changed: a later index has all that an earlier one had. Must not
know: clients, SQLite, bytes of commits.

A new kind of change is applied in ``State.apply``.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tidemill.eventstore.errors import NewerFoldError
from tidemill.eventstore.events import Query, StoredEvent
from tidemill.eventstore.fold import FOLD_VERSION, Accepted, Outcome, Place, decide
from tidemill.eventstore.wire import Commit, Event

GENESIS = bytes(32)
"""The chain hash of an empty store."""


class Folded(NamedTuple):
    """An accepted event with its places."""

    position: int
    version: int
    time_ms: int
    event: Event


class Step(NamedTuple):
    """The effect of one record of the log.

    Attributes:
        offset: of the record.
        digest: of the record's value, to recognize the log again.
        position: the position of the last accepted event behind the record.
        hash: the chain hash behind the record.
        events: what was accepted.
        commit: the commit, if it was accepted.
    """

    offset: int
    digest: bytes
    position: int
    hash: bytes
    events: Sequence[Folded]
    commit: Commit | None
    size: int


class Head(NamedTuple):
    """The point up to which a log is folded. The defaults are those of an empty store.

    Attributes:
        position: of the last accepted event.
        hash: the chain hash.
        offset: of the last folded record.
        fold: the version of the fold that the log asks for.
    """

    position: int = 0
    hash: bytes = GENESIS
    offset: int = -1
    fold: int = 1


class Chunk(NamedTuple):
    """Some of the events that were asked for; the first of them.

    Attributes:
        reached: the version or the position behind which the next chunk begins; None if there is
            nothing more.
    """

    events: list[StoredEvent]
    reached: int | None


class Base(Protocol):
    """The state below the overlay: an index, or nothing.

    Everything is asked as of a position ``at``, which the base has reached; what the base has
    behind it does not count.
    """

    def version(self, stream: str, at: int) -> int:
        """Return the number of events of a stream."""

    def places(self, ids: Sequence[bytes], at: int) -> dict[bytes, Place]:
        """Return where event ids are stored, of those that are."""

    def first_match(self, query: Query, after: int, at: int) -> int | None:
        """Return the position of the first event that a query selects."""

    def is_forgotten(self, key: str, offset: int) -> bool:
        """Return whether a key was deleted by a record up to an offset."""

    def truncated(self, stream: str) -> int:
        """Return the version below which the events of a stream are not read."""

    def streams(self, category: str | None, after: str, limit: int) -> list[str]:
        """Return names of streams, sorted, behind a name."""

    def of_stream(
        self, stream: str, after: int, to: int, at: int, backwards: bool, limit: int
    ) -> Chunk:
        """Return events of a stream: versions above ``after``, up to and with ``to``."""

    def of_all(self, after: int, to: int, wanted: Wanted, backwards: bool, limit: int) -> Chunk:
        """Return events with positions above ``after``, up to and with ``to``."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selects events of all streams: those of any query (none: all), and of the category."""

    queries: tuple[Query, ...] = ()
    category: str | None = None

    def matches(self, event: Event) -> bool:
        """Return whether an event is selected."""
        if self.category is not None and category_of(event.stream) != self.category:
            return False
        return not self.queries or any(
            query.matches(event.type, event.tags) for query in self.queries
        )


def category_of(stream: str) -> str:
    """Return the category of a stream: the part of its name before the first ``-``."""
    return stream.partition("-")[0]


class Nothing:
    """The base of a store that has all in memory."""

    def version(self, stream: str, at: int) -> int:
        return 0

    def places(self, ids: Sequence[bytes], at: int) -> dict[bytes, Place]:
        return {}

    def first_match(self, query: Query, after: int, at: int) -> int | None:
        return None

    def is_forgotten(self, key: str, offset: int) -> bool:
        return False

    def truncated(self, stream: str) -> int:
        return 0

    def streams(self, category: str | None, after: str, limit: int) -> list[str]:
        return []

    def of_stream(
        self, stream: str, after: int, to: int, at: int, backwards: bool, limit: int
    ) -> Chunk:
        return Chunk([], None)

    def of_all(self, after: int, to: int, wanted: Wanted, backwards: bool, limit: int) -> Chunk:
        return Chunk([], None)


def fingerprint(value: bytes) -> bytes:
    """Return the digest of a record's value, to recognize a log again."""
    return hashlib.blake2b(value, digest_size=16).digest()


def check_fold(version: int) -> None:
    """Check that this process has the rules that a log asks for.

    Raises:
        NewerFoldError: it does not.
    """
    if version > FOLD_VERSION:
        raise NewerFoldError(
            f"the log needs version {version} of the fold; this process has {FOLD_VERSION}",
            hint="Upgrade tidemill in this process.",
        )


class State:
    """The state behind the last folded record. Its callers hold the store's lock.

    Attributes:
        position: the position of the last accepted event.
        offset: of the last folded record; -1 before the first.
        hash: the chain hash: sha256 of the one before and the record's value, of accepted commits.
        floor: the position up to which the base is asked. The overlay has what is behind it.
        steps: the records that are not known to be in the base.
        size: the bytes of these records.
        fold: the version of the fold that the log asks for.
    """

    def __init__(self, base: Base | None = None, head: Head | None = None) -> None:
        head = head or Head()
        self.base: Base = base or Nothing()
        self.position = self.floor = head.position
        self.offset = self._floor_offset = head.offset
        self.hash = head.hash
        self.fold = head.fold
        self.steps: deque[Step] = deque()
        self.size = 0
        self._events: list[Folded] = []
        self._streams: dict[str, list[Folded]] = {}
        self._ids: dict[bytes, Place] = {}
        self._truncated: dict[str, int] = {}
        self._forgotten: set[str] = set()

    def head(self) -> Head:
        """Return how far the log is folded."""
        return Head(self.position, self.hash, self.offset, self.fold)

    # What ``decide`` asks.

    def version(self, stream: str) -> int:
        """Return the number of events of a stream, also of those that were truncated."""
        recent = self._streams.get(stream)
        return recent[-1].version if recent else self.base.version(stream, self.floor)

    def places(self, ids: Sequence[bytes]) -> dict[bytes, Place]:
        """Return where event ids are stored, of those that are."""
        recent = self._ids
        found = {each: recent[each] for each in ids if each in recent}
        if len(found) < len(ids):
            missing = [each for each in ids if each not in found] if found else ids
            found |= self.base.places(missing, self.floor)
        return found

    def first_match(self, query: Query, after: int) -> int | None:
        """Return the position of the first event behind a position that a query selects."""
        if after < self.floor:
            found = self.base.first_match(query, after, self.floor)
            if found is not None:
                return found
        for folded in self.recent(after, self.position):
            if query.matches(folded.event.type, folded.event.tags):
                return folded.position
        return None

    def is_forgotten(self, key: str) -> bool:
        """Return whether a key was deleted."""
        return key in self._forgotten or self.base.is_forgotten(key, self._floor_offset)

    # Folding.

    def step(
        self, offset: int, value: bytes, commit: Commit | None, time_ms: int
    ) -> Outcome | None:
        """Fold the next record of the log.

        Args:
            commit: None if the record is foreign.
            time_ms: the record's timestamp.

        Returns:
            The outcome; None if the record is foreign.

        Raises:
            NewerFoldError: the commit asks for rules that this version does not have. The state is
                as before.
        """
        if commit is not None:
            check_fold(commit.fold)
        outcome = None if commit is None else decide(self, commit)
        events: Sequence[Folded] = ()
        if isinstance(outcome, Accepted):
            assert commit is not None
            events = self._apply(commit, outcome.appended.versions, time_ms)
            self.hash = hashlib.sha256(self.hash + value).digest()
        else:
            commit = None
        digest = fingerprint(value)
        size = len(value) + 200
        self.steps.append(Step(offset, digest, self.position, self.hash, events, commit, size))
        self.size += size
        self.offset = offset
        return outcome

    def _apply(self, commit: Commit, behind: Mapping[str, int], time_ms: int) -> list[Folded]:
        """Apply an accepted commit, given the versions of its streams behind it."""
        versions = dict(behind)
        for event in commit.events:
            versions[event.stream] -= 1
        new = []
        for event in commit.events:
            version = versions[event.stream] = versions[event.stream] + 1
            self.position += 1
            folded = Folded(self.position, version, time_ms, event)
            new.append(folded)
            self._ids[event.id] = Place(self.position, version, event.digest)
        for folded in new:
            self._streams.setdefault(folded.event.stream, []).append(folded)
        self._events.extend(new)
        for stream, below in commit.truncate:
            self._truncated[stream] = max(below, self._truncated.get(stream, 0))
        self._forgotten.update(commit.forget)
        self.fold = max(self.fold, commit.fold)
        return new

    def drop(self, offset: int) -> Step | None:
        """Drop what the base has meanwhile: records up to and with an offset.

        Returns:
            The last of them, if there are some.
        """
        step = None
        counts: Counter[str] = Counter()
        while self.steps and self.steps[0].offset <= offset:
            step = self.steps.popleft()
            self.size -= step.size
            for folded in step.events:
                counts[folded.event.stream] += 1
                del self._ids[folded.event.id]
            if step.commit is not None:
                for stream, below in step.commit.truncate:
                    if self._truncated.get(stream) == below:
                        del self._truncated[stream]
                self._forgotten.difference_update(step.commit.forget)
            self.floor, self._floor_offset = step.position, step.offset
        del self._events[: counts.total()]
        for stream, count in counts.items():
            recent = self._streams[stream]
            del recent[:count]
            if not recent:
                del self._streams[stream]
        return step

    # Reading.

    def truncated(self, stream: str) -> int:
        """Return the version below which the events of a stream are not read."""
        return max(self._truncated.get(stream, 0), self.base.truncated(stream))

    def recent_streams(self) -> list[str]:
        """Return the names of the streams that have events behind ``floor``."""
        return list(self._streams)

    def hidden(self) -> dict[str, int]:
        """Return what was truncated by records that are not known to be in the base."""
        return dict(self._truncated)

    def recent_of(self, stream: str, after: int, to: int) -> list[Folded]:
        """Return the events of a stream that are behind ``floor``, with versions in a range."""
        recent = self._streams.get(stream)
        if not recent:
            return []
        before = recent[0].version - 1
        return recent[max(0, after - before) : max(0, to - before)]

    def recent(self, after: int, to: int) -> list[Folded]:
        """Return the events with positions in a range that are behind ``floor``."""
        return self._events[max(0, after - self.floor) : max(0, to - self.floor)]
