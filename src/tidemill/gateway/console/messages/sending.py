"""Sends records: new ones, imported ones, and those of a topic again, edited or to their origin.

Must not know: HTML.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Message

from tidemill.confluent.reading import OutOfRangeError
from tidemill.gateway.console.contract import Done, Form, View, address
from tidemill.gateway.console.messages.decoding import FULL_BYTES, compact, indented, short
from tidemill.gateway.console.messages.masking import Mask
from tidemill.gateway.console.messages.search import Criteria, Search
from tidemill.gateway.console.settings import ConsoleSettings
from tidemill.gateway.errors import HttpError, invalid
from tidemill.gateway.posting import Outcome, check_partition, outcome_of, target
from tidemill.gateway.reading import parts_of
from tidemill.gateway.topics import Topic
from tidemill.record_json import Headers, InputRecord, check_json, from_line

MOST_SELECTED = 500
MOST_RESENT = 10_000
"""Records that are sent again together: those that are chosen, and all of a search."""
RESEND_S = 60.0
_READERS = 4
_LINES = 200
_ADDED = frozenset(
    {
        "error.reason",
        "source.topic",
        "source.partition",
        "source.offset",
        "source.timestamp",
        "pipeline",
        "stream",
        "webhook",
        "webhook-id",
        "attempts",
    }
)
"""Headers that pipelines and webhooks add to a dead letter. They do not go back with it."""


def origin_of(headers: Headers) -> str:
    """Return the topic that a dead letter comes from; empty for other records."""
    found = next((data for name, data in reversed(headers) if name == "source.topic"), None)
    return "" if found is None else found.decode(errors="replace")


async def read(view: View) -> Message:
    """Return the record that the URL names; with ``or_later``, the next one if it is not there.

    Raises:
        HttpError: it does not exist (404).
    """
    parameters = view.parameters
    topic = await view.parts.catalog.topic(view.needed("topic"))
    partition = parameters.number("partition", 0, 2**31 - 1)
    offset = parameters.number("offset", 0, 2**63 - 1)
    if partition is None or offset is None:
        raise invalid("the partition and the offset of a record are needed")
    or_later = view.text("or_later") == "1"
    return await _read(view, topic, partition, offset, or_later=or_later)


async def _read(
    view: View, topic: Topic, partition: int, offset: int, *, or_later: bool = False
) -> Message:
    missing = HttpError(
        404,
        "unknown_record",
        f"topic {topic.name} partition {partition} has no record at offset {offset}",
        hint="It was deleted or compacted, is not written or not committed yet, or is the marker "
        "of a transaction.",
    )
    if partition >= topic.partitions:
        raise missing
    try:
        found = await view.parts.pool.read((topic.name, partition), offset, 1, 1)
    except OutOfRangeError:
        raise missing from None
    if not found.records or (found.records[0].offset() != offset and not or_later):
        raise missing
    return found.records[0]


def filled(message: Message, settings: ConsoleSettings) -> dict[str, Any]:
    """Return the fields of the form for a record like this one.

    Raises:
        HttpError: its topic has fields that are hidden (403), or it is too large to edit (413).
    """
    key, value, headers = parts_of(message)
    _check_mask(str(message.topic()), settings)
    if len(value or b"") > FULL_BYTES:
        raise HttpError(
            413,
            "too_large",
            f"the value has {len(value or b''):,} bytes, too many to edit here",
            hint="It can be sent again as it is: choose it in the list.",
        )
    text, encoding = _editable(value)
    key_text, key_encoding = _editable(key)
    kept = [(name, data) for name, data in headers if name not in _ADDED]
    lines = [f"{name}: {(data or b'').decode()}" for name, data in kept if _is_plain(name, data)]
    return {
        "key": key_text if key_encoding == "text" else "",
        "value": text,
        "encoding": encoding,
        "headers": "\n".join(lines),
        "left_out": len(kept) - len(lines) + (key_encoding == "base64"),
    }


def _editable(data: bytes | None) -> tuple[str, str]:
    """Return bytes for a field of a form, and their encoding."""
    if data is None:
        return "", "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"
    if "\r" in text or "\0" in text:  # a form changes them
        return base64.b64encode(data).decode(), "base64"
    return (indented(text), "json") if short(data, FULL_BYTES).kind == "json" else (text, "text")


def _is_plain(name: str, data: bytes | None) -> bool:
    """Return whether a header can be a line of the form."""
    try:
        text = (data or b"").decode()
    except UnicodeDecodeError:
        return False
    return ":" not in name and not set(name + text) & set("\r\n\0")


def _check_mask(topic: str, settings: ConsoleSettings) -> None:
    if Mask(topic, settings.masked()).is_needed:
        raise HttpError(
            403,
            "masked",
            f"topic {topic} has fields that are hidden here, so its records are not sent again",
            hint="console.mask names them.",
        )


# --- actions -------------------------------------------------------------------------------------


async def send(view: View, form: Form) -> Done:
    """Write one record.

    Raises:
        HttpError: a field is invalid, or the record can't be stored.
    """
    topic = await target(view.parts, form.needed("topic"))
    record = InputRecord(_key(form), _value(form), _headers(form.get("headers", "")))
    if form.get("partition", "").strip():
        record.partition = form.number("partition")
        check_partition(topic, record)
    stored = await view.parts.writer.send(topic.name, record)
    place = f"partition {stored.partition}, offset {stored.offset}"
    url = address("message", topic=topic.name, partition=stored.partition, offset=stored.offset)
    return Done(url, f"Stored in {topic.name}: {place}.")


def _key(form: Form) -> bytes | None:
    text = form.get("key", "")
    return text.encode() if text else None


def _value(form: Form) -> bytes | None:
    text = form.get("value", "").replace("\r\n", "\n")  # forms send line breaks so
    match form.get("encoding", "text"):
        case "text":
            return text.encode()
        case "null":
            return None
        case "json":
            return _compact(text)
        case "base64":
            try:
                return base64.b64decode("".join(text.split()), validate=True)
            except ValueError:
                raise invalid("the value is not base64") from None
        case "hex":
            try:
                return bytes.fromhex(text)
            except ValueError:
                raise invalid("the value is not hexadecimal") from None
        case other:
            raise invalid(f"invalid encoding {other[:50]!r}: use text, json, hex, base64 or null")


def _compact(text: str) -> bytes:
    """Return JSON without line breaks and spaces around its parts.

    Raises:
        HttpError: it is not JSON (400).
    """
    try:
        check_json(text)
    except ValueError as error:
        raise invalid(f"the value is {error}") from None
    return compact(text).encode()


def _headers(text: str) -> list[tuple[str, bytes | None]]:
    """Return the headers in lines ``NAME: VALUE``."""
    found: list[tuple[str, bytes | None]] = []
    for line in filter(str.strip, text.replace("\r", "").split("\n")):
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise invalid(f"invalid header {line[:100]!r}: write one as NAME: VALUE in each line")
        found.append((name.strip(), value.removeprefix(" ").encode()))
    return found


async def import_(view: View, form: Form) -> Done:
    """Write records from lines of JSON, as exports and ``tidemill topic consume`` have them.

    All lines are checked before the first record is stored.

    Raises:
        HttpError: a line is invalid (400), or the topic does not exist (404).
    """
    topic = await target(view.parts, form.needed("topic"))
    records: list[InputRecord] = []
    for number, line in enumerate(form.get("lines", "").split("\n"), 1):
        if not number % _LINES:
            await asyncio.sleep(0)  # other requests take their turn
        if not line.strip():
            continue
        try:
            record = from_line(line.strip().encode())
        except ValueError as error:
            raise invalid(f"line {number}: {error}") from None
        if form.get("partitions") != "keep":
            record.partition = None
        try:
            check_partition(topic, record)
        except HttpError as error:
            raise invalid(f"line {number}: {error}", hint=error.hint) from None
        records.append(record)
    if not records:
        raise invalid("there are no records to import")
    return await _send_all(view, [(topic.name, each) for each in records])


async def resend(view: View, form: Form) -> Done:
    """Write records of a topic again: those that are chosen, or all that the search finds.

    Without a topic to send them to, dead letters go back to where they come from, and other records
    are refused.

    Raises:
        HttpError: nothing is chosen, or too much (400); a topic does not exist (404).
    """
    criteria = Criteria.of(view)
    _check_mask(criteria.topic, view.settings)
    source = await view.parts.catalog.topic(criteria.topic)
    wanted = form.get("to", "").strip()
    if form.get("which") == "all":
        found = await _all(view, criteria)
    else:
        found = await _selected(view, source, form.getlist("record"))
    records: list[tuple[str, InputRecord]] = []
    for key, value, headers in found:
        origin = origin_of(headers)
        if not wanted and not origin:
            raise invalid(
                "a record has no header source.topic, so its origin is not known",
                hint="Name the topic that it is to be sent to.",
            )
        kept = [(name, data) for name, data in headers if not origin or name not in _ADDED]
        records.append((wanted or origin, InputRecord(key, value, kept)))
    for name in {name for name, _ in records}:
        await target(view.parts, name)
    return await _send_all(view, records)


Raw = tuple[bytes | None, bytes | None, Headers]


async def _selected(view: View, topic: Topic, chosen: Sequence[str]) -> list[Raw]:
    if not chosen:
        raise invalid("no record is chosen")
    if len(chosen) > MOST_SELECTED:
        raise invalid(f"more than {MOST_SELECTED} records are chosen")
    places = []
    for each in chosen:
        partition, _, offset = each.partition(":")
        if not (partition.isdecimal() and offset.isdecimal() and each.isascii() and len(each) < 32):
            raise invalid(f"invalid record {each[:50]!r}")
        places.append((int(partition), int(offset)))
    places.sort()
    found: list[Raw] = []
    size = 0
    for at in range(0, len(places), _READERS):
        part = places[at : at + _READERS]
        messages = await asyncio.gather(*(_read(view, topic, *place) for place in part))
        found += map(parts_of, messages)
        size += sum(len(value or b"") for _, value, _ in found[at:])
        _check_size(view, size)
    return found


async def _all(view: View, criteria: Criteria) -> list[Raw]:
    search = Search(view, criteria, lambda record: (record.key, record.value, record.headers))
    await search.start()
    found: list[Raw] = []
    size, left_s = 0, RESEND_S
    while True:
        began = asyncio.get_running_loop().time()
        part = await search.slice(MOST_RESENT + 1 - len(found), 1.0)
        found += part.rows
        size += sum(len(value or b"") for _, value, _ in part.rows)
        _check_size(view, size)
        left_s -= asyncio.get_running_loop().time() - began
        if len(found) > MOST_RESENT or left_s < 0:
            raise invalid(
                f"the search finds more than {MOST_RESENT:,} records, or takes too long",
                hint="Narrow it, or use: tidemill topic consume … | tidemill topic produce …",
            )
        if part.is_done:
            return found


def _check_size(view: View, size: int) -> None:
    most = view.parts.settings.inflight_bytes // 2
    if size > most:
        raise invalid(
            f"the records have more than {most:,} bytes", hint="Send them in several parts."
        )


async def _send_all(view: View, records: Sequence[tuple[str, InputRecord]]) -> Done:
    """Send records; the result says how many were stored, and the first error."""
    started: list[Outcome] = []
    for topic, record in records:
        await view.parts.writer.room()
        try:
            started.append(view.parts.writer.send(topic, record))
        except HttpError as error:
            started.append(error)
    found = [await outcome_of(each) for each in started]
    failures = [each for each in found if isinstance(each, HttpError)]
    names = sorted({topic for topic, _ in records})
    where = f"{names[0]}" if len(names) == 1 else f"{len(names)} topics"
    url = address("messages", topic=names[0])
    text = f"{len(found) - len(failures):,} of {len(found):,} records were stored in {where}."
    if failures:
        return Done(url, f"{text} The first error: {failures[0]}", is_problem=True)
    return Done(url, text)
