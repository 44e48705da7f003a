"""A store whose personal fields are sealed when they are written, and opened when they are read.

It is used where a store is used: repositories, projections and process managers need no change. An
event's type says which of its fields are personal, and which field names the subject. Must not
know: event classes, databases.
"""

from __future__ import annotations

import dataclasses
import typing
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, Unpack

import orjson

from tidemill.eventstore.errors import ForgottenKeyError, IdConflictError, InvalidCommitError
from tidemill.eventstore.events import (
    Appended,
    Condition,
    Events,
    NewEvent,
    Range,
    Selection,
    StoredEvent,
    StreamAppend,
    Subscription,
)
from tidemill.eventstore.folded import FoldedStore
from tidemill.eventstore.forgetting.cipher import seal, unseal
from tidemill.eventstore.forgetting.keyring import Keyring

MARK = "$sealed"
Fields = Mapping[str, Mapping[str, str]]
"""For each type of events, its personal fields, and the field that has the subject of each."""


@dataclass(frozen=True, slots=True)
class Personal:
    """Marks a field of an event class as personal: ``Annotated[str | None, Personal("customer")]``.

    Attributes:
        subject: the field that identifies the subject: an id, not a name.
    """

    subject: str


def personal_fields(classes: Mapping[str, type]) -> dict[str, dict[str, str]]:
    """Return the personal fields of event classes.

    Args:
        classes: by the stored name of their events.

    Raises:
        InvalidCommitError: a field names a subject that its class does not have.
    """
    found: dict[str, dict[str, str]] = {}
    for name, owner in classes.items():
        hints = typing.get_type_hints(owner, include_extras=True)
        for field, hint in hints.items():
            for mark in getattr(hint, "__metadata__", ()):
                if isinstance(mark, Personal):
                    if mark.subject not in hints:
                        raise InvalidCommitError(
                            f"{owner.__name__}.{field}: there is no field {mark.subject!r}"
                        )
                    found.setdefault(name, {})[field] = mark.subject
    return found


@dataclass
class Forgotten:
    """The report of a subject that was forgotten.

    Attributes:
        keys: the ids of the keys that were deleted; none if the subject was not known.
        cleared: what callbacks have cleared, by their names.
        failed: callbacks that failed, with their error. Clear these by hand.
        remains: ids of keys whose bytes are in the topic of keys until it is compacted.
        out_of_reach: copies that can't be reached from here.
    """

    keys: list[str]
    cleared: dict[str, str] = dataclasses.field(default_factory=dict)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    remains: list[str] = dataclasses.field(default_factory=list)
    out_of_reach: tuple[str, ...] = (
        "backups of the topic of keys, until they are deleted",
        "programs that have read the opened content, and what they have stored of it",
    )


