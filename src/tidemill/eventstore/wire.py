"""Commits as bytes, and bytes as commits.

A commit is the value of one record::

    magic "TMC" | format (1 byte) | commit id (16) | header length (u32, big endian) | header (JSON)
    then for each event: id (16) | data | metadata

What can't be decoded is *foreign*: ``decode`` returns None, and the fold calls the record void. It
never raises, because a record that one process can read and another can't would divide them. All
rules about the shape of a commit are here, for the writer and for the reader alike. Must not know:
what a commit means, clients, files.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import orjson

from tidemill.eventstore.errors import InvalidCommitError
from tidemill.eventstore.events import (
    Condition,
    Expected,
    NewEvent,
    Query,
    StreamAppend,
    Version,
)

MAGIC = b"TMC"
FORMAT = 1
_START = struct.Struct(">3sB16sI")
ID_BYTES = 16
NAME_BYTES = 1024
"""The longest name of a stream, a type, a tag or a key, in bytes of UTF-8."""
EVENTS, STREAMS, TAGS, CONDITIONS, QUERIES = 100_000, 10_000, 100, 1_000, 1_000
"""The most events, streams and conditions of a commit, tags of an event, and queries in total."""
_LARGEST = 2**62
_EXPECTED = {"any": Expected.ANY, "none": Expected.NONE, "exists": Expected.EXISTS}
_WORDS = {value: word for word, value in _EXPECTED.items()}


class Event(NamedTuple):
    """An event of a commit, as the fold sees it.

    Attributes:
        id: 16 bytes.
        tags: sorted, each once.
        digest: identifies the content, to recognize a repeated append.
    """

    stream: str
    type: str
    schema: int
    tags: tuple[str, ...]
    id: bytes
    data: bytes
    metadata: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """The proposal of a record. Everything of it is accepted, or nothing.

    Attributes:
        id: chosen by the writer for each attempt, so that it knows its record again.
        streams: the streams with their expected versions; each once.
        events: the events of all streams, in the order of ``streams``.
        conditions: append conditions.
        seen: the position up to which the writer had folded, and the chain hash there.
        truncate: streams and the version below which their events are no longer read.
        forget: ids of keys that are deleted.
        keys: ids of the keys with which content of this commit is sealed.
        fold: the version of the fold from this commit on; 0: as before.
    """

    id: bytes
    streams: tuple[tuple[str, Version], ...] = ()
    events: tuple[Event, ...] = ()
    conditions: tuple[Condition, ...] = ()
    seen: tuple[int, bytes] = (0, b"")
    truncate: tuple[tuple[str, int], ...] = ()
    forget: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    fold: int = 0


def digest(event_of: tuple[str, str, int, tuple[str, ...]], data: bytes, metadata: bytes) -> bytes:
    """Return 16 bytes that identify an event's stream, type, schema, tags, data and metadata."""
    about = orjson.dumps((*event_of, len(data)))
    return hashlib.blake2b(b"".join((about, data, metadata)), digest_size=16).digest()


def propose(
    commit_id: bytes,
    appends: Sequence[StreamAppend],
    conditions: Sequence[Condition] = (),
    seen: tuple[int, bytes] = (0, b""),
    **more: Any,
) -> Commit:
    """Return a commit of these appends.

    Args:
        more: further attributes of ``Commit``.

    Raises:
        InvalidCommitError: a name is invalid, a stream occurs twice, or there is too much.
    """
    commit = Commit(
        commit_id,
        tuple((each.stream, each.expected) for each in appends),
        tuple(
            _event(each.stream, event, tuple(sorted(event.tags)))
            for each in appends
            for event in each.events
        ),
        tuple(conditions),
        seen,
        **more,
    )
    _check(commit)
    return commit


def _event(stream: str, new: NewEvent, tags: tuple[str, ...]) -> Event:
    about = (stream, new.type, new.schema, tags)
    try:
        found = digest(about, new.data, new.metadata)
    except (TypeError, ValueError) as error:
        raise InvalidCommitError(f"invalid event of stream {stream!r}: {error}") from error
    return Event(*about, new.id.bytes, new.data, new.metadata, found)


def encode(commit: Commit) -> bytes:
    """Return a commit as the value of a record."""
    numbers = {name: number for number, (name, _) in enumerate(commit.streams)}
    header: dict[str, Any] = {
        "streams": [
            (name, expected if isinstance(expected, int) else _WORDS[expected])
            for name, expected in commit.streams
        ],
        "events": [
            (numbers[each.stream], each.type, each.schema, len(each.data), len(each.metadata))
            + ((each.tags,) if each.tags else ())
            for each in commit.events
        ],
        "seen": (commit.seen[0], commit.seen[1].hex()),
    }
    if commit.conditions:
        header["conditions"] = [
            (each.after, [(sorted(query.types), sorted(query.tags)) for query in each.none_of])
            for each in commit.conditions
        ]
    for name in ("truncate", "forget", "keys", "fold"):
        if value := getattr(commit, name):
            header[name] = value
    text = orjson.dumps(header)
    blobs = chain.from_iterable((each.id, each.data, each.metadata) for each in commit.events)
    return b"".join((_START.pack(MAGIC, FORMAT, commit.id, len(text)), text, *blobs))


