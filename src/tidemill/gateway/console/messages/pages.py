"""The pages of messages: the list with its search, one record, and what they download and follow.

Must not know: HTML, how records are sent.
"""

from __future__ import annotations

import base64
import csv
import io
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from typing import Any

import orjson
from starlette.responses import Response, StreamingResponse

from tidemill.errors import TidemillError
from tidemill.gateway.console.contract import Data, Page, View, address, command_line
from tidemill.gateway.console.messages import sending
from tidemill.gateway.console.messages.decoding import facts, full, text_of
from tidemill.gateway.console.messages.masking import Mask, Record
from tidemill.gateway.console.messages.search import (
    Criteria,
    Row,
    Search,
    Slice,
    record_of,
    row_of,
)
from tidemill.gateway.console.messages.tail import tail
from tidemill.gateway.errors import HttpError
from tidemill.gateway.server_sent import event, event_stream
from tidemill.record_json import to_line

FIRST_SLICE_S = 0.1
"""How long a page searches before it is shown. It continues in slices of ``SLICE_S``."""
SLICE_S = 0.25
PLAIN_S = 5.0
"""How long a page without a filter waits for its records."""
MOST_EXPORTED = 100_000
"""Records of a download."""
EXPORT_S = 600.0


async def list_(view: View) -> Data:
    """Return the records that a search finds first, and how far it is."""
    criteria = Criteria.of(view)
    search = Search(view, criteria, row_of)
    await search.start()
    is_latest = not (criteria.from_ or criteria.at or criteria.is_filter)
    most = criteria.limit
    seconds = FIRST_SLICE_S if criteria.is_filter else PLAIN_S
    found = await search.slice(5_000 if is_latest else most, seconds)
    rows = _in_order(found.rows, is_latest=is_latest)[:most]
    mask = Mask(criteria.topic, view.settings.masked())
    return {
        "criteria": asdict(criteria),
        "rows": rows,
        "is_filter": criteria.is_filter,
        "is_latest": is_latest,
        "is_masked": mask.is_needed,
        "scanned": found.scanned,
        "matched": len(found.rows),
        "left": found.left,
        "place": found.place,
        "is_done": found.is_done or is_latest,
        "next": "" if found.is_done or is_latest else found.at,
        "command": _command(criteria),
        "are_letters": any(name == "source.topic" for row in rows for name, _ in row.headers),
    }


def _in_order(rows: list[Row], *, is_latest: bool) -> list[Row]:
    """Return records by time: the newest first if they are the latest ones."""
    return sorted(
        rows,
        key=lambda row: (row.timestamp_ms or 0, row.partition, row.offset),
        reverse=is_latest,
    )


def _command(criteria: Criteria) -> str:
    """Return the command that shows the same records, without the filter."""
    words = ["topic", "consume", criteria.topic]
    words += ["--from", criteria.from_ or f"-{criteria.limit}", "--until-end"]
    if criteria.partition is not None:
        words += ["--partition", str(criteria.partition)]
    return command_line(*words)


# --- a search that continues ----------------------------------------------------------------------


async def scan(view: View) -> Response:
    """Continue a search, as events: rows, progress, and the end with where to continue."""
    criteria = Criteria.of(view)
    search = Search(view, criteria, row_of)
    await search.start()
    return event_stream(_scan(view, criteria, search))


async def _scan(view: View, criteria: Criteria, search: Search[Row]) -> AsyncIterator[bytes]:
    scanned = matched = 0
    found: Slice[Row] = Slice()
    try:
        while not found.is_done and matched < criteria.limit and not view.parts.hub.is_stopping:
            found = await search.slice(criteria.limit - matched, SLICE_S)
            scanned, matched = scanned + found.scanned, matched + len(found.rows)
            if found.rows:
                rows = _in_order(found.rows, is_latest=False)
                text = view.render("rows.html", {"rows": rows, "topic": criteria.topic})
                yield event("rows", text)
            progress = {"scanned": scanned, "matched": matched, "left": found.left}
            yield event("progress", {**progress, "place": found.place, "next": found.at})
        yield event("done", {"next": "" if found.is_done else found.at})
    except TidemillError as error:
        yield event("problem", str(error))


# --- downloads -----------------------------------------------------------------------------------


def _check_export(view: View) -> None:
    if not view.settings.export:
        raise HttpError(
            403, "export_off", "exports are off", hint="console.export = true allows them."
        )


