"""Properties of messages whose records another protocol wrote."""

from __future__ import annotations

from typing import cast

import orjson

from tidemill.engine.queues.api import DEATHS_HEADER, Delivery, Header, Holder
from tidemill.protocols.amqp.codec.properties import parse
from tidemill.protocols.amqp.messages import (
    LARGEST_PROPERTIES,
    PROPERTIES_HEADER,
    PropertyWriter,
    from_record,
)


def write(*headers: Header, count: int = 1) -> bytes:
    holder = cast(Holder, None)
    return PropertyWriter().write(
        Delivery("q", 0, 0, count, count > 0, b"", b"", headers, 0, "", holder)
    )


def test_headers_that_do_not_fit_a_content_header_are_left_out() -> None:
    large = bytes(LARGEST_PROPERTIES)
    properties = write(("first", b"1"), ("large", large), ("last", None), count=0)
    assert parse(properties).headers == {"first": "1", "last": None}
    many: list[Header] = [(f"{number}-{'n' * 240}", b"v" * 60) for number in range(1000)]
    assert LARGEST_PROPERTIES - 1500 < len(from_record(many)) <= LARGEST_PROPERTIES


def test_properties_and_deaths_that_do_not_fit_are_left_out() -> None:
    plain = ("header", b"value")
    large = b"\0\0" + bytes(LARGEST_PROPERTIES)
    assert parse(write(plain, (PROPERTIES_HEADER, large))).headers["header"] == "value"
    keys = ["k" * 255] * 1000
    death = {"queue": "q", "reason": "expired", "count": 1, "exchange": "", "keys": keys, "time": 0}
    deaths = (DEATHS_HEADER, orjson.dumps([death]))
    assert parse(write(plain, deaths)).headers == {"header": "value"}