class SealedStore(Events):
    """A store with personal fields.

    Args:
        store: the store.
        keyring: its keys.
        fields: the personal fields by type of event. Content is a JSON object.
        forgotten: what a personal field is when its key was deleted.

    Attributes:
        keyring: the keys of the store.

    Keys that the log says are forgotten, and that are there again (a restored copy), are deleted.
    """

    def __init__(
        self, store: FoldedStore, keyring: Keyring, fields: Fields, *, forgotten: Any = None
    ) -> None:
        self._store = store
        self._fields = {name: dict(each) for name, each in fields.items() if each}
        self._forgotten = forgotten
        self._clearers: dict[str, Callable[[str], str]] = {}
        self.keyring = keyring
        keyring.delete([key for key in keyring.ids() if store.is_forgotten(key)])

    # Writing.

    def commit(
        self, appends: Sequence[StreamAppend], *, conditions: Sequence[Condition] = ()
    ) -> Appended:
        """Store events of several streams, all or none, with their personal fields sealed.

        Raises:
            InvalidCommitError: the content of an event with personal fields is not a JSON object,
                or does not name its subject.
            ForgottenKeyError: a subject was forgotten between sealing and storing.
        """
        try:
            return self._commit(appends, conditions)
        except ForgottenKeyError:
            self.keyring.refresh()  # a subject that comes back gets a new key
            return self._commit(appends, conditions)
        except IdConflictError:
            before = self._stored_before(appends)
            if before is None:
                raise
            return before

    def _commit(self, appends: Sequence[StreamAppend], conditions: Sequence[Condition]) -> Appended:
        keys: dict[str, None] = {}
        sealed = [
            StreamAppend(
                each.stream,
                tuple(self._sealed(each.stream, event, keys) for event in each.events),
                each.expected,
            )
            for each in appends
        ]
        return self._store.commit(sealed, conditions=conditions, keys=tuple(keys))

    def _stored_before(self, appends: Sequence[StreamAppend]) -> Appended | None:
        """Return the places of a commit that is known, but for content that is forgotten.

        Its subject's key is gone, so nothing can seal it as it was: the id decides alone.
        """
        positions: list[int] = []
        versions: dict[str, int] = {}
        for each in appends:
            wanted = {event.id for event in each.events}
            found: dict[uuid.UUID, StoredEvent] = {}
            for stored in self._store.read(each.stream, backwards=True, fresh=True):
                if stored.id in wanted:
                    found[stored.id] = stored
                    if len(found) == len(wanted):
                        break
            for event in each.events:
                known = found.get(event.id)
                if known is None or not self._is_same(event, known):
                    return None
                positions.append(known.position)
                versions[each.stream] = known.version
        if not positions or positions != [*range(positions[0], positions[0] + len(positions))]:
            return None
        return Appended(range(positions[0], positions[-1] + 1), versions, repeated=True)

    def _is_same(self, event: NewEvent, stored: StoredEvent) -> bool:
        """Return whether an event is what was stored, as far as that can be known."""
        if event.type != stored.type:
            return False
        fields = self._fields.get(event.type)
        if not fields or not stored.data:
            return event.data == stored.data
        for field in fields:
            sealed = _object(stored.data, stored.type).get(field)
            if isinstance(sealed, dict) and self._store.is_forgotten(str(sealed.get(MARK))):
                return True
        opened = self.opened(stored)
        return _object(event.data, event.type) == _object(opened.data, opened.type)

    def _sealed(self, stream: str, event: NewEvent, keys: dict[str, None]) -> NewEvent:
        fields = self._fields.get(event.type)
        if not fields:
            return event
        content = _object(event.data, event.type)
        for field, subject_field in fields.items():
            value = content.get(field)
            if value is None:
                continue
            subject = content.get(subject_field)
            if not isinstance(subject, (str, int)) or isinstance(subject, bool):
                raise InvalidCommitError(
                    f"event {event.type!r}: the field {subject_field!r} must name the subject of "
                    f"{field!r}, as text or as a number"
                )
            key = self.keyring.of(str(subject))
            keys[key.id] = None
            place = _place(stream, event.id.bytes, field)
            content[field] = {MARK: key.id, "text": seal(key.secret, orjson.dumps(value), place)}
        return dataclasses.replace(event, data=orjson.dumps(content))

    # Reading.

    def read(self, stream: str, **how: Unpack[Range]) -> Iterator[StoredEvent]:
        """Read a stream, opened; see ``Events.read``."""
        return map(self.opened, self._store.read(stream, **how))

    def read_all(self, **how: Unpack[Selection]) -> Iterator[StoredEvent]:
        """Read all streams, opened; see ``Events.read_all``."""
        return map(self.opened, self._store.read_all(**how))

    def follow(self, **how: Unpack[Subscription]) -> OpenedFollowing:
        """Follow all streams, opened; see ``Events.follow``."""
        return OpenedFollowing(self, self._store.follow(**how))

    def version(self, stream: str) -> int:
        """Return the number of events in a stream."""
        return self._store.version(stream)

    def position(self) -> int:
        """Return the position of the last event that this process knows."""
        return self._store.position()

    def opened(self, event: StoredEvent) -> StoredEvent:
        """Return an event with its personal fields opened, or replaced where they are forgotten.

        Raises:
            SealedContentError: a field is damaged.
        """
        fields = self._fields.get(event.type)
        if not fields or not event.data:
            return event
        content = _object(event.data, event.type)
        for field in fields:
            value = content.get(field)
            if not isinstance(value, dict) or MARK not in value:
                continue
            key_id = str(value[MARK])
            key = None if self._store.is_forgotten(key_id) else self.keyring.get(key_id)
            if key is None:
                content[field] = self._forgotten
            else:
                place = _place(event.stream, event.id.bytes, field)
                content[field] = orjson.loads(unseal(key.secret, str(value.get("text")), place))
        return event._replace(data=orjson.dumps(content))

    # Forgetting.

    def on_forget(self, name: str, clear: Callable[[str], str]) -> None:
        """Have something cleared when a subject is forgotten: snapshots, projections, exports.

        Args:
            name: what it is, for the report.
            clear: called with the subject; returns what it did. It may be called again.
        """
        self._clearers[name] = clear

    def forget(self, subject: str) -> Forgotten:
        """Forget a subject: delete its keys, for ever, and clear what was registered.

        The log gets it first, so commits that are sealed with these keys later are void. If it
        fails, call it again.

        Raises:
            OutcomeUnknownError: it is not known whether the log has it.
            UnreachableError: the keys can't be deleted.
        """
        found: dict[str, None] = {}
        while new := [key for key in self.keyring.ids_of(subject) if key not in found]:
            self._store.forget(new)
            self.keyring.delete(new)
            found.update(dict.fromkeys(new))
        report = Forgotten(list(found))
        for name, clear in self._clearers.items():
            try:
                report.cleared[name] = clear(subject)
            except Exception as error:
                report.failed[name] = str(error) or type(error).__name__
        report.remains = self.keyring.remains_of(report.keys)
        return report

    def rotate(self) -> int:
        """Wrap all keys with the current master key, and return how many there are."""
        count = self.keyring.rewrap()
        self._store.catch_up()  # what was forgotten meanwhile is in the topic again
        gone = [key for key in self.keyring.ids() if self._store.is_forgotten(key)]
        self.keyring.delete(gone)
        return count - len(gone)


class OpenedFollowing:
    """Events that are opened as they come. Another thread can close it."""

    def __init__(self, store: SealedStore, inner: Any) -> None:
        self._store = store
        self._inner = inner

    def __iter__(self) -> Iterator[StoredEvent]:
        return self

    def __next__(self) -> StoredEvent:
        return self._store.opened(next(self._inner))

    def close(self) -> None:
        """End the iteration."""
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _place(stream: str, event_id: bytes, field: str) -> str:
    return f"{stream}\0{event_id.hex()}\0{field}"


def _object(data: bytes, kind: str) -> dict[str, Any]:
    try:
        content = orjson.loads(data)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise InvalidCommitError(
            f"event {kind!r} has personal fields, and its content is not a JSON object"
        )
    return content