async def export(view: View) -> Response:
    """Return the records that a search finds, as lines of JSON or as CSV."""
    _check_export(view)
    form = view.parameters.word("format", ("json", "csv"), "json")
    criteria = Criteria.of(view, MOST_EXPORTED)
    if view.parameters.text("limit") is None:
        criteria = replace(criteria, limit=MOST_EXPORTED)
    if not (criteria.from_ or criteria.at):
        criteria = replace(criteria, from_="beginning")
    search = Search(view, criteria, _json_line if form == "json" else _csv_line)
    await search.start()
    ending, kind = ("csv", "text/csv") if form == "csv" else ("jsonl", "application/x-ndjson")
    headers = {"content-disposition": f'attachment; filename="{criteria.topic}.{ending}"'}
    return StreamingResponse(
        _export(view, criteria, search, form), headers=headers, media_type=kind
    )


async def _export(
    view: View, criteria: Criteria, search: Search[bytes], form: str
) -> AsyncIterator[bytes]:
    if form == "csv":
        yield _csv(["partition", "offset", "timestamp", "key", "value", "headers"])
    left, deadline = criteria.limit, time.monotonic() + EXPORT_S
    found: Slice[bytes] = Slice()
    while not found.is_done and left > 0 and not view.parts.hub.is_stopping:
        if time.monotonic() > deadline:
            raise HttpError(504, "too_slow", "the export takes too long")  # it is cut off
        found = await search.slice(left, SLICE_S)
        left -= len(found.rows)
        if found.rows:
            yield b"".join(found.rows)


def _json_line(record: Record) -> bytes:
    return to_line(**vars(record))


def _csv_line(record: Record) -> bytes:
    named = orjson.dumps([[name, _plain(data)] for name, data in record.headers]).decode()
    timestamp = -1 if record.timestamp_ms is None else record.timestamp_ms
    place = record.partition, record.offset, timestamp
    return _csv([*map(str, place), _plain(record.key), _plain(record.value), named])


def _plain(data: bytes | None) -> str:
    """Return bytes as text; as base64 if they are not UTF-8."""
    if data is None:
        return ""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(data).decode()}"


def _csv(cells: list[str]) -> bytes:
    """Return a line of CSV. A cell that a spreadsheet would run as a formula gets a quote."""
    safe = [f"'{each}" if each[:1] in ("=", "+", "-", "@", "\t", "\r") else each for each in cells]
    out = io.StringIO()
    csv.writer(out).writerow(safe)
    return out.getvalue().encode()


# --- one record ----------------------------------------------------------------------------------


async def detail(view: View) -> Data:
    """Return one record.

    Raises:
        HttpError: it does not exist (404).
    """
    record = record_of(await sending.read(view))
    topic, partition, offset = record.topic, record.partition, record.offset
    mask = Mask(topic, view.settings.masked())
    record = mask.record(record)
    place = {"topic": topic, "partition": partition}
    words = "topic", "consume", topic, "--partition", str(partition)
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp_ms": record.timestamp_ms,
        "key": full(record.key, 16_384),
        "value": full(record.value),
        "headers": [(text_of(name.encode()), full(data, 16_384)) for name, data in record.headers],
        "facts": facts(record.headers, record.value),
        "origin": sending.origin_of(record.headers),
        "is_masked": mask.is_needed,
        "before": address("message", **place, offset=offset - 1) if offset else "",
        "after": address("message", **place, offset=offset + 1, or_later=1),
        "command": command_line(*words, "--from", str(offset), "--count", "1"),
    }


async def raw(view: View) -> Response:
    """Return the value of a record as it is, as a file.

    Raises:
        HttpError: it does not exist (404), or exports are off (403).
    """
    _check_export(view)
    record = record_of(await sending.read(view))
    data = Mask(record.topic, view.settings.masked()).value(record.value) or b""
    name = f"{record.topic}-{record.partition}-{record.offset}"
    headers = {
        "content-disposition": f'attachment; filename="{name}"',
        "content-security-policy": "default-src 'none'; sandbox",
    }
    return Response(data, headers=headers, media_type="application/octet-stream")


async def produce(view: View) -> Data:
    """Return the form for new records, filled in from one that is to be edited."""
    topic = view.text("topic")
    filled: dict[str, Any] = {"key": "", "value": "", "headers": "", "encoding": "text"}
    if view.text("offset"):
        filled = sending.filled(await sending.read(view), view.settings)
    return {"topic": view.text("to") or topic, "like": view.text("offset"), **filled}


LIST = Page(
    address="messages",
    about="The records of a topic: search, follow, export, send again.",
    data=list_,
    actions={"resend": sending.resend},
    answers={"scan": scan, "tail": tail, "export": export},
    belongs_to="topics",
)
DETAIL = Page(
    address="message",
    about="One record, decoded: JSON, text or bytes, headers, trace, CloudEvent.",
    data=detail,
    answers={"raw": raw},
    belongs_to="topics",
)
PRODUCE = Page(
    address="produce",
    about="Writes a record, or imports many.",
    data=produce,
    actions={"send": sending.send, "import": sending.import_},
    belongs_to="topics",
)
