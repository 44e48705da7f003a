"""The same protocol inside TLS."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
import uvloop

from tests.kafka.fake_broker import one_batch
from tests.kafka.test_server import fetch, produce
from tests.kafka.wire import serving
from tidemill.settings import KafkaListener

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    command += " -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run(
        [*command.split(), "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True
    )
    return cert, key


def test_large_and_small_requests_inside_tls(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    trust = ssl.create_default_context(cafile=str(cert))

    async def run() -> None:
        listener = KafkaListener(port=0, tls_cert=cert, tls_key=key)
        async with serving(kafka=listener) as s:
            s.broker.make_topic("t")
            client = await s.client(ssl=trust, server_hostname="localhost")
            for size in (10, 3_000_000, 200_000):
                answer = await client.call(0, 9, produce("t", one_batch(b"x" * size)))
                assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
            answer = await client.call(1, 11, fetch("t"))
            assert len(answer["responses"][0]["partitions"][0]["records"]) == 3_200_010 + 3 * 61
            client.close()

    uvloop.run(run())


def test_plain_bytes_to_a_tls_port_harm_nobody(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    trust = ssl.create_default_context(cafile=str(cert))

    async def run() -> None:
        listener = KafkaListener(port=0, tls_cert=cert, tls_key=key)
        async with serving(kafka=listener) as s:
            plain = await s.client()
            plain.writer.write(b"\0\0\0\x0a" + bytes(10))
            plain.writer.write_eof()
            await plain.reader.read()
            client = await s.client(ssl=trust, server_hostname="localhost")
            assert (await client.call(3, 9, {"topics": None}))["cluster_id"] == "fake-cluster"
            client.close()

    uvloop.run(run())
