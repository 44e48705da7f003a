"""Decides whether a commit is accepted. The rules of the store are here, and nowhere else.

``decide`` is a pure function of the log: of the commits before, which it sees through a ``View``,
and of the commit itself. No clock, no record key, no file, no client: so all processes agree. A
change of a rule that would decide an existing log differently takes a new ``FOLD_VERSION``: a
writer appends a commit with that number before it uses the rule, and older processes stop there.

A new kind of change (a field of ``Commit``) is decided here, applied in ``state.py`` and stored in
``index_writing.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tidemill.eventstore.errors import (
    ConditionFailedError,
    ConflictError,
    ForgottenKeyError,
    IdConflictError,
    VersionConflictError,
)
from tidemill.eventstore.events import Appended, Expected, Query, Version
from tidemill.eventstore.wire import Commit

FOLD_VERSION = 1
"""The rules that this module has."""


class Place(NamedTuple):
    """The place of an event whose id is known."""

    position: int
    version: int
    digest: bytes


class View(Protocol):
    """The state behind the last folded commit."""

    @property
    def position(self) -> int:
        """The position of the last accepted event."""

    def version(self, stream: str) -> int:
        """Return the number of events of a stream, also of those that were truncated."""

    def places(self, ids: Sequence[bytes]) -> Mapping[bytes, Place]:
        """Return where event ids are stored, of those that are. Ids are kept for ever."""

    def first_match(self, query: Query, after: int) -> int | None:
        """Return the position of the first event behind a position that a query selects."""

    def is_forgotten(self, key: str) -> bool:
        """Return whether a key was deleted."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A commit that is stored.

    Attributes:
        appended: its places, which the writer gets as the answer.
    """

    appended: Appended


@dataclass(frozen=True, slots=True)
class Repeated:
    """A commit that was stored before. It changes nothing.

    Attributes:
        appended: the places of the first one.
    """

    appended: Appended


@dataclass(frozen=True, slots=True)
class Void:
    """A commit that changes nothing.

    Attributes:
        error: why, for its writer.
    """

    error: ConflictError


Outcome = Accepted | Repeated | Void


def decide(view: View, commit: Commit) -> Outcome:
    """Return what becomes of the next commit in the log.

    In this order: a commit whose ids are known is repeated or in conflict; a key with which it is
    sealed must not be deleted; then expected versions; then append conditions. A repeated commit
    is recognized before its expectations are looked at, because it has changed the versions itself.
    """
    known = _known(view, commit)
    if known is not None:
        return known
    for key in commit.keys:
        if view.is_forgotten(key):
            return Void(ForgottenKeyError(f"key {key!r} was deleted: its subject is forgotten"))
    versions = {}
    for stream, expected in commit.streams:
        actual = versions[stream] = view.version(stream)
        if not fits(expected, actual):
            return Void(VersionConflictError(stream, in_words(expected), actual))
    for stream, below in commit.truncate:
        actual = view.version(stream)
        if below > actual + 1:
            return Void(VersionConflictError(stream, f"at least {below - 1} events", actual))
    for condition in commit.conditions:
        for query in condition.none_of:
            position = view.first_match(query, condition.after)
            if position is not None:
                return Void(ConditionFailedError(position))
    for event in commit.events:
        versions[event.stream] += 1
    first = view.position + 1
    return Accepted(Appended(range(first, first + len(commit.events)), versions))


def fits(expected: Version, actual: int) -> bool:
    """Return whether a stream with a number of events is as expected."""
    if isinstance(expected, Expected):
        if expected is Expected.ANY:
            return True
        return (actual == 0) is (expected is Expected.NONE)
    return expected == actual


def in_words(expected: Version) -> str:
    """Return an expectation for a message."""
    return expected.value if isinstance(expected, Expected) else f"{expected} events"


def _known(view: View, commit: Commit) -> Outcome | None:
    """Return the outcome of a commit of which an event id is known, or doubled in itself."""
    ids = [event.id for event in commit.events]
    if len(set(ids)) < len(ids):
        doubled = next(each for number, each in enumerate(ids) if each in ids[:number])
        return _conflict(doubled, "it occurs twice in one commit")
    places = view.places(ids)
    if not places:
        return None
    versions: dict[str, int] = {}
    first: int | None = None
    for number, event in enumerate(commit.events):
        place = places.get(event.id)
        if place is None:
            return _conflict(event.id, "other events of its commit were stored without it")
        if place.digest != event.digest:
            return _conflict(event.id, "it was stored before with other content or elsewhere")
        first = place.position if first is None else first
        if place.position != first + number:
            return _conflict(event.id, "it was stored before, apart from its commit")
        versions[event.stream] = place.version
    assert first is not None
    for stream, _ in commit.streams:
        versions.setdefault(stream, view.version(stream))
    positions = range(first, first + len(commit.events))
    return Repeated(Appended(positions, versions, repeated=True))


def _conflict(event_id: bytes, why: str) -> Void:
    return Void(IdConflictError(_dashed(event_id), why))


def _dashed(event_id: bytes) -> str:
    text = event_id.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
