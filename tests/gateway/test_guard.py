"""Requests that are not served, and absurd ones: the gateway stays up, and bounded."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import psutil
import pytest

from tests.support import effort
from tests.support.broker_process import BrokerProcess
from tests.support.gateway_process import GatewayProcess
from tidemill.gateway.errors import HttpError
from tidemill.gateway.guard import Budget, Guard, Rates

PAGE = "http://pages.example"


@pytest.fixture(scope="module")
def strict(
    tmp_path_factory: pytest.TempPathFactory, broker: BrokerProcess
) -> Iterator[GatewayProcess]:
    """A gateway with low limits, which a page of another origin can use."""
    settings = {
        "gateway.origins": f"{PAGE}/, http://other.example",
        "gateway.hosts": "events.example",
        "gateway.body_bytes": "2048",
        "gateway.inflight_bytes": "65536",
        "gateway.connections": "50",
        "gateway.slow_client_seconds": "1",
    }
    folder = tmp_path_factory.mktemp("strict")
    with GatewayProcess(folder, broker.bootstrap, settings=settings) as process:
        yield process
    assert "gateway.failed" not in process.log()


def ask(port: int, data: bytes, timeout: float = 60) -> bytes:
    """Send bytes, of which the last request ends the connection; return all that comes."""
    with socket.create_connection(("127.0.0.1", port), timeout) as client:
        received = b""
        with contextlib.suppress(ConnectionError):
            client.sendall(data)
            while chunk := client.recv(65536):
                received += chunk
        return received


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


class TestWhoAsks:
    """Clients elsewhere, names of others, and web pages."""

    @pytest.mark.parametrize(
        ("host", "expected"),
        [
            ("localhost:8080", 200),
            ("127.0.0.1", 200),
            ("[::1]:8080", 200),
            ("app.localhost", 200),
            ("EVENTS.example:80", 200),
            ("192.0.2.7", 200),
            ("evil.example", 421),
            ("localhost.evil.example", 421),
            ("127.0.0.1.evil.example", 421),
            ("", 421),
        ],
    )
    def test_a_name_that_a_web_page_can_choose_is_refused(
        self, strict: GatewayProcess, host: str, expected: int
    ) -> None:
        answer = httpx.get(f"{strict.url}/groups", headers={"host": host}, trust_env=False)
        assert answer.status_code == expected

    def test_a_request_has_exactly_one_host(self, strict: GatewayProcess) -> None:
        for hosts in (b"", b"Host: localhost\r\nHost: localhost\r\n"):
            answer = ask(
                strict.port, b"GET /groups HTTP/1.1\r\nConnection: close\r\n" + hosts + b"\r\n"
            )
            assert status(answer) == 400

    @pytest.mark.parametrize(
        ("headers", "expected"),
        [
            ({}, 200),
            ({"origin": "SELF"}, 200),
            ({"origin": PAGE}, 200),
            ({"origin": PAGE.upper()}, 200),
            ({"origin": "http://evil.example"}, 403),
            ({"origin": f"{PAGE}.evil.example"}, 403),
            ({"origin": "null"}, 403),
            ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
            ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, 403),
            ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
            ({"sec-fetch-site": "same-origin"}, 200),
            ({"sec-fetch-site": "none"}, 200),
        ],
    )
    def test_a_web_page_needs_a_setting(
        self, strict: GatewayProcess, headers: dict[str, str], expected: int
    ) -> None:
        headers = {name: value.replace("SELF", strict.url) for name, value in headers.items()}
        answer = httpx.get(f"{strict.url}/groups", headers=headers, trust_env=False)
        assert answer.status_code == expected
        allowed = answer.headers.get("access-control-allow-origin", "")
        assert allowed.lower() == (PAGE if headers.get("origin", "").lower() == PAGE else "")
        assert answer.headers["x-content-type-options"] == "nosniff"

    def test_a_browser_asks_before_it_posts(self, strict: GatewayProcess) -> None:
        asked = {"access-control-request-method": "POST", "origin": PAGE}
        answer = httpx.options(f"{strict.url}/topics/x", headers=asked, trust_env=False)
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "Idempotency-Key" in answer.headers["access-control-allow-headers"]
        asked["origin"] = "http://evil.example"
        answer = httpx.options(f"{strict.url}/topics/x", headers=asked, trust_env=False)
        assert answer.status_code == 403

    @pytest.mark.parametrize(
        ("address", "is_served"),
        [
            ("127.0.0.1", True),
            ("127.9.9.9", True),
            ("::1", True),
            ("::ffff:127.0.0.1", True),
            ("::ffff:192.0.2.1", False),
            ("192.0.2.1", False),
            ("10.0.0.1", False),
            ("fe80::1%eth0", False),
            ("", False),
        ],
    )
    async def test_only_this_machine_is_served_by_default(
        self, address: str, is_served: bool
    ) -> None:
        served: list[bool] = []
        sent: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            served.append(True)

        async def send(message: Any) -> None:
            sent.append(message)

        scope: Any = {
            "type": "http",
            "method": "GET",
            "path": "/",
            "scheme": "http",
            "headers": [(b"host", b"localhost")],
            "client": (address, 1),
        }
        own: dict[str, Any] = {"names": frozenset(), "origins": frozenset(), "rates": Rates(0)}
        receive: Any = None
        await Guard(app, allow_remote=False, **own)(scope, receive, send)
        assert bool(served) == is_served
        assert is_served or sent[0]["status"] == 403
        served.clear()
        await Guard(app, allow_remote=True, **own)(scope, receive, send)
        assert served


def test_a_method_that_is_not_possible_is_answered_with_those_that_are(
    strict: GatewayProcess,
) -> None:
    answer = httpx.put(f"{strict.url}/topics/x", trust_env=False)
    assert (answer.status_code, answer.json()["error"]) == (405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


class TestHowMuch:
    """Rates, sizes, memory and connections."""

    def test_a_client_has_a_rate_and_others_have_theirs(self) -> None:
        now = 0.0
        rates = Rates(2, lambda: now)
        assert [rates.wait_s("a") for _ in range(20)] == [0.0] * 20
        assert rates.wait_s("a") == 0.5
        assert rates.wait_s("b") == 0.0
        now = 0.5
        assert (rates.wait_s("a"), rates.wait_s("a")) == (0.0, 0.5)
        for number in range(20_000):
            rates.wait_s(str(number))
        assert len(rates._buckets) == 10_000

    def test_memory_is_given_back_also_after_an_error(self) -> None:
        budget = Budget(10)
        with contextlib.suppress(ValueError), budget.taken() as take:
            take(4)
            take(6)
            with pytest.raises(HttpError) as refused:
                take(1)
            assert (refused.value.status, refused.value.retry_after_s) == (503, 1.0)
            raise ValueError
        assert budget.used == 0

    def test_a_rate_is_answered_with_when_to_try_again(
        self, broker: BrokerProcess, tmp_path: Any
    ) -> None:
        settings = {"gateway.requests_per_second": "1"}
        with (
            GatewayProcess(tmp_path, broker.bootstrap, settings=settings) as process,
            httpx.Client(base_url=process.url, trust_env=False) as client,
        ):
            answers = [client.get("/docs") for _ in range(12)]
        assert [each.status_code for each in answers[:10]] == [200] * 10
        assert (answers[-1].status_code, answers[-1].headers["retry-after"]) == (429, "1")

    @pytest.mark.parametrize("length", [b"Content-Length: 3000", b"Transfer-Encoding: chunked"])
    def test_a_body_that_is_too_large_is_refused_before_it_is_read(
        self, strict: GatewayProcess, topic: str, length: bytes
    ) -> None:
        head = b"POST /topics/%b HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
        body = b"x" * 3000 if b"3000" in length else b"BB8\r\n" + b"x" * 3000 + b"\r\n0\r\n\r\n"
        answer = ask(strict.port, head % topic.encode() + length + b"\r\n\r\n" + body)
        assert status(answer) == 413
        assert b"body_too_large" in answer

    def test_a_length_that_lies_is_refused(self, strict: GatewayProcess, topic: str) -> None:
        for length in (b"99999999999999999999999", b"-1", b"1e3", b"1, 1", b"0x10"):
            head = b"POST /topics/%b HTTP/1.0\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
            head += b"Content-Length: %b\r\n\r\n"
            assert status(ask(strict.port, head % (topic.encode(), length))) in (400, 413)

    def test_bodies_together_have_a_limit(self, strict: GatewayProcess, topic: str) -> None:
        head = b"POST /topics/%b HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
        part = head % topic.encode() + b"Content-Length: 2048\r\n\r\n" + b"x" * 2000
        clients: list[socket.socket] = []
        with contextlib.ExitStack() as stack:
            for _ in range(45):
                client = socket.create_connection(("127.0.0.1", strict.port), 60)
                clients.append(stack.enter_context(client))
                client.sendall(part)
            statuses = [status(client.recv(65536)) for client in clients]
        assert 503 in statuses
        assert set(statuses) <= {503, 408}
        answer = httpx.post(
            f"{strict.url}/topics/{topic}", json={"value": 1}, timeout=60, trust_env=False
        )
        assert answer.status_code == 200

    @pytest.mark.parametrize("headers", [{}, {"idempotency-key": "a"}], ids=["plain", "with a key"])
    def test_a_stream_of_lines_waits_for_memory(
        self, strict: GatewayProcess, topic: str, headers: dict[str, str]
    ) -> None:
        long = "x" * 1000
        lines = [orjson.dumps({"value": long}), orjson.dumps({"value": 1, "headers": {"a": long}})]
        answer = httpx.post(
            f"{strict.url}/topics/{topic}?answer=errors",
            content=b"\n".join(lines * 500),
            headers={"content-type": "application/x-ndjson", **headers},
            timeout=60,
            trust_env=False,
        )
        assert answer.json() == {"stored": 1000, "failed": 0}

    def test_connections_have_a_limit(self, strict: GatewayProcess) -> None:
        with contextlib.ExitStack() as stack:
            clients = [
                stack.enter_context(socket.create_connection(("127.0.0.1", strict.port), 60))
                for _ in range(60)
            ]
            assert status(clients[-1].recv(1000)) == 503
        deadline = time.monotonic() + 60
        while httpx.get(f"{strict.url}/docs", trust_env=False).status_code == 503:
            assert time.monotonic() < deadline


LAST = b"GET /99 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class TestSlowAndAbsurd:
    """Bytes that no client should send."""

    def test_a_slow_body_is_given_up(self, strict: GatewayProcess, topic: str) -> None:
        head = b"POST /topics/%b HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
        with socket.create_connection(("127.0.0.1", strict.port), 60) as client:
            client.sendall(head % topic.encode() + b"Content-Length: 100\r\n\r\nx")
            answer = b""
            while chunk := client.recv(65536):
                answer += chunk
        assert status(answer) == 408

    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            (b"GET /docs HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 100_000, 431),
            (b"GET /" + b"x" * 100_000 + b" HTTP/1.0\r\nHost: localhost\r\n\r\n", 431),
            (b"GET /docs HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 200 + b"\r\n", 400),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20, 400),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
            (b"GET /docs HTTP/1.1\r\nHost: localhost\r\nA\x00: b\r\n\r\n", 400),
            (
                b"POST /topics/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
                b"Content-Length: 5\r\n\r\n0\r\n\r\n",
                400,
            ),
            (
                b"POST /topics/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"FFFFFFFFFFFFFFFFF\r\n",
                404,
            ),
        ],
    )
    def test_a_request_that_is_absurd_gets_an_error(
        self, strict: GatewayProcess, data: bytes, expected: int
    ) -> None:
        assert status(ask(strict.port, data)) in (expected, 400)

    def test_pipelined_requests_are_answered_in_order_up_to_a_limit(
        self, strict: GatewayProcess
    ) -> None:
        one = b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n"
        answer = ask(strict.port, b"".join(one % number for number in range(20)) + LAST)
        found = [int(part.split(b'"')[0]) for part in answer.split(b"there is no GET /")[1:]]
        assert found == [*range(20), 99]
        answer = ask(strict.port, b"".join(one % number for number in range(5000)))
        assert answer.count(b"HTTP/1.1 404") < 200

    def test_random_bytes_leave_it_running_and_small(
        self, strict: GatewayProcess, topic: str
    ) -> None:
        chance = random.Random(11)
        process = psutil.Process(strict.process.pid)
        before = process.memory_info().rss
        body = b'{"records":[{"value":1,"key":"a"}]}'
        good = (
            b"POST /topics/%b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Idempotency-Key: a\r\nContent-Length: %d\r\n\r\n%b"
        ) % (topic.encode(), len(body), body)
        for _ in range(5000 if effort.IS_NIGHTLY else 300):
            data = bytearray(good * chance.choice((1, 1, 3)))
            for _ in range(chance.randrange(1, 8)):
                at = chance.randrange(len(data))
                kind = chance.randrange(4)
                if kind == 0:
                    data[at] = chance.randrange(256)
                elif kind == 1:
                    del data[at : at + chance.randrange(40)]
                elif kind == 2:
                    data[at:at] = chance.choice((b"\r\n", b"\r\n\r\n", b"\0", b":", b"\xff" * 9))
                else:
                    data[at:at] = data[: chance.randrange(300)]
            with (
                contextlib.suppress(ConnectionError, TimeoutError),
                socket.create_connection(("127.0.0.1", strict.port), 60) as client,
            ):
                client.sendall(data)
                if chance.random() < 0.5:
                    client.settimeout(0.01)
                    client.recv(65536)
        answer = httpx.get(f"{strict.url}/docs", timeout=60, trust_env=False)
        assert answer.status_code == 200
        assert process.memory_info().rss - before < 40_000_000
