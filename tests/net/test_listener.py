"""Which addresses a listener binds."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from typing import cast

import pytest
from structlog.testing import capture_logs

from tidemill.net.budget import Budget
from tidemill.net.link import Link, Session
from tidemill.net.listener import KEEPALIVE, Listener
from tidemill.settings import Limits, Settings
from tidemill.settings.section import ListenerSection


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="needs an IPv6 loopback address")


class Section(ListenerSection):
    """Settings of a test's listener."""

    key = "test"


def listener(host: str) -> Listener:
    def refuse(link: Link) -> Session:
        raise ConnectionError

    return Listener(Settings(host=host), Section(port=0), refuse)


def accepts(host: str, port: int) -> bool:
    try:
        with closing(socket.create_connection((host, port), 5)):
            return True
    except ConnectionRefusedError:
        return False


@needs_ipv6
@pytest.mark.parametrize(
    ("host", "bound", "unbound"),
    [
        ("127.0.0.1", ("127.0.0.1", "::1"), ()),
        ("localhost", ("127.0.0.1", "::1"), ()),
        ("127.0.0.2", ("127.0.0.2",), ("127.0.0.1",)),
        ("::1", ("::1",), ("127.0.0.1",)),
    ],
)
async def test_loopback_is_bound_in_both_ip_versions_and_another_address_alone(
    host: str, bound: tuple[str, ...], unbound: tuple[str, ...]
) -> None:
    listening = listener(host)
    _, port = await listening.start()
    for address in (*bound, *unbound):
        assert await asyncio.to_thread(accepts, address, port) is (address in bound), address
    await listening.stop(1)
    for address in bound:
        assert not await asyncio.to_thread(accepts, address, port), address


@needs_ipv6
async def test_another_program_at_the_second_address_is_named_in_a_warning() -> None:
    with socket.socket(socket.AF_INET6) as other, capture_logs() as logs:
        other.bind(("::1", 0))
        other.listen()
        port = other.getsockname()[1]
        listening = Listener(Settings(), Section(port=port), lambda _: cast("Session", None))
        await listening.start()
        assert await asyncio.to_thread(accepts, "127.0.0.1", port)
        await listening.stop(1)
    (warning,) = [each for each in logs if each["event"] == "listener.address_in_use"]
    assert (warning["host"], warning["port"]) == ("::1", port)


class FinishedEarly:
    """A session that says that nothing follows, and then writes once more."""

    is_busy = is_partial = has_written = False

    def __init__(self, link: Link) -> None:
        self.link = link

    def get_buffer(self) -> memoryview:
        return memoryview(bytearray(100))

    def received(self, count: int) -> None:
        self.link.write([b"last"])
        self.link.finish()
        self.link.write([b"too late"])
        self.link.send()
        self.has_written = True

    def writable(self) -> None: ...

    def stop(self) -> None:
        self.link.close()

    def closed(self) -> None: ...


async def test_what_is_written_after_the_last_word_is_discarded() -> None:
    sessions: list[FinishedEarly] = []

    def session(link: Link) -> Session:
        sessions.append(FinishedEarly(link))
        return sessions[-1]

    listening = Listener(Settings(), Section(port=0), session)
    host, port = await listening.start()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"hello")
    assert await reader.read() == b"last"
    writer.close()
    await listening.stop(1)

    assert [each.has_written for each in sessions] == [True]


async def test_the_kernel_looks_whether_a_silent_client_is_still_there() -> None:
    links: list[Link] = []

    def session(link: Link) -> Session:
        links.append(link)
        return FinishedEarly(link)

    listening = Listener(Settings(), Section(port=0), session)
    reader, writer = await asyncio.open_connection(*await listening.start())
    writer.write(b"hello")
    await reader.read()
    assert links[0]._under is not None
    accepted = links[0]._under.get_extra_info("socket")
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEPALIVE["TCP_KEEPIDLE"]
    writer.close()
    await listening.stop(1)


class FakeLink:
    peer = "127.0.0.1:1"


def test_listeners_with_one_budget_share_the_limit_of_connections() -> None:
    settings, budget = Settings(limits=Limits(connections=2)), Budget(1 << 20)
    kafka, amqp = (
        Listener(settings, Section(port=0), lambda _: cast(Session, None), budget=budget)
        for _ in range(2)
    )
    first, second, third = (cast(Link, FakeLink()) for _ in range(3))
    assert kafka.admit(first)
    assert amqp.admit(second)
    with capture_logs() as logs:
        assert not amqp.admit(third)
    assert "limits.connections" in logs[0]["hint"]
    amqp.dismiss(third)
    assert not amqp.admit(third)
    kafka.dismiss(first)
    assert amqp.admit(third)
