"""Searches the records of a topic in slices, which show how far they are and can be stopped.

A slice has limits of time, records and bytes; where the next one begins is in its result, and so in
the URL. Conditions are ``connect.webhooks.expression``: no functions, loops or Python. Must not
know: HTML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

import orjson
from confluent_kafka import Message

from tidemill.connect.webhooks.expression import parse_filter
from tidemill.connect.webhooks.lanes import Event
from tidemill.connect.webhooks.messages import RecordScope
from tidemill.gateway.console.contract import View
from tidemill.gateway.console.messages.decoding import Shown, short, text_of
from tidemill.gateway.console.messages.masking import Mask, Record
from tidemill.gateway.errors import invalid, unknown_partition
from tidemill.gateway.reading import parts_of, positions
from tidemill.gateway.topics import Offsets, Place, Topic

SIZE, MOST = 50, 500
"""Records that a page shows, without a parameter and at most."""
SLICE_RECORDS, SLICE_BYTES = 5_000, 8 << 20
T = TypeVar("T")
Keep: TypeAlias = Callable[[Record], T]
Matches: TypeAlias = Callable[[Record], bool]
_PLACES = re.compile(r"\d{1,6}:\d{1,19}(,\d{1,6}:\d{1,19}){0,9999}")


@dataclass(frozen=True, slots=True)
class Row:
    """A record in a list."""

    partition: int
    offset: int
    timestamp_ms: int | None
    key: Shown
    value: Shown
    headers: list[tuple[str, str]]


@dataclass(frozen=True)
class Criteria:
    """The parameters of a search, as they are in the URL.

    Attributes:
        from_: Where it begins: ``-N`` (the last N), ``beginning``, ``end``, an offset or a time.
        at: Where each partition continues; it counts more than ``from_``.
        key: A text in the key.
        header: ``NAME``, or ``NAME=TEXT`` for a text in its value.
        text: A text in the value.
        where: An expression.
    """

    topic: str
    partition: int | None
    from_: str
    at: str
    key: str
    header: str
    text: str
    where: str
    limit: int

    @classmethod
    def of(cls, view: View, most: int = MOST) -> Criteria:
        """Return the criteria in the URL of a page.

        Raises:
            HttpError: a parameter is malformed (400).
        """
        parameters = view.parameters
        topic = view.needed("topic")
        limit = parameters.number("limit", 1, most) or SIZE
        return cls(
            topic=topic,
            partition=parameters.number("partition", 0, 2**31 - 1),
            from_=(parameters.text("from") or "").strip(),
            at=parameters.text("at") or "",
            key=parameters.text("key") or "",
            header=(parameters.text("header") or "").strip(),
            text=parameters.text("text") or "",
            where=(parameters.text("where") or "").strip(),
            limit=limit,
        )

    @property
    def is_filter(self) -> bool:
        """Whether records are left out."""
        return bool(self.key or self.header or self.text or self.where)


def matcher(criteria: Criteria) -> Matches:
    """Return the condition that a search states, for records that are masked already.

    Raises:
        HttpError: the expression is invalid (400).
    """
    conditions: list[Matches] = []
    if criteria.key:
        key = criteria.key.encode()
        conditions.append(lambda record: record.key is not None and key in record.key)
    if criteria.text:
        text = criteria.text.encode()
        conditions.append(lambda record: record.value is not None and text in record.value)
    if criteria.header:
        name, sign, wanted = criteria.header.partition("=")
        part = wanted.encode()
        conditions.append(
            lambda record: any(
                each == name.strip() and (not sign or part in (data or b""))
                for each, data in record.headers
            )
        )
    if criteria.where:
        conditions.append(_expression(criteria.where))
    return lambda record: all(each(record) for each in conditions)


def _expression(text: str) -> Matches:
    parsed = parse_filter(text)

    def holds(record: Record) -> bool:
        timestamp = -1 if record.timestamp_ms is None else record.timestamp_ms
        content = record.key, record.value, tuple(record.headers)
        event = Event(record.partition, record.offset, timestamp, *content)
        try:
            return parsed(RecordScope(event, record.topic, ("$type",)))
        except (orjson.JSONDecodeError, RecursionError):
            return False

    return holds


@dataclass
class Slice(Generic[T]):
    """The result of a slice of a search.

    Attributes:
        rows: The records that match, in the order of arrival.
        scanned: How many records were looked at.
        at: Where each partition continues, as in ``Criteria.at``.
        left: About how many records are still to be looked at.
        is_done: Whether the end, as it was at the beginning, is reached.
        place: The last record that was looked at, as ``partition:offset``.
    """

    rows: list[T] = field(default_factory=list)
    scanned: int = 0
    at: str = ""
    left: int = 0
    is_done: bool = False
    place: str = ""


class Search(Generic[T]):
    """A search over the partitions of a topic. ``start`` finds where it begins.

    Args:
        keep: Makes what a slice keeps of a record that matches.
    """

    def __init__(self, view: View, criteria: Criteria, keep: Keep[T]) -> None:
        self._view = view
        self._criteria = criteria
        self._matches = matcher(criteria)
        self._keep = keep
        self._mask = Mask(criteria.topic, view.settings.masked())
        self._ends: Offsets = {}
        self._positions: dict[Place, int] = {}
        self._topic: Topic | None = None

    async def start(self) -> None:
        """Find where the search begins and ends.

        Raises:
            HttpError: the topic or the partition does not exist, or the position is malformed.
        """
        catalog, criteria = self._view.parts.catalog, self._criteria
        topic = self._topic = await catalog.topic(criteria.topic)
        if criteria.partition is not None and criteria.partition >= topic.partitions:
            raise unknown_partition(topic.name, criteria.partition, topic.partitions)
        numbers = range(topic.partitions) if criteria.partition is None else [criteria.partition]
        places = [(topic.name, number) for number in numbers]
        starts, self._ends = known = await catalog.bounds(places)
        if criteria.at:
            given = _parse_places(criteria.at)
            wanted = {place: given[place[1]] for place in places if place[1] in given}
        else:
            # Without a filter, the last records; with one, all of them.
            each = max(1, min(criteria.limit, SLICE_RECORDS // len(places)))
            from_ = criteria.from_ or ("beginning" if criteria.is_filter else f"-{each}")
            found = await positions(catalog, places, from_, known)
            wanted = dict(zip(places, found, strict=True))
        self._positions = {
            place: max(offset, starts[place])
            for place, offset in wanted.items()
            if max(offset, starts[place]) < self._ends[place]
        }

    async def slice(self, most: int, seconds: float) -> Slice[T]:
        """Look at more records, and return those that match.

        Args:
            most: Stop with so many of them.
            seconds: Stop after so long.
        """
        found: Slice[T] = Slice()
        if self._positions:
            await self._read(found, most, seconds)
        found.left = sum(self._ends[place] - offset for place, offset in self._positions.items())
        found.is_done = not self._positions
        found.at = ",".join(f"{place[1]}:{offset}" for place, offset in self._positions.items())
        return found

    async def _read(self, found: Slice[T], most: int, seconds: float) -> None:
        def take(message: Message) -> None:
            record = record_of(message)
            place = record.topic, record.partition
            if len(found.rows) >= most or record.offset >= self._ends[place]:
                return
            found.scanned += 1
            found.place = f"{record.partition}:{record.offset}"
            seen[place] = record.offset + 1
            record = self._mask.record(record)
            if self._matches(record):
                found.rows.append(self._keep(record))

        seen: dict[Place, int] = {}
        before = dict(self._positions)
        records = SLICE_RECORDS if self._criteria.is_filter else min(SLICE_RECORDS, most)
        reached, ended = await self._view.parts.searching.read_several(
            before, take, records, SLICE_BYTES, seconds
        )
        if len(found.rows) >= most:
            reached = {place: seen.get(place, offset) for place, offset in before.items()}
            ended = set()
        self._positions = {
            place: offset
            for place, offset in reached.items()
            if place not in ended and offset < self._ends[place]
        }


def record_of(message: Message) -> Record:
    """Return a record as Kafka has it: nothing is hidden."""
    kind, timestamp = message.timestamp()
    place = str(message.topic()), int(message.partition() or 0), int(message.offset() or 0)
    return Record(*place, timestamp if kind else None, *parts_of(message))


def row_of(record: Record) -> Row:
    """Return a record as a list shows it."""
    return Row(
        *(record.partition, record.offset, record.timestamp_ms),
        *(short(record.key, 120), short(record.value)),
        [(text_of(name.encode(), 100), text_of(data, 100)) for name, data in record.headers[:20]],
    )


def _parse_places(text: str) -> Mapping[int, int]:
    """Return offsets by partition.

    Raises:
        HttpError: the text is not as ``Slice.at`` has it (400).
    """
    if not _PLACES.fullmatch(text):
        raise invalid("invalid at: it is PARTITION:OFFSET, several with commas")
    pairs: Sequence[Sequence[str]] = [each.split(":") for each in text.split(",")]
    return {int(number): min(int(offset), 2**62) for number, offset in pairs}
