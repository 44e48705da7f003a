"""Describes the routes of topics: ``/openapi.json``, and a page made of it at ``/docs``.

The page needs no script and nothing from another server. Must not know: how a route is served.
Source: OpenAPI Specification 3.1.0.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from tidemill import __version__

_STRING, _BOOLEAN = {"type": "string"}, {"type": "boolean"}
_PROBLEM = "#/components/schemas/Problem"


def _number(least: int, most: int, default: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "integer", "minimum": least, "maximum": most}
    return found if default is None else {**found, "default": default}


def _parameter(name: str, schema: Mapping[str, Any], about: str, place: str = "query") -> Any:
    needed = {"required": True} if place == "path" else {}
    return {"name": name, "in": place, "description": about, "schema": schema, **needed}


def _object(about: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "description": about, "properties": properties}


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _schema(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


_TOPIC = _parameter("topic", _STRING, "Name of the topic. It must exist.", "path")
_OFFSET = _number(0, 2**63 - 1)
_FROM = (
    "beginning, end, an offset, -N for the last N records, a time in ISO 8601, or @ and "
    "milliseconds since 1970"
)
_BYTES = {"type": "string", "format": "binary"}
_CONTENT = {
    "anyOf": [_STRING, {"type": ["object", "array", "number", "boolean", "null"]}],
    "description": "A string is stored as UTF-8 text, null as no value, other JSON as written.",
}

SCHEMAS: Mapping[str, Any] = {
    "NewRecord": {
        **_object(
            "A record to store.",
            value=_CONTENT,
            key=_CONTENT,
            value_encoding={"const": "base64", "description": "The value is in base64."},
            key_encoding={"const": "base64", "description": "The key is in base64."},
            headers={
                "description": "An object, or a list of [name, value] or [name, value, 'base64'].",
                "anyOf": [{"type": "object"}, _list(_list(_STRING))],
            },
            partition={**_OFFSET, "description": "Default: by the key, or spread."},
            timestamp={
                "description": "Milliseconds since 1970, or ISO 8601. Default: now.",
                "anyOf": [_OFFSET, _STRING],
            },
        ),
        "required": ["value"],
    },
    "NewRecords": _object("Records to store.", records=_list(_schema("NewRecord"))),
    "Place": _object(
        "The place of a stored record.",
        topic=_STRING,
        partition=_OFFSET,
        offset=_OFFSET,
        timestamp=_OFFSET,
    ),
    "Record": _object(
        "A stored record. What is not UTF-8 is in base64, with value_encoding or key_encoding.",
        topic=_STRING,
        partition=_OFFSET,
        offset=_OFFSET,
        timestamp={"type": ["integer", "null"]},
        key={"type": ["string", "null"]},
        value={"type": ["string", "null"]},
        headers=_list(_list({"type": ["string", "null"]})),
    ),
    "Problem": _object(
        "An error (RFC 9457). error is a code for programs.",
        type=_STRING,
        title=_STRING,
        status={"type": "integer"},
        error=_STRING,
        detail=_STRING,
        hint=_STRING,
    ),
}

OPERATIONS: Mapping[tuple[str, str], Any] = {
    ("GET", "/topics"): {
        "summary": "List the topics",
        "parameters": [_parameter("internal", _BOOLEAN, "Whether internal topics are listed.")],
        "answers": {200: ("All topics with their number of partitions.", _object("Topics."))},
    },
    ("GET", "/topics/{topic}"): {
        "summary": "Describe a topic, or follow it",
        "description": "With Accept: text/event-stream, the answer does not end: each record of "
        "all partitions is an event, with the record as its data. The id of an event is the "
        "position behind it; a client that sends it as Last-Event-ID continues there, without a "
        "gap or a double. An event 'reset' says which records were deleted before they were read, "
        "or that the topic was created again. An event 'end' says that it was deleted.",
        "parameters": [
            _TOPIC,
            _parameter("from", _STRING, f"Where to begin to follow: {_FROM}. Default: end."),
            _parameter("last_event_id", _STRING, "As the header, for clients that can't set it."),
            _parameter("Last-Event-ID", _STRING, "The id of the last event.", "header"),
        ],
        "answers": {
            200: (
                "The offsets of each partition, or events.",
                _object("A topic."),
                "text/event-stream",
            ),
            404: ("The topic does not exist.", None),
        },
    },
    ("POST", "/topics/{topic}"): {
        "summary": "Store records",
        "description": "Answered when the records are durable (acks=all). A stream of lines is "
        "answered with a line for each of them, while it is sent. A list is stored record by "
        "record: if some can't be stored, the status is that of the worst failure, and the answer "
        "says which.",
        "parameters": [
            _TOPIC,
            _parameter("key", _STRING, "Key of a value that is sent as it is."),
            _parameter("partition", _OFFSET, "Partition of a value that is sent as it is."),
            _parameter("timestamp", _STRING, "Timestamp of a value that is sent as it is."),
            _parameter("header", _STRING, "NAME:VALUE, of a value as it is. Can be repeated."),
            _parameter(
                "answer",
                {"enum": ["all", "errors"], "default": "all"},
                "For a stream of lines: errors answers failures only, and counts at the end.",
            ),
            _parameter(
                "Idempotency-Key",
                _STRING,
                "A record that is posted again with its key is stored once.",
                "header",
            ),
        ],
        "bodies": {
            "application/json": {"oneOf": [_schema("NewRecord"), _schema("NewRecords")]},
            "application/x-ndjson": _schema("NewRecord"),
            "text/plain": _STRING,
            "application/octet-stream": _BYTES,
        },
        "answers": {
            200: ("All are stored.", _schema("Place"), "application/x-ndjson"),
            400: ("A record is malformed: nothing is stored.", None),
            404: ("The topic does not exist. It is not created.", None),
            413: ("The body or a record is too large.", None),
            422: ("The Idempotency-Key was used for another record.", None),
            503: ("The brokers do not answer, or too much is under way. See Retry-After.", None),
        },
    },
    ("GET", "/topics/{topic}/partitions/{partition}"): {
        "summary": "Read records from a position on",
        "description": "No position is kept here, so a request can be repeated. The next one is in "
        "links.next and in the header Link.",
        "parameters": [
            _TOPIC,
            _parameter("partition", _OFFSET, "Number of the partition.", "path"),
            _parameter("from", _STRING, f"Where to begin: {_FROM}. Default: beginning."),
            _parameter("limit", _number(1, 10_000, 100), "The most records."),
            _parameter("bytes", _number(1, 16_777_216, 1_048_576), "Stop at so many bytes."),
            _parameter("wait", _number(0, 60, 0), "Seconds to wait if there is no record yet."),
        ],
        "answers": {
            200: (
                "The records, and where to continue.",
                _object(
                    "Records.",
                    records=_list(_schema("Record")),
                    next=_OFFSET,
                    end=_OFFSET,
                    links=_object("Links.", next=_STRING),
                ),
            ),
            404: ("The topic or the partition does not exist.", None),
            416: ("The partition does not have the offset: see start and end.", None),
        },
    },
    ("GET", "/groups"): {
        "summary": "List the consumer groups",
        "parameters": [],
        "answers": {200: ("All groups with their state.", _object("Groups."))},
    },
    ("GET", "/groups/{group}"): {
        "summary": "Describe a consumer group with its lag",
        "parameters": [_parameter("group", _STRING, "Name of the group.", "path")],
        "answers": {
            200: ("The state, and the lag on each partition.", _object("A group.")),
            404: ("The group does not exist.", None),
        },
    },
}
"""Method and path of each route, with what it takes and answers."""


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), each in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tidemill gateway",
            "version": __version__,
            "description": "Topics of a Kafka-compatible broker over HTTP.",
        },
        "paths": paths,
        "components": {"schemas": SCHEMAS},
    }


def _operation(given: Mapping[str, Any]) -> dict[str, Any]:
    answers = {str(status): _answer(*answer) for status, answer in given["answers"].items()}
    answers["default"] = _answer("The request is refused.", None)
    found = {
        "summary": given["summary"],
        "parameters": given["parameters"],
        "responses": answers,
    }
    if "description" in given:
        found["description"] = given["description"]
    if "bodies" in given:
        content = {kind: {"schema": schema} for kind, schema in given["bodies"].items()}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _answer(about: str, schema: Mapping[str, Any] | None, *more: str) -> dict[str, Any]:
    if schema is None:
        content = {"application/problem+json": {"schema": {"$ref": _PROBLEM}}}
    else:
        content = {kind: {"schema": dict(schema)} for kind in ("application/json", *more)}
    return {"description": about, "content": content}


async def get_document(request: Request) -> Response:
    """Return the OpenAPI document."""
    return Response(orjson.dumps(document()), media_type="application/json")


# --- the page ------------------------------------------------------------------------------------

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
h2{border-top:1px solid #ccc;padding-top:1rem}code,pre{font:14px/1.4 ui-monospace,monospace}
pre{background:#f4f4f4;padding:.6rem;overflow:auto}td,th{text-align:left;vertical-align:top;
padding:.2rem .8rem .2rem 0}b{color:#067}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}pre{background:#262626}}
"""