def commit_id(value: bytes | None) -> bytes | None:
    """Return the id of the commit in a record's value, without decoding the rest."""
    if value is None or len(value) < _START.size or not value.startswith(MAGIC):
        return None
    return value[4 : 4 + ID_BYTES]


def decode(value: bytes | None) -> Commit | None:
    """Return the commit in a record's value; None if it is foreign."""
    if value is None or len(value) < _START.size:
        return None
    magic, version, commit, length = _START.unpack_from(value)
    end = _START.size + length
    if magic != MAGIC or version != FORMAT or end > len(value):
        return None
    try:
        header = orjson.loads(value[_START.size : end])
        found = _decoded(commit, header, value, end)
        _check(found)
    except (_ForeignError, InvalidCommitError, ValueError, TypeError, KeyError, IndexError):
        return None
    return found


class _ForeignError(Exception):
    """The bytes are not a commit."""


_FIELDS = {"streams", "events", "seen", "conditions", "truncate", "forget", "keys", "fold"}


def _decoded(commit: bytes, header: Any, value: bytes, place: int) -> Commit:
    """Return the commit of a header and the blobs behind it. All shapes are checked."""
    if type(header) is not dict or not header.keys() <= _FIELDS:
        raise _ForeignError
    streams = tuple(
        (_text(name), _version(expected)) for name, expected in _list(header["streams"])
    )
    events = []
    for number, kind, schema, data_length, metadata_length, *rest in _list(header["events"]):
        stream = streams[_count(number)][0]
        tags = tuple(map(_text, _list(rest[0]))) if rest else ()
        data_at = place + ID_BYTES
        metadata_at = data_at + _count(data_length)
        end = metadata_at + _count(metadata_length)
        if len(rest) > 1 or end > len(value):
            raise _ForeignError
        about = (stream, _text(kind), _count(schema), tags)
        data, metadata = value[data_at:metadata_at], value[metadata_at:end]
        events.append(
            Event(*about, value[place:data_at], data, metadata, digest(about, data, metadata))
        )
        place = end
    if place != len(value):
        raise _ForeignError
    position, hashed = header["seen"]
    return Commit(
        commit,
        streams,
        tuple(events),
        tuple(
            Condition(tuple(_query(*each) for each in _list(queries)), _count(after))
            for after, queries in _list(header.get("conditions", []))
        ),
        (_count(position), bytes.fromhex(_text(hashed))),
        tuple((_text(name), _count(below)) for name, below in _list(header.get("truncate", []))),
        tuple(map(_text, _list(header.get("forget", [])))),
        tuple(map(_text, _list(header.get("keys", [])))),
        _count(header.get("fold", 0)),
    )


def _query(types: Any, tags: Any) -> Query:
    return Query(frozenset(map(_text, _list(types))), frozenset(map(_text, _list(tags))))


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise _ForeignError
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _ForeignError
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise _ForeignError
    return value


def _version(value: Any) -> Version:
    return _EXPECTED[value] if type(value) is str else _count(value)


def _check(commit: Commit) -> None:
    """Check the rules that a writer can break, too.

    Raises:
        InvalidCommitError: with the rule.
    """
    if len(commit.streams) > STREAMS or len(commit.events) > EVENTS:
        raise InvalidCommitError(f"a commit has at most {EVENTS} events and {STREAMS} streams")
    names = [name for name, _ in commit.streams]
    if len(set(names)) != len(names):
        raise InvalidCommitError("a stream occurs twice in a commit")
    for _, expected in commit.streams:
        if not isinstance(expected, Expected) and not 0 <= expected < _LARGEST:
            raise InvalidCommitError(f"invalid expected version {expected}")
    for event in commit.events:
        if len(event.id) != ID_BYTES or not 0 <= event.schema < _LARGEST:
            raise InvalidCommitError(f"invalid schema version {event.schema}")
        if event.tags:
            if len(event.tags) > TAGS:
                raise InvalidCommitError(f"an event has at most {TAGS} tags")
            if any(
                first >= second for first, second in zip(event.tags, event.tags[1:], strict=False)
            ):
                raise InvalidCommitError("tags are not sorted, or doubled")
            names += event.tags
        names.append(event.type)
    queries = [query for each in commit.conditions for query in each.none_of]
    if len(commit.conditions) > CONDITIONS or len(queries) > QUERIES:
        raise InvalidCommitError(f"a commit has at most {QUERIES} queries in its conditions")
    if any(not 0 <= each.after < _LARGEST for each in commit.conditions):
        raise InvalidCommitError("invalid position of an append condition")
    names += chain.from_iterable((*each.types, *each.tags) for each in queries)
    names += [name for name, _ in commit.truncate]
    names += commit.forget + commit.keys
    for name in names:
        if not _is_name(name):
            raise InvalidCommitError(
                f"invalid name {name[:80]!r}: a stream, type, tag or key has 1 to {NAME_BYTES} "
                "bytes of UTF-8, and no zero character"
            )


def _is_name(name: str) -> bool:
    if not name or "\0" in name or len(name) > NAME_BYTES:
        return False
    try:
        return len(name.encode()) <= NAME_BYTES
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
