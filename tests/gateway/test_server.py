"""Connections of one server in this process: how long they stay, and what is answered on them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tidemill.gateway import server
from tidemill.gateway.server import Listener, serve

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer the size of a body, and for /early before the body is read."""
    size, more = 0, scope["path"] != "/early"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message["body"]), message["more_body"]
    if scope["path"] == "/slow":
        await asyncio.sleep(0.2)
    body = b"%b %d" % (scope["path"].encode(), size)
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Serve, and connect to it."""
    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()

    def ready(addresses: Mapping[str, tuple[str, int]]) -> None:
        bound.set_result(addresses["topics"])

    listener = Listener("topics", echo, "127.0.0.1", 0, connections=10)
    serving = asyncio.create_task(serve([listener], stop, ready))
    reader, writer = await asyncio.open_connection(*await bound)
    try:
        yield reader, writer
    finally:
        writer.close()
        stop.set()
        await serving


async def answers(reader: asyncio.StreamReader) -> bytes:
    """Return all that comes until the connection is closed."""
    async with asyncio.timeout(30):
        return await reader.read()


@pytest.mark.parametrize(
    ("request_", "then"),
    [
        (GET, b"\r\n"),
        (b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n\r\n", b"x"),
    ],
)
async def test_bytes_that_are_not_a_request_keep_no_connection_open(
    monkeypatch: pytest.MonkeyPatch, request_: bytes, then: bytes
) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.3)
    async with connected() as (reader, writer):
        began = time.monotonic()
        writer.write(request_)
        await reader.readuntil(request_.split()[1] + b" 0")
        writer.write(then)
        drip = asyncio.create_task(_drip(writer, then))
        assert await answers(reader) == b""
        drip.cancel()
        assert time.monotonic() - began < 10


async def _drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    while True:
        await asyncio.sleep(0.1)
        writer.write(data)


async def test_a_request_after_a_pause_is_answered() -> None:
    async with connected() as (reader, writer):
        for _ in range(3):
            writer.write(b"\r\n" + GET)
            assert (await reader.readuntil(b"/ 0")).startswith(b"HTTP/1.1 200")


async def test_a_body_in_front_of_a_head_does_not_count_for_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "HEAD_BYTES", 500)
    post = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000
    async with connected() as (reader, writer):
        writer.write(post + GET[:20])
        await reader.readuntil(b"/ 5000")
        writer.write(GET[20:])
        async with asyncio.timeout(30):
            assert b" 200 OK" in await reader.readuntil(b"/ 0")


@pytest.mark.parametrize("ends", [(2000,), (200, 400, 600)])
async def test_a_head_has_a_limit_however_it_arrives(
    monkeypatch: pytest.MonkeyPatch, ends: Sequence[int]
) -> None:
    monkeypatch.setattr(server, "HEAD_BYTES", 500)
    head = GET[:-2] + b"a: " + b"x" * 1000 + b"\r\n\r\n"
    async with connected() as (reader, writer):
        for start, end in itertools.pairwise((0, *ends)):
            writer.write(head[start:end])
            await asyncio.sleep(0.02)  # so that it arrives in pieces
        assert (await answers(reader)).split()[1] == b"431"


async def test_an_error_is_not_taken_for_the_answer_to_an_earlier_request() -> None:
    async with connected() as (reader, writer):
        writer.write(GET.replace(b"/", b"/slow", 1) + b"\0\0\0\r\n\r\n")
        assert await answers(reader) == b""
    async with connected() as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        assert (await answers(reader)).startswith(b"HTTP/1.1 400")


async def test_an_upgrade_that_is_not_supported_is_an_ordinary_request() -> None:
    asked = GET[:-2] + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
    async with connected() as (reader, writer):
        for _ in range(2):
            writer.write(asked)
            async with asyncio.timeout(30):
                assert (await reader.readuntil(b"/ 0")).startswith(b"HTTP/1.1 200")