async def get_page(request: Request) -> Response:
    """Return the documentation as a page."""
    headers = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return HTMLResponse(_page(str(request.base_url).rstrip("/")), headers=headers)


async def get_root(request: Request) -> Response:
    """Send a browser to the documentation."""
    return RedirectResponse("/docs")


def _page(url: str) -> str:
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>tidemill gateway</title>",
        "<meta name=viewport content='width=device-width'>",
        f"<style>{_STYLE}</style><h1>tidemill gateway {html.escape(__version__)}</h1>",
        "<p>Topics over HTTP. The same for programs: <a href=/openapi.json>/openapi.json</a>.</p>",
        f"<pre>{html.escape(_EXAMPLES.format(url=url))}</pre>",
    ]
    for (method, path), each in OPERATIONS.items():
        parts.append(f"<h2><b>{method}</b> <code>{html.escape(path)}</code></h2>")
        text = f"{each['summary']}. {each.get('description', '')}"
        parts.append(f"<p>{html.escape(text)}</p>")
        rows = [(p["name"], p["in"], p["description"]) for p in each["parameters"]]
        rows += [(kind, "body", "") for kind in each.get("bodies", ())]
        parts += _table(rows)
        parts += _table([(str(code), "", answer[0]) for code, answer in each["answers"].items()])
    parts.append("<h2>Schemas</h2>")
    shown = html.escape(json.dumps(SCHEMAS, indent=2, ensure_ascii=False))
    return "".join([*parts, f"<pre>{shown}</pre></html>"])


_EXAMPLES = """\
curl {url}/topics/TOPIC -H 'content-type: application/json' -d '{{"key":"a","value":{{"n":1}}}}'
curl '{url}/topics/TOPIC/partitions/0?from=beginning&limit=10'
curl -N {url}/topics/TOPIC -H 'accept: text/event-stream'"""


def _table(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    cells = (
        f"<tr><td><code>{html.escape(name)}</code><td>{place}<td>{html.escape(about)}"
        for name, place, about in rows
    )
    return ["<table>", *cells, "</table>"] if rows else []
