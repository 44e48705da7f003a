"""Addresses that webhooks must not reach: as written, as resolved, and as connected to."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from tests.support.receiver import Receiver
from tidemill.connect.webhooks.definition import parse
from tidemill.connect.webhooks.guard import (
    RefusedAddressError,
    check_address,
    guarded_sockets,
)
from tidemill.connect.webhooks.sender import Sender

PRIVATE = ["10.1.2.3", "100.64.0.1", "127.0.0.1", "127.9.9.9", "172.16.0.1", "172.31.255.255"]
PRIVATE += ["192.168.1.1", "::1", "fc00::1", "fd12:3456::1", "::ffff:127.0.0.1"]
PRIVATE += ["::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::10.0.0.1"]
NEVER = ["0.0.0.0", "0.1.2.3", "169.254.169.254", "192.0.0.1", "192.0.2.1", "192.88.99.1"]
NEVER += ["198.18.0.1", "198.19.255.255", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.1.1.1"]
NEVER += ["240.0.0.1", "255.255.255.255", "::", "::7f00:1", "::ffff:169.254.169.254", "100::1"]
NEVER += ["64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2001::1", "2001:db8::1", "2002:7f00:1::1"]
NEVER += ["3fff::1", "5f00::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "4000::1"]
PUBLIC = ["1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "192.0.3.1", "2606:4700::1111"]
PUBLIC += ["2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_need_a_setting(address: str) -> None:
    with pytest.raises(RefusedAddressError, match="allow_private"):
        check_address(address, allow_private=False)
    check_address(address, allow_private=True)


@pytest.mark.parametrize("address", NEVER)
@pytest.mark.parametrize("allow", [False, True])
def test_other_special_addresses_are_always_refused(address: str, allow: bool) -> None:
    with pytest.raises(RefusedAddressError, match="never"):
        check_address(address, allow_private=allow)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    check_address(address, allow_private=False)


def sender(url: str, **more: Any) -> Sender:
    return Sender(parse({"name": "a", "topic": "t", "url": url, "signed": False, **more}))


HOSTS = ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1"]
HOSTS += ["[::ffff:127.0.0.1]", "[::1]"]


@pytest.mark.parametrize("host", HOSTS)
async def test_loopback_is_refused_however_it_is_written(host: str) -> None:
    it = sender(f"http://{host}:9/")
    answer = await it.post({}, b"")
    await it.close()
    assert answer.status is None
    # aiohttp itself refuses some of them, in the words of its version.
    said = ("refused to connect to", "not a canonical", "does not appear to be")
    assert any(each in answer.error for each in said)


class Rebinding(AbstractResolver):
    """A DNS server that answers with a public address first, and with loopback after that."""

    def __init__(self) -> None:
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked += 1
        address = "203.0.113.5" if self.asked == 1 else "127.0.0.1"
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
        ]

    async def close(self) -> None: ...


async def test_an_answer_of_the_dns_that_changes_is_seen_at_each_attempt() -> None:
    with Receiver() as receiver:
        connector = aiohttp.TCPConnector(
            resolver=Rebinding(),
            use_dns_cache=False,
            socket_factory=guarded_sockets(allow_private=False),
        )
        async with aiohttp.ClientSession(connector=connector) as session:
            for _ in range(2):
                with pytest.raises(aiohttp.ClientConnectorError, match="refused to connect"):
                    await session.post(f"http://shop.test:{receiver.port}/")
        assert receiver.requests == []


async def test_a_redirect_is_not_followed() -> None:
    with Receiver(lambda request: (302, {"Location": "http://127.0.0.1:1/"})) as receiver:
        it = sender(receiver.url, allow_private=True)
        answer = await it.post({"webhook-id": "1"}, b"")
        await it.close()
        assert (answer.status, answer.error) == (302, "redirects are not followed")
        assert len(receiver.requests) == 1


async def test_network_errors_are_answers_and_not_exceptions() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        found = []
        for url in (f"http://127.0.0.1:{port}/", "http://does-not-exist.invalid/", "http://a..b/"):
            it = sender(url, allow_private=True, timeout_s=10)
            found.append(await it.post({}, b""))
            await it.close()
    assert [each.status for each in found] == [None] * 3
    assert all(each.error for each in found)


async def _serve(reply: bytes, *, end: bool = True) -> tuple[asyncio.Server, int]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        if end:
            writer.close()
        else:
            await reader.read()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


async def test_a_proxy_gets_the_whole_url_and_can_be_private(tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    secret = tmp_path / "proxy"
    secret.write_text(f"http://user:word@127.0.0.1:{port}")
    it = sender("http://shop.test/hook", proxy=f"${{file:{secret}}}")
    answer = await it.post({"webhook-id": "1"}, b"{}")
    await it.close()
    server.close()
    assert answer.status == 202, answer
    assert asked[0].startswith(b"POST http://shop.test/hook HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic" in asked[0]


ENDLESS = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 300_000
BOMB = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00"


@pytest.mark.parametrize(
    ("reply", "end", "status"),
    [
        (ENDLESS, False, 200),  # only the first bytes are read
        (BOMB, True, 200),  # nothing is decompressed
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", True, 200),  # a status counts
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", False, 200),  # also in time
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000, True, None),
        (b"HTTP/1.1 99999 \r\n\r\n", True, None),
        (b"garbage\r\n\r\n", True, None),
        (b"", True, None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", True, None),
        (b"", False, None),  # no answer: the time ends
    ],
)
async def test_a_hostile_receiver_costs_one_attempt(
    reply: bytes, end: bool, status: int | None
) -> None:
    server, port = await _serve(reply, end=end)
    it = sender(f"http://127.0.0.1:{port}/", allow_private=True, timeout_s=0.4)
    answer = await it.post({}, b"{}")
    await it.close()
    server.close()
    assert answer.status == status, answer
    assert len(answer.body) <= 1024
    assert answer.duration_ms < 10_000
