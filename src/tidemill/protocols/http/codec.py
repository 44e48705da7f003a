"""Requests and answers of HTTP/1.1 as bytes, for probes and scrapes: a method, a path, no body.

What is longer or has a body is refused. Sans-IO. Must not know: sockets, the engine.
Source: RFC 9112.
"""

from __future__ import annotations

import http
import json
import re
from dataclasses import dataclass

MOST_BYTES = 8192
"""The largest request: its line and its headers."""
_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([ \t\x21-\x7e\x80-\xff]*)")


class BadRequestError(Exception):
    """The bytes are not a request that is served. ``status`` is that of the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """A request without a body.

    Attributes:
        path: The path without the query.
        keeps: Whether the client keeps the connection.
        accept: The header Accept in lower case.
    """

    method: str
    path: str
    keeps: bool
    accept: str = ""


def parse(data: bytes) -> tuple[Request | None, int]:
    """Return the first request in some bytes, and its size; None if it is not complete.

    Raises:
        BadRequestError: It is malformed (400), has a body (413), or is too large (431).
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if len(data) >= MOST_BYTES:
            raise BadRequestError(431, "the request is too large")
        return None, 0
    first, *lines = data[:end].split(b"\r\n")
    found = _LINE.fullmatch(first)
    if found is None:
        raise BadRequestError(400, "the request line is malformed")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        pair = _HEADER.fullmatch(line)
        if pair is None:
            raise BadRequestError(400, "a header is malformed")
        name = pair[1].lower()
        if name in headers and name in (b"host", b"content-length"):
            raise BadRequestError(400, "a header is there twice")
        headers[name] = pair[2].strip().lower()
    if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
        raise BadRequestError(413, "a probe has no body")
    is_new = found[3] == b"1"
    if is_new and b"host" not in headers:
        raise BadRequestError(400, "the Host header is missing")
    keeps = is_new and b"close" not in headers.get(b"connection", b"")
    path = found[2].partition(b"?")[0].decode("ascii")
    accept = headers.get(b"accept", b"").decode("latin-1")
    return Request(found[1].decode(), path, keeps, accept), end + 4


def answer(
    status: int,
    content: object,
    date: str,
    *,
    keeps: bool,
    with_body: bool = True,
    headers: str = "",
    content_type: str = "application/json",
) -> bytes:
    """Return an answer with JSON in it, or with the bytes that ``content`` is.

    Args:
        date: The time of the answer, as in ``Thu, 26 Nov 2026 18:11:16 GMT``.
        keeps: Whether the connection stays open.
        with_body: Whether the body is sent: not for HEAD.
        headers: More lines, each with its CR LF.
    """
    body = content if isinstance(content, bytes) else json.dumps(content).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
        f"date: {date}\r\n"
        f"content-type: {content_type}\r\n"
        f"content-length: {len(body)}\r\n"
        "cache-control: no-store\r\n"
        f"{headers}connection: {'keep-alive' if keeps else 'close'}\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
