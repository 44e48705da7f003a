"""``POST /topics/NAME``: one record, a list of records, or a stream of lines.

A request is answered when its records are stored. Must not know: how they are written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tidemill.errors import TidemillError
from tidemill.gateway import guard
from tidemill.gateway.answers import NO_STORE
from tidemill.gateway.dedup import Stored
from tidemill.gateway.errors import (
    HttpError,
    from_error,
    invalid,
    unknown_partition,
    unsupported_type,
)
from tidemill.gateway.idempotency import HEADER, parse_key
from tidemill.gateway.metrics import TRACE
from tidemill.gateway.parameters import Parameters
from tidemill.gateway.parts import Parts
from tidemill.gateway.topics import Topic
from tidemill.record_json import InputRecord, check_timestamp, from_document, from_line
from tidemill.tracing import Context, with_context

RECORDS = 10_000
"""The most records in a list."""
PENDING = 2_000
"""The most lines of a stream whose records are under way."""
IDLE_S = 300.0
"""The longest pause of a stream of lines."""
_MEMORY_S = 0.01
"""The pause of a stream of lines while other requests, or its own records, have the memory."""
_LINES = 256
"""The most lines of an answer that are sent together."""
JSON, LINES = "application/json", "application/x-ndjson"
RAW = ("text/plain", "application/octet-stream")

R = TypeVar("R")

Outcome = Awaitable[Stored] | HttpError
"""What becomes of a record."""


async def post(request: Request) -> Response:
    """Store what a request has in its body."""
    parts: Parts = request.app.parts
    topic = await target(parts, request.path_params["topic"])
    context = request.scope.get(TRACE, {})
    writing = _Writing(parts, topic, parse_key(request.headers.getlist(HEADER)), context)
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        raise HttpError(
            415,
            "unsupported_encoding",
            f"Content-Encoding {coding[:100]!r} is not supported",
            hint="Send the body without compression.",
        )
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    parameters = Parameters(request)
    if kind == LINES:
        only_errors = parameters.word("answer", ("all", "errors"), "all") == "errors"
        parameters.end()
        return _Stream(request, writing, only_errors=only_errors)
    if kind != JSON and kind not in RAW:
        raise unsupported_type(
            kind, f"Use {JSON}, {LINES}, or {' or '.join(RAW)} for a value as it is."
        )
    raw = None if kind == JSON else _raw_record(parameters)
    parameters.end()
    with parts.budget.taken() as take:
        body = await guard.read_body(
            request, parts.settings.body_bytes, parts.settings.slow_client_seconds, take
        )
        if raw is not None:
            raw.value = body
            return await writing.one(raw)
        try:
            records, is_list = from_document(body, RECORDS)
        except ValueError as error:
            raise invalid(str(error), hint=_FORM) from error
        del body
        return await (writing.all(records) if is_list else writing.one(records[0]))


async def target(parts: Parts, name: str) -> Topic:
    """Return a topic that records can be sent to.

    Raises:
        HttpError: it does not exist (404), or is internal (403).
    """
    if name.startswith("__"):
        raise HttpError(403, "internal_topic", f"topic {name[:249]} is internal: only read it")
    return await parts.catalog.topic(name)


def check_partition(topic: Topic, record: InputRecord) -> None:
    """Check that a topic has the partition that a record names.

    Raises:
        HttpError: it does not (400).
    """
    if record.partition is not None and record.partition >= topic.partitions:
        raise unknown_partition(topic.name, record.partition, topic.partitions, status=400)


_FORM = (
    'A record is {"value": …, "key": …, "headers": {…}, "partition": N, "timestamp": …}, and a '
    'list is {"records": […]}. A value as it is needs Content-Type: text/plain.'
)


def _raw_record(parameters: Parameters) -> InputRecord:
    """Return the record of a body that is its value: the rest of it is in the URL."""
    key = parameters.text("key")
    record = InputRecord(None if key is None else key.encode(), None)
    record.partition = parameters.number("partition", 0, 2**31 - 1)
    record.timestamp_ms = parameters.time_ms("timestamp")
    if record.timestamp_ms is not None:
        try:
            check_timestamp(record.timestamp_ms)
        except ValueError as error:
            raise invalid(str(error)) from error
    for pair in parameters.texts("header"):
        name, colon, value = pair.partition(":")
        if not colon or not name or "\0" in name:
            raise invalid(f"invalid header {pair[:100]!r}: use NAME:VALUE")
        record.headers.append((name, value.encode()))
    return record


@dataclass
class _Writing:
    """Writes the records of one request.

    Attributes:
        key: Its ``Idempotency-Key``.
        context: The trace that it belongs to, for the headers of its records.
    """

    parts: Parts
    topic: Topic
    key: str | None
    context: Context

    async def one(self, record: InputRecord) -> Response:
        """Store a record; return the answer."""
        check_partition(self.topic, record)
        stored = await self.start(record, self.key)
        return Response(orjson.dumps(self.place(stored)), media_type=JSON)

    async def all(self, records: Sequence[InputRecord]) -> Response:
        """Store records; return the answer. Its status is that of the worst failure."""
        for number, record in enumerate(records):
            try:
                check_partition(self.topic, record)
            except HttpError as error:
                raise invalid(f"record {number}: {error}") from error
        started: list[Outcome] = []
        for number, record in enumerate(records):
            try:
                started.append(self.start(record, self.key and f"{self.key}/{number}"))
            except HttpError as error:
                started.append(error)
        found = [await outcome_of(each) for each in started]
        failures = [each for each in found if isinstance(each, HttpError)]
        answer: dict[str, object] = {
            "topic": self.topic.name,
            "records": [
                {"error": each.code, "detail": str(each)}
                if isinstance(each, HttpError)
                else place(each)
                for each in found
            ],
        }
        if not failures:
            return Response(orjson.dumps(answer), media_type=JSON)
        worst = max(failures, key=lambda each: each.status)
        raise HttpError(
            worst.status,
            worst.code,
            f"{len(failures)} of {len(found)} records were not stored: {worst}",
            hint="Post those that failed again, or all of them with the same Idempotency-Key.",
            retry_after_s=worst.retry_after_s,
            more={"records": answer["records"]},
        )

    def start(self, record: InputRecord, key: str | None) -> Awaitable[Stored]:
        """Begin to store a record.

        Raises:
            HttpError: it can't be stored, or too much is under way (503).
        """
        check_partition(self.topic, record)
        if self.context:
            record.headers = with_context(record.headers, self.context)
        writer = self.parts.writer
        if key is None:
            return writer.send(self.topic.name, record)
        size = writer.take(record)  # here, so that a stream of lines waits for it
        storing = asyncio.ensure_future(self._keyed(record, key))
        storing.add_done_callback(lambda _: self.parts.budget.give(size))
        return storing

    async def _keyed(self, record: InputRecord, key: str) -> Stored:
        stored, _ = await self.parts.keys.store(self.topic, key, record)
        return stored

    def place(self, stored: Stored) -> dict[str, object]:
        """Return the answer for one record."""
        return {"topic": self.topic.name, **place(stored)}


def place(stored: Stored) -> dict[str, object]:
    """Return the place of a record, as JSON values."""
    return {
        "partition": stored.partition,
        "offset": stored.offset,
        "timestamp": stored.timestamp_ms,
    }


async def outcome_of(started: Outcome) -> Stored | HttpError:
    """Return what became of a record."""
    if isinstance(started, HttpError):
        return started
    try:
        return await started
    except TidemillError as error:
        return from_error(error)


# --- streams -------------------------------------------------------------------------------------


class _Stream(StreamingResponse):
    """Stores each line of a body, and answers with a line for each of them, in their order.

    A record is stored as soon as its line is there. If the client does not read the answer, no more
    lines are read; if it does not for long, the connection is closed.
    """

    def __init__(self, request: Request, writing: _Writing, *, only_errors: bool) -> None:
        super().__init__(self._answers(), headers=NO_STORE, media_type=LINES)
        self._request = request
        self._writing = writing
        self._only_errors = only_errors
        self._settings = writing.parts.settings
        # None stands for the end.
        self._outcomes: asyncio.Queue[tuple[int, Outcome] | None] = asyncio.Queue(PENDING)
        self._counts = {"stored": 0, "failed": 0}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reading = asyncio.create_task(self._read())
        try:
            await self.stream_response(send)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self) -> None:
        """Begin to store the record of each line."""
        number = 0
        try:
            with self._writing.parts.budget.taken() as take:
                most, wait_s = self._settings.body_bytes, self._settings.slow_client_seconds
                async for line in _lines(self._request, most, take, wait_s):
                    number += 1
                    await self._outcomes.put((number, await self._start(number, line)))
        except Exception as failure:  # without a line for it, the client would miss it
            error = guard.problem_of(failure, self._request.scope)
            await self._outcomes.put((number + 1, error))
        await self._outcomes.put(None)

    async def _start(self, number: int, line: bytes) -> Outcome:
        try:
            record = from_line(line)
        except ValueError as error:
            return invalid(str(error), hint="")
        key = self._writing.key and f"{self._writing.key}/{number}"
        await self._writing.parts.writer.room()
        try:
            return await _when_there_is_memory(
                lambda: self._writing.start(record, key), self._settings.slow_client_seconds
            )
        except HttpError as error:
            return error

    async def _answers(self) -> AsyncIterator[bytes]:
        """Yield lines of the answer, several together if they are there."""
        lines: list[bytes] = []
        while True:
            if lines and (len(lines) >= _LINES or self._outcomes.empty()):
                yield b"".join(lines)
                lines = []
            following = await self._outcomes.get()
            if following is None:
                break
            number, started = following
            if lines and isinstance(started, asyncio.Future) and not started.done():
                yield b"".join(lines)
                lines = []
            lines += self._line(number, await outcome_of(started))
        if self._only_errors:
            lines.append(orjson.dumps(self._counts) + b"\n")
        if lines:
            yield b"".join(lines)

    def _line(self, number: int, found: Stored | HttpError) -> list[bytes]:
        if isinstance(found, HttpError):
            self._counts["failed"] += 1
            about: dict[str, object] = {"error": found.code, "detail": str(found), "line": number}
            return [orjson.dumps(about) + b"\n"]
        self._counts["stored"] += 1
        return [] if self._only_errors else [orjson.dumps(place(found)) + b"\n"]


async def _when_there_is_memory(call: Callable[[], R], wait_s: float) -> R:
    """Return what a call returns that takes memory, and try again while it is short.

    Not for ever: streams that hold beginnings of lines can have all of it, and wait for each other.

    Raises:
        HttpError: as the call, or memory is short for too long (503).
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return call()
        except HttpError as error:
            if error.status != 503 or time.monotonic() > deadline:
                raise
        await asyncio.sleep(_MEMORY_S)


async def _lines(
    request: Request, most: int, take: Callable[[int], None], wait_s: float
) -> AsyncIterator[bytes]:
    """Yield the lines of a body. Empty ones are left out.

    Args:
        most: The most bytes of a line.
        take: Takes memory from a budget, for a line that is not complete.
        wait_s: How long it waits for memory.

    Raises:
        HttpError: a line is too long (413), the client is too slow (408), or memory is short (503).
    """
    rest = bytearray()
    taken = 0
    try:
        async for chunk in guard.chunks(request, IDLE_S):
            rest += chunk
            if b"\n" in chunk:
                *complete, last = rest.split(b"\n")
                rest = bytearray(last)
                # The record of the line takes its memory: streams would wait for each other.
                if len(rest) < taken:
                    take(len(rest) - taken)
                    taken = len(rest)
                for line in complete:
                    if len(line) > most:
                        raise guard.too_large(most)
                    if line.strip():
                        yield bytes(line)
            if len(rest) > most:
                raise guard.too_large(most)
            if len(rest) > taken:
                more = len(rest) - taken
                await _when_there_is_memory(partial(take, more), wait_s)
                taken = len(rest)
    except ClientDisconnect:
        return
    if rest.strip():
        yield bytes(rest)
