"""Reads partitions from explicit positions, with a few consumers that all requests share.

``GET /topics/NAME/partitions/P`` keeps no position here: it is in the URL, and the next one is in
the answer. So a request can be repeated, and an answer that is lost loses nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from confluent_kafka import KafkaException, Message
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import Extract, ExtractReader, headers_of
from tidemill.gateway.errors import from_kafka, invalid, unknown_partition
from tidemill.gateway.guard import Budget, Turns
from tidemill.gateway.parameters import Parameters
from tidemill.gateway.topics import REQUEST_S, SPECS, Bounds, Catalog, Place, Topic
from tidemill.positions import FORMS, Kind, parse
from tidemill.record_json import Headers, to_line

READERS = 4
"""The most consumers, each of which has a thread."""
_WAITING = 500
RECORDS, MOST_RECORDS = 100, 10_000
BYTES, MOST_BYTES = 1_048_576, 16_777_216
"""Limits of an answer: those of a request that names none, and the greatest ones."""
MOST_WAIT_S = 60
_PIECE = 131_072

T = TypeVar("T")


class Pool:
    """Reads from explicit positions. It belongs to one event loop.

    Args:
        readers: The most consumers.
    """

    def __init__(self, kafka: Kafka, readers: int = READERS) -> None:
        self._kafka = kafka
        self._threads = ThreadPoolExecutor(readers, "readers", initializer=self._start)
        self._own = threading.local()
        self._readers: list[ExtractReader] = []
        self._turns = Turns(readers, _WAITING, "requests read")

    def _start(self) -> None:
        self._own.reader = ExtractReader.of(self._kafka, "tidemill-gateway")
        self._readers.append(self._own.reader)

    async def read(self, place: Place, offset: int, most: int, most_bytes: int) -> Extract:
        """Return the records of a partition from an offset on; see ``ExtractReader.read``.

        Raises:
            OutOfRangeError: the partition does not have the offset.
            HttpError: the partition can't be read, or too many requests wait (503).
        """
        return await self._run(
            f"topic {place[0]} partition {place[1]}",
            lambda reader: reader.read(place, offset, most, most_bytes, REQUEST_S),
        )

    async def read_several(
        self,
        starts: Mapping[Place, int],
        take: Callable[[Message], None],
        most: int,
        most_bytes: int,
        timeout_s: float,
    ) -> tuple[dict[Place, int], set[Place]]:
        """Read several partitions together; see ``ExtractReader.read_several``.

        Args:
            take: Runs in a thread.

        Raises:
            HttpError: a partition can't be read, or too many requests wait (503).
        """
        return await self._run(
            f"topic {next(iter(starts), ('', 0))[0]}",
            lambda reader: reader.read_several(starts, take, most, most_bytes, timeout_s),
        )

    async def _run(self, what: str, work: Callable[[ExtractReader], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            async with self._turns.turn():
                return await loop.run_in_executor(self._threads, lambda: work(self._own.reader))
        except KafkaException as error:
            raise from_kafka(error.args[0], what) from error

    async def close(self) -> None:
        """End the threads and the consumers."""
        await asyncio.to_thread(self._threads.shutdown)
        for reader in self._readers:
            await asyncio.to_thread(reader.close)


def parts_of(message: Message) -> tuple[bytes | None, bytes | None, Headers]:
    """Return key, value and headers of a record."""
    key: Any = message.key()  # confluent-kafka's types have texts, which it never returns
    value: Any = message.value()
    return key, value, headers_of(message)


def line_of(message: Message) -> bytes:
    """Return a record as a line of JSON."""
    key, value, headers = parts_of(message)
    kind, timestamp = message.timestamp()
    return to_line(
        topic=str(message.topic()),
        partition=int(message.partition() or 0),
        offset=int(message.offset() or 0),
        timestamp_ms=timestamp if kind else None,
        key=key,
        value=value,
        headers=headers,
    )


async def positions(
    catalog: Catalog,
    places: Sequence[Place],
    text: str,
    known: Bounds | None = None,
) -> list[int]:
    """Return the offset of each partition that a request means.

    Args:
        known: As ``Catalog.bounds`` returns it, if it was asked for already.
        text: One of ``tidemill.positions``.

    Raises:
        HttpError: the text is not a position (400), or no broker answers (503).
    """
    try:
        wanted = parse(text)
    except ValueError:
        raise invalid(f"invalid from {text[:100]!r}", hint=f"Use {FORMS}") from None
    if wanted.kind is Kind.OFFSET:
        return [wanted.value] * len(places)
    starts, ends = known or ({}, {})
    if wanted.kind in (Kind.BEGINNING, Kind.LAST):
        starts = starts or await catalog.offsets(places, SPECS.earliest())
    if wanted.kind is Kind.BEGINNING:
        return [starts[place] for place in places]
    ends = ends or await catalog.offsets(places, SPECS.latest())
    if wanted.kind is Kind.LAST:
        return [max(starts[place], ends[place] - wanted.value) for place in places]
    if wanted.kind is Kind.END:
        return [ends[place] for place in places]
    found = await catalog.offsets(places, SPECS.for_timestamp(max(wanted.value, 0)))
    return [found[place] if found[place] >= 0 else ends[place] for place in places]


def partition_of(request: Request, topic: Topic) -> int:
    """Return the partition in a path.

    Raises:
        HttpError: the topic does not have it (404).
    """
    text = request.path_params["partition"]
    if text.isascii() and text.isdecimal() and len(text) < 11 and int(text) < topic.partitions:
        return int(text)
    raise unknown_partition(topic.name, text, topic.partitions)


async def get_partition(request: Request) -> Response:
    """Return some records of a partition, and where to continue."""
    parts = request.app.parts
    topic = await parts.catalog.topic(request.path_params["topic"])
    place = topic.name, partition_of(request, topic)
    parameters = Parameters(request)
    start = parameters.text("from") or "beginning"
    limits = {
        "limit": parameters.number("limit", 1, MOST_RECORDS),
        "bytes": parameters.number("bytes", 1, MOST_BYTES),
        "wait": parameters.number("wait", 0, MOST_WAIT_S),
    }
    parameters.end()
    (offset,) = await positions(parts.catalog, [place], start)
    most, most_bytes = limits["limit"] or RECORDS, limits["bytes"] or BYTES
    found = await parts.pool.read(place, offset, most, most_bytes)
    wait_s = 0 if found.records else limits["wait"]
    if wait_s and await parts.hub.wait(request, topic, place[1], found.following, wait_s):
        found = await parts.pool.read(place, found.following, most, most_bytes)
    given = {name: value for name, value in limits.items() if value is not None}
    query = urlencode({"from": found.following, **given})
    url = f"/topics/{quote(topic.name)}/partitions/{place[1]}?{query}"
    lines = b",".join(line_of(message)[:-1] for message in found.records)
    body = b'{"records":[%b],"next":%d,"end":%d,"links":{"next":"%b"}}' % (
        lines,
        found.following,
        found.end,
        url.encode(),
    )
    return Pieces(body, {"link": f'<{url}>; rel="next"'}, parts.budget)


class Pieces(Response):
    """An answer that is sent in pieces, so that a slow client does not have all of it in a buffer.

    Args:
        budget: The memory that it takes until it is sent.
    """

    def __init__(self, body: bytes, headers: Mapping[str, str], budget: Budget) -> None:
        self._budget = budget
        own = {"cache-control": "no-store", **headers}
        super().__init__(body, headers=own, media_type="application/json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = memoryview(self.body)
        with self._budget.taken() as take:
            take(len(body))
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            for at in range(0, len(body), _PIECE):
                piece = bytes(body[at : at + _PIECE])
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
