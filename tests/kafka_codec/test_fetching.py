"""Responses of brokers to a reader, whole and damaged."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.spark.source.batches import batch
from tests.support.fake_broker import FakeBroker, fetched, text
from tidemill.errors import ProtocolError
from tidemill.kafka_codec import fetching as messages
from tidemill.kafka_codec.messages import decode_response


def test_records() -> None:
    stored = bytes(batch(b"v"))
    found = messages.parse_fetch(memoryview(fetched(stored, end=7)), 10)
    assert (found.error, found.end, bytes(found.records), found.aborted) == (0, 7, stored, [])


def response(api: int, version: int) -> Callable[[memoryview], Any]:
    return lambda view: decode_response(api, version, view, 0)


PARSERS: list[tuple[Callable[[memoryview], Any], bytes]] = [
    (response(18, 0), bytes([0, 0, 0, 0, 0, 1, 0, 1, 0, 4, 0, 12])),
    (response(17, 1), bytes([0, 0, 0, 0, 0, 1]) + text("PLAIN")),
    (response(36, 0), bytes([0, 0, 255, 255, 0, 0, 0, 2]) + b"ab"),
    (response(3, 4), FakeBroker().metadata()),
    (response(2, 2), bytes(4) + b"\0\0\0\1" + text("t") + b"\0\0\0\1" + bytes(22)),
    (lambda view: messages.parse_fetch(view, 4), fetched(b"xyz")),
    (lambda view: messages.parse_fetch(view, 10), fetched(b"xyz")),
]


@pytest.mark.parametrize(("parse", "whole"), PARSERS)
def test_damaged_responses_are_malformed_and_nothing_else(
    parse: Callable[[memoryview], Any], whole: bytes
) -> None:
    rng = random.Random(3)
    for _ in range(2000):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(4)):
            damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        if rng.random() < 0.3:
            del damaged[rng.randrange(len(damaged)) :]
        with contextlib.suppress(ProtocolError):
            parse(memoryview(damaged))
