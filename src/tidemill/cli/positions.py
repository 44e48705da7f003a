"""Positions in a topic as users write them: ``beginning``, ``end``, 42, -10 or a time.

``topic consume --from``, ``group seek --to`` and ``pipeline run --from`` use them. ``parse`` is
pure, and ``resolve`` asks the broker.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemill.cli import output
from tidemill.cli.client import Cluster, PartitionOffsets, TopicPartitionKey
from tidemill.cli.output import UsageError
from tidemill.record_json import time_ms

HELP = (
    "beginning, end, an offset, -N (the last N of each partition), "
    "a time (2026-11-20T10:00Z; UTC if it has no time zone) or @milliseconds."
)


_SHOWN = 3
"""The most partitions that warnings name."""


class Kind(enum.Enum):
    """The kind of a position."""

    BEGINNING = enum.auto()
    END = enum.auto()
    OFFSET = enum.auto()
    LAST = enum.auto()
    TIME = enum.auto()


@dataclass(frozen=True)
class Position:
    """A position. ``value`` is an offset, a count or ms since the epoch, depending on ``kind``."""

    kind: Kind
    value: int = 0


def parse(text: str, flag: str) -> Position:
    """Parse a position, which was given with ``flag``.

    Raises:
        UsageError: the text is not a position.
    """
    word = text.strip().lower()
    if word in ("beginning", "earliest"):
        return Position(Kind.BEGINNING)
    if word in ("end", "latest"):
        return Position(Kind.END)
    try:
        if word.startswith("@"):
            return Position(Kind.TIME, int(word[1:]))
        if word.lstrip("-").isdecimal() and word.count("-") < 2 and len(word) < 20:
            number = int(word)
            return Position(Kind.LAST, -number) if word[0] == "-" else Position(Kind.OFFSET, number)
        return Position(Kind.TIME, time_ms(text.strip()))
    except ValueError:
        raise UsageError(f"{flag} {text}: invalid position", hint=f"Use {HELP}") from None


def resolve(
    cluster: Cluster, keys: Sequence[TopicPartitionKey], position: Position
) -> dict[TopicPartitionKey, int]:
    """Return the offset of ``position`` on each partition, from its start to its end."""
    held = cluster.offsets(keys)
    match position.kind:
        case Kind.BEGINNING:
            return {key: held[key].start for key in keys}
        case Kind.END:
            return {key: held[key].end for key in keys}
        case Kind.OFFSET:
            return within(dict.fromkeys(keys, position.value), held)
        case Kind.LAST:
            return {key: max(held[key].end - position.value, held[key].start) for key in keys}
        case Kind.TIME:
            from confluent_kafka.admin import OffsetSpec

            spec = OffsetSpec.for_timestamp(position.value)
            found = cluster.list_offsets(dict.fromkeys(keys, spec))
            if keys and all(found[key] < 0 for key in keys):
                output.warn("no record is at or after that time: the end is used")
            return {key: found[key] if found[key] >= 0 else held[key].end for key in keys}


def within(
    offsets: Mapping[TopicPartitionKey, int], held: Mapping[TopicPartitionKey, PartitionOffsets]
) -> dict[TopicPartitionKey, int]:
    """Return offsets that are in their partitions: the start or the end instead of others.

    A warning names each that is not.
    """
    outside: list[str] = []
    result: dict[TopicPartitionKey, int] = {}
    for key, offset in offsets.items():
        there = held[key]
        result[key] = max(there.start, min(offset, there.end))
        where = f"of {key[0]} partition {key[1]}"
        if offset > there.end:
            outside.append(f"offset {offset} is after the end {where}: {there.end} is used")
        elif offset < there.start:
            outside.append(f"offset {offset} is before the start {where}: {there.start} is used")
    for text in outside[:_SHOWN]:
        output.warn(text)
    if outside[_SHOWN:]:
        output.warn(f"the same for {output.plural(len(outside) - _SHOWN, 'more partition')}")
    return result
