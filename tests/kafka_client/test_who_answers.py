"""What a server speaks, and what a client has to change to be understood."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.certificates import self_signed
from tidemill.kafka_client.settings import addresses
from tidemill.kafka_client.who_answers import Protocol, explain, who_answers

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs the openssl program"
)
Answer = Callable[[socket.socket], None]


@contextmanager
def server(answer: Answer) -> Iterator[int]:
    """Run a server that calls ``answer`` for each connection. Yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    try:
                        answer(connection)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(60)


def kafka(connection: socket.socket) -> None:
    request = connection.recv(100)
    connection.sendall(b"\0\0\0\x0a" + request[8:12] + b"\0\0\0\0\0\0")


def http(connection: socket.socket) -> None:
    connection.recv(100)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def closes(connection: socket.socket) -> None:
    connection.recv(1)


def tls(cert: Path, key: Path, *, ask_for_certificate: bool = False) -> Answer:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    if ask_for_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cert)

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as wrapped:
            kafka(wrapped)

    return answer


@pytest.mark.parametrize(
    ("answer", "spoken"),
    [(kafka, Protocol.KAFKA), (http, Protocol.OTHER), (closes, Protocol.OTHER)],
)
def test_a_server_without_tls_is_recognized(answer: Answer, spoken: Protocol) -> None:
    with server(answer) as port:
        assert who_answers("127.0.0.1", port) is spoken


@needs_openssl
@pytest.mark.parametrize("ask_for_certificate", [False, True])
@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_server_with_tls_is_recognized(
    tmp_path: Path,
    ask_for_certificate: bool,
    newest: ssl.TLSVersion,
) -> None:
    answer = tls(*self_signed(tmp_path), ask_for_certificate=ask_for_certificate)
    with server(answer) as port:
        assert who_answers("127.0.0.1", port) is Protocol.TLS


def test_nothing_answers_where_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = int(closed.getsockname()[1])
    assert who_answers("127.0.0.1", port) is None
    assert explain(f"127.0.0.1:{port}", {}) is None


@needs_openssl
def test_the_explanation_names_the_property_to_change(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    secure = {"security.protocol": "SSL"}
    with server(tls(cert, key)) as port:
        servers = f"nowhere.invalid:1,127.0.0.1:{port}"
        text, hint = explain(servers, {}, "-X ") or ("", "")
        assert f"the server at 127.0.0.1:{port} speaks TLS" in text
        assert "-X security.protocol=SSL, and -X ssl.ca.location=FILE" in hint
        text, hint = explain(servers, secure, "kafka.") or ("", "")
        assert "its certificate is not valid here: self-signed certificate" in text
        assert "kafka.ssl.ca.location=FILE" in hint
        kerberos = {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}
        text, _ = explain(servers, kerberos) or ("", "")
        assert "its certificate is not valid here" in text
        assert explain(servers, secure | {"ssl.ca.location": str(cert)}) is None
        assert explain(servers, secure | {"enable.ssl.certificate.verification": "false"}) is None
        text, _ = explain(servers, secure | {"ssl.ca.location": "nowhere"}) or ("", "")
        assert "no such file" in text
    with server(kafka) as port:
        text, hint = explain(f"127.0.0.1:{port}", secure, "-X ") or ("", "")
        assert "does not speak TLS" in text
        assert "Leave out -X security.protocol" in hint
        assert explain(f"127.0.0.1:{port}", {}) is None
    with server(http) as port:
        text, _ = explain(f"127.0.0.1:{port}", {}) or ("", "")
        assert "not a Kafka-compatible broker" in text


@pytest.mark.parametrize(
    ("servers", "found"),
    [
        ("a:1", [("a", 1)]),
        ("a, b:2 ,SSL://c:3", [("a", 9092), ("b", 2), ("c", 3)]),
        ("[::1]:4", [("::1", 4)]),
        ("", []),
        ("a:x,a:-1,a:65536,:5,a:٣", []),
    ],
)
def test_addresses_are_read_as_librdkafka_reads_them(
    servers: str, found: list[tuple[str, int]]
) -> None:
    assert list(addresses(servers)) == found


def test_only_what_is_certain_is_told_before_a_request_has_failed() -> None:
    with server(closes) as port:
        address = f"127.0.0.1:{port}"
        assert explain(address, {}) is not None
        assert explain(address, {}, only_certain=True) is None
    with server(kafka) as port:
        found = explain(f"127.0.0.1:{port}", {"security.protocol": "SSL"}, only_certain=True)
        assert found is not None
        assert "does not speak TLS" in found[0]
