"""Places in a topic as people write them: ``beginning``, ``end``, 42, -10, a time.

Parsing is pure; ``resolve`` asks the broker. ``topic consume --from`` and ``group seek --to`` speak
this one language.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tidemill.cli import output
from tidemill.cli.client import Cluster, TopicPartitionKey
from tidemill.cli.output import UsageError

HELP = (
    "beginning, end, an offset, -N (the last N of each partition), "
    "a time (2026-11-20T10:00Z; UTC unless it says otherwise) or @milliseconds."
)


class Kind(enum.Enum):
    """How a position is meant."""

    BEGINNING = enum.auto()
    END = enum.auto()
    OFFSET = enum.auto()
    LAST = enum.auto()
    TIME = enum.auto()


@dataclass(frozen=True)
class Position:
    """A place: ``value`` is an offset, a count or milliseconds since the epoch, by ``kind``."""

    kind: Kind
    value: int = 0


def parse(text: str, flag: str) -> Position:
    """Read a position.

    Raises:
        UsageError: it is none; ``flag`` is named.
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
        raise UsageError(f"{flag} {text}: not a position", hint=f"Positions: {HELP}") from None


def time_ms(text: str) -> int:
    """Milliseconds since the epoch of an ISO 8601 time; UTC where it names no offset.

    Raises:
        ValueError: it is not ISO 8601.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    delta = moment - epoch  # timestamp() would go through a float
    return delta.days * 86_400_000 + delta.seconds * 1000 + delta.microseconds // 1000


def resolve(
    cluster: Cluster, keys: Sequence[TopicPartitionKey], position: Position
) -> dict[TopicPartitionKey, int]:
    """The offset that ``position`` means on each partition, within what the partition holds."""
    held = cluster.offsets(keys)
    match position.kind:
        case Kind.BEGINNING:
            return {key: held[key].start for key in keys}
        case Kind.END:
            return {key: held[key].end for key in keys}
        case Kind.OFFSET:
            if all(position.value > held[key].end for key in keys):
                last = max(held[key].end for key in keys)
                output.note(f"Offset {position.value} is past the end: the next one is {last}.")
            return {key: clamp(position.value, held[key].start, held[key].end) for key in keys}
        case Kind.LAST:
            return {key: max(held[key].end - position.value, held[key].start) for key in keys}
        case Kind.TIME:
            from confluent_kafka.admin import OffsetSpec

            spec = OffsetSpec.for_timestamp(position.value)
            found = cluster.list_offsets(dict.fromkeys(keys, spec))
            return {key: found[key] if found[key] >= 0 else held[key].end for key in keys}


def clamp(offset: int, low: int, high: int) -> int:
    """``offset``, or the bound that it passes."""
    return max(low, min(offset, high))
