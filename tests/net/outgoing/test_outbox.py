"""Responses with ranges of files, on the event loops of asyncio and of uvloop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.net.outgoing.files import FileRange, content
from tests.protocols.kafka.wire import eventually
from tidemill import system
from tidemill.net.outgoing.outbox import Outbox
from tidemill.net.outgoing.sending import FILE_PIECE_BYTES
from tidemill.parts import Part

pytestmark = [
    pytest.mark.disk,
    pytest.mark.skipif(not system.can_send_files(), reason="sendfile or cachestat is missing"),
    pytest.mark.usefixtures("loop_factory"),
]


class Sender(asyncio.Protocol):
    """The server's half of one connection."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.outbox: Outbox | None = None
        self.drained = 0
        self.errors: list[OSError] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.outbox = Outbox(transport, self._drain, self.errors.append)

    def _drain(self) -> None:
        self.drained += 1


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Sender, Outbox, socket.socket]]:
    """Connect a client; yield the server's half, its outbox and the client's socket."""
    sender = Sender()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: sender, "127.0.0.1", 0)
    with closing(server), socket.create_connection(server.sockets[0].getsockname()) as client:
        client.setblocking(False)
        await eventually(lambda: sender.outbox)
        assert sender.outbox is not None
        with closing(sender.outbox), closing(sender.transport):
            yield sender, sender.outbox, client


async def received(client: socket.socket, size: int) -> bytes:
    got = bytearray()
    async with asyncio.timeout(300):
        while len(got) < size:
            data = await asyncio.get_running_loop().sock_recv(client, 1 << 20)
            assert data, f"closed after {len(got)} of {size} bytes"
            got += data
    return bytes(got)


async def test_parts_are_sent_in_order_behind_what_the_transport_has(tmp_path: Path) -> None:
    size = 6 << 20  # more than the socket takes without a reader
    data = content(tmp_path / "file", size)
    async with connected() as (sender, outbox, client):
        first = bytes(8 << 20)
        sender.transport.write(first)
        parts: list[Part] = [b"head", FileRange(tmp_path / "file", 0, size), b"middle"]
        outbox.add(parts)
        outbox.add([FileRange(tmp_path / "file", 4096, 70_000), b"", bytearray(b"end")])
        expected = first + b"head" + data + b"middle" + data[4096:74_096] + b"end"
        assert await received(client, len(expected)) == expected
        await eventually(lambda: sender.drained > 0)
        assert (outbox.unsent, outbox.unsent_memory, sender.errors) == (0, 0, [])
        outbox.add([b"later"])
        assert await received(client, 5) == b"later"


async def test_bytes_that_are_not_cached_are_read_by_a_thread(tmp_path: Path) -> None:
    size = 4 * FILE_PIECE_BYTES
    data = content(tmp_path / "file", size)
    part = FileRange(tmp_path / "file", 0, size)
    os.fsync(part.fd)
    os.posix_fadvise(part.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if system.is_cached(part.fd, 0, size):
        pytest.skip("the file system keeps all pages")
    async with connected() as (_, outbox, client):
        first = bytes(8 << 20)  # so that the client must read before the range is sent
        with patch.object(system, "fill_cache", side_effect=system.fill_cache) as read:
            outbox.add([first, part])
            assert await received(client, size + len(first)) == first + data
        assert read.call_count > 0


async def test_a_file_that_has_become_shorter_is_an_error(tmp_path: Path) -> None:
    content(tmp_path / "file", 1 << 20)
    part = FileRange(tmp_path / "file", 0, 1 << 20)
    os.ftruncate(part.fd, 4096)
    async with connected() as (sender, outbox, _):
        outbox.add([part])
        await eventually(lambda: bool(sender.errors))
        assert "shorter" in str(sender.errors[0])


async def test_files_are_released_when_the_client_is_gone(tmp_path: Path) -> None:
    content(tmp_path / "file", 16 << 20)
    async with connected() as (sender, outbox, client):
        part = FileRange(tmp_path / "file", 0, 16 << 20)
        fd = part.fd
        outbox.add([part])
        del part
        assert outbox.unsent > 0
        assert os.fstat(fd).st_size == 16 << 20
        client.close()
        await eventually(lambda: bool(sender.errors))
        outbox.close()
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)
