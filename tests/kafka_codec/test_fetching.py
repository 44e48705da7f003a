"""Responses of brokers to a reader, whole and damaged."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.spark.source.batches import batch
from tests.spark.source.fake_broker import FakeBroker, fetched, text
from tidemill.errors import ProtocolError
from tidemill.kafka_codec import connecting as wire
from tidemill.kafka_codec import fetching as messages


def test_leaders() -> None:
    found = wire.parse_metadata(memoryview(FakeBroker(port=9092).metadata()), "t")
    assert found.brokers == {1: ("127.0.0.1", 9092)}
    assert (found.error, found.leaders) == (0, {0: (0, 1)})
    with pytest.raises(ProtocolError, match="malformed"):
        wire.parse_metadata(memoryview(FakeBroker().metadata()), "other")


def test_records() -> None:
    stored = bytes(batch(b"v"))
    found = messages.parse_fetch(memoryview(fetched(stored, end=7)), 10)
    assert (found.error, found.end, bytes(found.records), found.aborted) == (0, 7, stored, [])


PARSERS: list[tuple[Callable[[memoryview], Any], bytes]] = [
    (wire.parse_api_versions, bytes([0, 0, 0, 0, 0, 1, 0, 1, 0, 4, 0, 12])),
    (wire.parse_sasl_handshake, bytes([0, 0, 0, 0, 0, 1]) + text("PLAIN")),
    (wire.parse_sasl_authenticate, bytes([0, 0, 255, 255, 0, 0, 0, 2]) + b"ab"),
    (lambda view: wire.parse_metadata(view, "t"), FakeBroker().metadata()),
    (messages.parse_list_offset, bytes(4) + b"\0\0\0\1" + text("t") + b"\0\0\0\1" + bytes(22)),
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
        try:
            parse(memoryview(damaged))
        except ProtocolError:
            continue
