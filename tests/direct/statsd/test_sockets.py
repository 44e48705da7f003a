"""The sockets, with the clients that people use."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tidemill.direct.statsd import Aggregator, Dialect, Options, StatsdError, parse_notice
from tidemill.direct.statsd.sockets import Listener, datagram_socket


@contextlib.asynccontextmanager
async def listening(
    aggregator: Aggregator, *addresses: str, **options: Any
) -> AsyncIterator[Listener]:
    listener = Listener(aggregator, addresses, **options)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close()


async def until(is_true: Callable[[], bool]) -> None:
    """Wait until something is true, for ten seconds at most."""
    end = time.monotonic() + 10
    while not is_true():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def place(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    return str(parts.hostname), int(parts.port or 0)


def values(aggregator: Aggregator) -> dict[str, Any]:
    documents = aggregator.flush(0, 10_000).documents()
    return {
        series.key: document.get("value", document.get("count")) for series, document in documents
    }


def test_the_client_statsd_is_understood_over_udp_and_tcp() -> None:
    statsd = pytest.importorskip("statsd")

    async def run() -> None:
        aggregator = Aggregator(Options())
        async with listening(aggregator, "udp://127.0.0.1:0", "tcp://127.0.0.1:0") as listener:
            udp, tcp = listener.addresses

            def send() -> None:
                host, port = place(udp)
                client = statsd.StatsClient(host, port, prefix="app")
                client.incr("hits", 3)
                client.decr("hits")
                client.gauge("depth", 10)
                client.gauge("depth", -4)  # sent as g:0|g and g:-4|g in one packet
                client.gauge("depth", 6, delta=True)
                client.set("users", "ann")
                client.timing("took", 12.5)
                host, port = place(tcp)
                client = statsd.TCPStatsClient(host, port, prefix="app")
                for _ in range(100):
                    client.incr("lines")
                client.close()

            await asyncio.to_thread(send)
            await until(lambda: aggregator.counts().lines == 108)
            assert values(aggregator) == {
                "app.hits": 2,
                "app.depth": 2,
                "app.users": 1,
                "app.took": 1,
                "app.lines": 100,
            }
            assert aggregator.counts().malformed_lines == 0

    asyncio.run(run())


def test_the_client_datadog_is_understood_over_udp_and_unix_sockets(tmp_path: Path) -> None:
    datadog = pytest.importorskip("datadog.dogstatsd.base")

    async def run() -> None:
        aggregator = Aggregator(Options(dialect=Dialect.dogstatsd))
        path = tmp_path / "dsd.sock"
        async with listening(aggregator, "udp://127.0.0.1:0", f"unixgram://{path}") as listener:
            host, port = place(listener.addresses[0])

            def send() -> None:
                for options in ({"host": host, "port": port}, {"socket_path": str(path)}):
                    client = datadog.DogStatsd(**options, disable_telemetry=True)
                    with client:
                        client.increment("hits", 2, tags=["env:prod", "b"])
                        client.gauge("depth", -4)
                        client.histogram("size", 10, sample_rate=1)
                        client.distribution("spread", 10)
                        client.timing("took", 10)
                        client.set("users", "ann:x")
                        client.event("ti|tle\nx", "té|xt\nline", tags=["a"])
                        client.service_check("db", client.CRITICAL, message="m: a|b")
                        client.gauge_with_timestamp("late", 1, 1656581400)

            await asyncio.to_thread(send)
            await until(lambda: aggregator.counts().lines == 18)
            _, notices = aggregator.take_lines()
            assert [parse_notice(line) for line in notices[:2]] == [
                {"type": "event", "title": "ti|tle\nx", "text": "té|xt\nline", "tags": ["a"]},
                {"type": "service_check", "name": "db", "status": "critical", "message": "m: a|b"},
            ]
            assert values(aggregator) == {
                "hits|#b,env:prod": 4,
                "depth": -4,
                "size": 2,
                "spread": 2,
                "took": 2,
                "users": 1,
                "late": 1,
            }
            assert aggregator.counts().malformed_lines == 0
        assert not path.exists()

    asyncio.run(run())


def test_packets_in_a_unix_stream_are_behind_their_lengths(tmp_path: Path) -> None:
    async def run() -> None:
        aggregator = Aggregator(Options(dialect=Dialect.dogstatsd))
        path = tmp_path / "dsd.sock"
        async with listening(aggregator, f"unixstream://{path}") as listener:
            _, writer = await asyncio.open_unix_connection(path)
            for packet in (b"a:1|c\nb:2|c", b"", b"a:3|c"):
                for byte in struct.pack("<I", len(packet)) + packet:  # in the smallest pieces
                    writer.write(bytes([byte]))
                    await writer.drain()
            await until(lambda: aggregator.counts().lines == 3)
            assert values(aggregator) == {"a": 4, "b": 2}

            reader, other = await asyncio.open_unix_connection(path)
            other.write(struct.pack("<I", 0xFFFFFFFF) + b"x" * 100)
            assert await asyncio.wait_for(reader.read(), 10) == b""  # closed
            assert listener.traffic.broken == 1
            writer.close()
            other.close()

    asyncio.run(run())


def test_a_line_without_end_is_counted_and_what_follows_is_read() -> None:
    async def run() -> None:
        aggregator = Aggregator(Options())
        async with listening(aggregator, "tcp://127.0.0.1:0") as listener:
            _, writer = await asyncio.open_connection(*place(listener.addresses[0]))
            writer.write(b"x" * 1_000_000 + b"\na:1|c\nb:1|")
            await writer.drain()
            await until(lambda: aggregator.counts().lines == 2)
            writer.write(b"c")  # the last line needs no end
            writer.close()
            await until(lambda: aggregator.counts().lines == 3)
            assert values(aggregator) == {"a": 1, "b": 1}
            assert aggregator.counts().malformed["packet too long"].count == 1

    asyncio.run(run())


def test_connections_above_the_limit_are_closed_and_the_others_go_on() -> None:
    async def run() -> None:
        aggregator = Aggregator(Options())
        async with listening(aggregator, "tcp://127.0.0.1:0", connections=3) as listener:
            at = place(listener.addresses[0])
            links = [await asyncio.open_connection(*at) for _ in range(3)]
            await until(lambda: listener.traffic.connections == 3)
            reader, writer = await asyncio.open_connection(*at)
            assert await asyncio.wait_for(reader.read(), 10) == b""
            assert listener.traffic.refused == 1
            links[0][1].write(b"a:1|c\n")
            await until(lambda: aggregator.counts().lines == 1)
            for _, each in [*links, (reader, writer)]:
                each.close()
            await until(lambda: listener.traffic.connections == 0)

    asyncio.run(run())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how many packets it drops")
def test_packets_that_the_kernel_drops_are_counted() -> None:
    aggregator = Aggregator(Options())
    with (
        datagram_socket("udp", "127.0.0.1", 0) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sender.connect(receiver.getsockname())
        for _ in range(1000):  # nobody receives
            sender.send(b"a:1|c")
        packets, drops = aggregator.table.receive(receiver.fileno(), 50)
        assert 0 < packets < 1000
        assert not drops  # they came after the packets that are here
        sender.send(b"a:1|c")
        assert aggregator.table.receive(receiver.fileno(), 50) == (1, 1000 - packets)
    assert aggregator.counts().lines == packets + 1


@pytest.mark.parametrize(
    "address",
    [
        "udp://127.0.0.1",
        "udp://:8125",
        "udp://127.0.0.1:99999",
        "http://127.0.0.1:80",
        "unixgram://",
        "unixgram:///" + "x" * 200,
        "8125",
    ],
)
def test_an_address_that_is_malformed_is_refused(address: str) -> None:
    with pytest.raises(StatsdError):
        Listener(Aggregator(Options()), [address])


def test_an_address_in_use_is_an_error_and_nothing_stays_open(tmp_path: Path) -> None:
    async def run() -> None:
        aggregator = Aggregator(Options())
        path = tmp_path / "a.sock"
        async with listening(aggregator, "udp://127.0.0.1:0", f"unixgram://{path}") as listener:
            for address in listener.addresses:
                other = Listener(aggregator, ["tcp://127.0.0.1:0", address])
                with pytest.raises(StatsdError, match="can't listen at"):
                    await other.start()
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection(*place(other.addresses[0]))
        assert not path.exists()

    asyncio.run(run())


def test_a_socket_that_nobody_listens_at_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    async def run() -> None:
        aggregator = Aggregator(Options())
        for scheme in ("unixgram", "unixstream"):
            path = tmp_path / f"{scheme}.sock"
            kind = socket.SOCK_DGRAM if scheme == "unixgram" else socket.SOCK_STREAM
            with socket.socket(socket.AF_UNIX, kind) as left:
                left.bind(str(path))
            async with listening(aggregator, f"{scheme}://{path}"):
                pass
            path.write_text("precious")
            with pytest.raises(StatsdError):
                async with listening(aggregator, f"{scheme}://{path}"):
                    pass
            assert path.read_text() == "precious"

    asyncio.run(run())
