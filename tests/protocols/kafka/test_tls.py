"""The Kafka protocol inside TLS."""

from __future__ import annotations

import asyncio
import gc
import shutil
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.protocols.kafka.keys import FETCH, METADATA, PRODUCE
from tests.protocols.kafka.messages import one_batch
from tests.protocols.kafka.trees import ALL_TOPICS, fetch, fetched, produce, written
from tests.protocols.kafka.wire import Client, Serving, eventually, request, serving
from tests.support.certificates import self_signed
from tidemill.protocols.kafka.settings import KafkaListener

pytestmark = [
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program"),
    pytest.mark.usefixtures("loop_factory"),
]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def trust(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate[0]))


@pytest.fixture
def listener(certificate: tuple[Path, Path]) -> KafkaListener:
    cert, key = certificate
    return KafkaListener(port=0, tls_cert=cert, tls_key=key)


async def served(s: Serving, trust: ssl.SSLContext, **options: int) -> Client:
    """Connect inside TLS; return a client that got an answer."""
    client = await s.client(ssl=trust, server_hostname="localhost", **options)
    assert (await client.call(METADATA, 9, ALL_TOPICS))["cluster_id"] == s.cluster_id
    return client


async def test_large_and_small_requests_inside_tls(
    listener: KafkaListener, trust: ssl.SSLContext
) -> None:
    async with serving(listener) as s:
        await s.make_topic("t")
        client = await served(s, trust)
        batches = [one_batch(b"x" * size) for size in (10, 3_000_000, 200_000)]
        for index, batch in enumerate(batches):
            assert written(await client.call(PRODUCE, 9, produce("t", batch))) == [(0, index)]
        stored = fetched(await client.call(FETCH, 11, fetch("t")))
        assert len(stored) == sum(map(len, batches))
        client.close()


async def test_unread_responses_inside_tls_are_counted(
    listener: KafkaListener, trust: ssl.SSLContext
) -> None:
    async with serving(listener) as s:
        await s.make_topic("t")
        client = await served(s, trust, limit=1)
        await client.call(PRODUCE, 9, produce("t", one_batch(b"x" * 20_000_000)))
        client.send(FETCH, 11, fetch("t"))
        memory = s.server.listener.responses
        await eventually(lambda: memory.used > 20_000_000)
        await client.response(FETCH, 11)
        memory.measure()
        assert memory.used == 0
        client.close()


async def test_plain_bytes_to_a_tls_port_close_one_connection(
    listener: KafkaListener, trust: ssl.SSLContext
) -> None:
    async with serving(listener) as s:
        plain = await s.client()
        plain.writer.write(b"\0\0\0\x0a" + bytes(10))
        plain.writer.write_eof()
        await plain.reader.read()
        client = await served(s, trust)
        client.close()


async def test_connections_in_a_handshake_count_and_fail_with_one_line(
    listener: KafkaListener, trust: ssl.SSLContext
) -> None:
    async with serving(listener, connections=3) as s:
        silent = [await s.client() for _ in range(3)]
        await eventually(lambda: s.server.listener.connections == 3)
        with capture_logs() as logs:
            assert await (await s.client()).is_closed()
        assert [line["event"] for line in logs] == ["connection.refused"]
        with capture_logs() as logs:
            silent[0].writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await eventually(lambda: s.server.listener.connections == 2)
        assert [(line["event"], line["why"]) for line in logs] == [
            ("connection.closed", "TLS handshake failed")
        ]
        assert "security.protocol=SSL" in logs[0]["hint"]
        client = await served(s, trust)
        assert s.server.listener.connections == 3
        client.close()


async def test_clients_that_leave_before_the_handshake_are_forgotten_silently(
    listener: KafkaListener, trust: ssl.SSLContext
) -> None:
    """Checks whether the port is open, and scans, must neither log nor leave anything behind."""
    said: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))

    def knock(port: int) -> None:
        for number in range(90):
            with socket.create_connection(("127.0.0.1", port)) as client:
                if number % 3:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if number % 3 == 2:
                    client.sendall(b"\x16\x03\x01\x02\x00\x01")

    async with serving(listener) as s:
        with capture_logs() as logs:
            await asyncio.to_thread(knock, s.address[1])
            client = await served(s, trust)
            await eventually(lambda: s.server.listener.connections == 1)
        client.close()
        gc.collect()
        await asyncio.sleep(0)
    assert said == []
    assert [line for line in logs if line["log_level"] != "debug"] == []


async def test_a_stop_does_not_wait_for_handshakes(listener: KafkaListener) -> None:
    async with serving(listener) as s:
        client = await s.client()
        await eventually(lambda: s.server.listener.connections == 1)
        async with asyncio.timeout(300):
            await s.server.stop(grace_seconds=600)
        assert await client.is_closed()


async def test_many_clients_send_their_first_bytes_with_the_end_of_the_handshake(
    listener: KafkaListener, trust: ssl.SSLContext
) -> None:
    """TLS bytes can arrive before the loop has given the socket to TLS, and requests with them."""
    async with serving(listener) as s:

        async def one() -> None:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = trust.wrap_bio(incoming, outgoing, server_hostname="localhost")
            client = await s.client()

            async def drive(step: Callable[[], Any]) -> Any:
                while True:
                    try:
                        return step()
                    except ssl.SSLWantReadError:
                        client.writer.write(outgoing.read())
                        incoming.write(await client.reader.read(65536))

            await drive(tls.do_handshake)
            tls.write(request(METADATA, 9, ALL_TOPICS))
            client.writer.write(outgoing.read())  # the end of the handshake and a request
            assert len(await drive(lambda: tls.read(65536))) > 4
            client.close()

        async with asyncio.timeout(300):
            await asyncio.gather(*(one() for _ in range(50)))
