"""Connections of one server in this process: how long they stay, and what is answered on them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import self_signed
from tests.support.processes import poll_until
from tidemill.errors import SettingsError
from tidemill.gateway import connections, server
from tidemill.gateway.server import Address, Listener, serve
from tidemill.net import handshake
from tidemill.net.tls import ListenerTls

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
async def served(tls: ListenerTls | None = None) -> AsyncIterator[int]:
    """Serve, and yield the port."""
    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()

    def ready(addresses: Mapping[str, Address]) -> None:
        bound.set_result(addresses["topics"].port)

    tls = tls or ListenerTls("gateway", None, None)
    listener = Listener("topics", echo, "127.0.0.1", 0, connections=10, tls=tls)
    serving = asyncio.create_task(serve([listener], stop, ready))
    try:
        yield await bound
    finally:
        stop.set()
        await serving


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Serve, and connect to it."""
    async with served() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.close()


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
    monkeypatch.setattr(connections, "KEEP_ALIVE_S", 0.3)
    async with connected() as (reader, writer):
        began = time.monotonic()
        writer.write(request_)
        await reader.readuntil(request_.split()[1] + b" 0")
        writer.write(then)
        drip = asyncio.create_task(_drip(writer, then))
        with contextlib.suppress(ConnectionResetError):  # bytes that came after the end reset it
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
    monkeypatch.setattr(connections, "HEAD_BYTES", 500)
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
    monkeypatch.setattr(connections, "HEAD_BYTES", 500)
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


# --- TLS -----------------------------------------------------------------------------------------


def _shown(port: int) -> str:
    """Return the certificate that a new connection gets."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=30)


async def test_a_certificate_that_is_replaced_is_shown_to_new_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "WATCH_SECONDS", 0.02)
    cert, key = self_signed(tmp_path)
    async with served(ListenerTls("gateway", cert, key)) as port:
        assert (await asyncio.to_thread(_shown, port)).strip() == cert.read_text().strip()
        trust = ssl.create_default_context(cafile=cert)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
        self_signed(tmp_path)

        def is_new() -> bool:
            return _shown(port).strip() == cert.read_text().strip()

        await asyncio.to_thread(poll_until, is_new, 30, "the new certificate is shown")
        writer.write(GET)  # the old connection goes on
        async with asyncio.timeout(30):
            assert (await reader.readuntil(b"/ 0")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_connections_without_a_handshake_count_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 0.5)
    async with served(ListenerTls("gateway", *self_signed(tmp_path))) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        async with asyncio.timeout(30):
            for reader, writer in silent:  # some are refused, the others too slow
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
        await asyncio.to_thread(_shown, port)


@pytest.mark.parametrize("broken", ["missing.pem", "key.pem"])
async def test_a_certificate_that_can_not_be_used_stops_the_start(
    tmp_path: Path, broken: str
) -> None:
    _, key = self_signed(tmp_path)
    tls = ListenerTls("gateway", tmp_path / broken, key)
    listener = Listener("topics", echo, "127.0.0.1", 0, connections=10, tls=tls)
    with pytest.raises(SettingsError, match=broken):
        await serve([listener], asyncio.Event(), lambda _: None)
