"""Events and service checks of DogStatsD."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.direct.statsd import StatsdError, parse_notice

GOOD: list[tuple[bytes, dict[str, Any]]] = [
    (b"_e{5,4}:title|text", {"type": "event", "title": "title", "text": "text"}),
    (b"_e{5,0}:title|", {"type": "event", "title": "title", "text": ""}),
    # What the client datadog 0.56 sends: lengths are bytes, behind the escapes of line ends.
    (
        "_e{9,12}:ti|tle\\nx|té|xt\\nline".encode(),
        {"type": "event", "title": "ti|tle\nx", "text": "té|xt\nline"},
    ),
    (
        b"_e{1,1}:a|b|d:17|h:host|k:key|p:low|s:src|t:error|#z,b:1,z|c:ci-1|x:y",
        {
            "type": "event",
            "title": "a",
            "text": "b",
            "timestamp": 17,
            "host": "host",
            "aggregation_key": "key",
            "priority": "low",
            "source": "src",
            "alert_type": "error",
            "tags": ["b:1", "z"],
            "container": "ci-1",
        },
    ),
    (
        b"_e{1,1}:a|b|d:x|p:high|t:fatal",
        {
            "type": "event",
            "title": "a",
            "text": "b",
            "warnings": ["timestamp 'x'", "priority 'high'", "alert_type 'fatal'"],
        },
    ),
    (b"_sc|db|0", {"type": "service_check", "name": "db", "status": "ok"}),
    (
        rb"_sc|db|2|d:5|h:web|#a:b|m:a|b m\: c\nd",
        {
            "type": "service_check",
            "name": "db",
            "status": "critical",
            "timestamp": 5,
            "host": "web",
            "tags": ["a:b"],
            "message": "a|b m: c\nd",
        },
    ),
]


@pytest.mark.parametrize(("line", "expected"), GOOD, ids=[repr(line[:30]) for line, _ in GOOD])
def test_a_notice_becomes_a_document(line: bytes, expected: dict[str, Any]) -> None:
    assert parse_notice(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        b"_e{0,1}:|a",
        b"_e{5,4}:titl|text",
        b"_e{5,4}:title|texts",
        b"_e{5,999999999999999999999999}:title|text",
        b"_e{5,99}:title|text",
        b"_e{-1,4}:title|text",
        b"_e{}:title|text",
        b"_e",
        b"_sc|db",
        b"_sc||0",
        b"_sc|db|4",
        b"_sc|db|-1",
    ],
)
def test_a_malformed_notice_is_refused(line: bytes) -> None:
    with pytest.raises(StatsdError):
        parse_notice(line)


@given(st.sampled_from([b"_e{", b"_e{1,1}:", b"_sc|", b"_sc|a|0|"]), st.binary(max_size=60))
def test_bytes_raise_no_error_but_the_typed_one(start: bytes, rest: bytes) -> None:
    with contextlib.suppress(StatsdError):
        assert parse_notice(start + rest)["type"] in ("event", "service_check")
