"""Positions of options: ``topic consume --from``, ``group seek --to``, ``pipeline run --from``.

``parse`` is pure, and ``resolve`` asks the broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill import positions
from tidemill.cli import output
from tidemill.cli.client import Cluster, PartitionOffsets, TopicPartitionKey
from tidemill.cli.output import UsageError
from tidemill.positions import FORMS, Kind, Position

_SHOWN = 3
"""The most partitions that warnings name."""


def parse(text: str, flag: str) -> Position:
    """Parse a position, which was given with ``flag``.

    Raises:
        UsageError: the text is not a position.
    """
    try:
        return positions.parse(text)
    except ValueError:
        raise UsageError(f"{flag} {text}: invalid position", hint=f"Use {FORMS}") from None


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
