"""Requests of probes as bytes: what is answered, what waits for more, what is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.protocols.http.codec import MOST_BYTES, BadRequestError, Request, answer, parse

GET = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "request_"),
    [
        (GET, Request("GET", "/health/live", True)),
        (b"GET /a?b=c HTTP/1.0\r\n\r\n", Request("GET", "/a", False)),
        (b"HEAD / HTTP/1.1\r\nhost:\r\nConnection: Close\r\n\r\n", Request("HEAD", "/", False)),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", Request("POST", "/", True)),
    ],
)
def test_a_request_is_parsed_up_to_its_end(data: bytes, request_: Request) -> None:
    assert parse(data + b"rest") == (request_, len(data))


@pytest.mark.parametrize("size", range(len(GET)))
def test_a_part_of_a_request_waits_for_the_rest(size: int) -> None:
    assert parse(GET[:size]) == (None, 0)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: \x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (b"G" * MOST_BYTES, 431),
    ],
)
def test_what_is_not_a_probe_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(BadRequestError) as refused:
        parse(data)
    assert refused.value.status == status


PARTS = st.lists(st.sampled_from([GET, b"\r\n", b":", b"x"])).map(b"".join)


@given(st.binary(max_size=300) | PARTS)
def test_any_bytes_are_a_request_or_wait_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(BadRequestError):
        request, size = parse(data)
        assert (request is None) == (size == 0)
        assert size <= len(data)


def test_an_answer_has_its_length_and_says_whether_the_connection_stays() -> None:
    text = answer(200, {"status": "ready"}, "today", keeps=True).decode()
    head, _, body = text.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK\r\n")
    assert f"content-length: {len(body)}" in head
    assert "connection: keep-alive" in head
    assert "date: today\r\n" in head
    assert answer(503, {}, "today", keeps=False, with_body=False).endswith(
        b"connection: close\r\n\r\n"
    )
