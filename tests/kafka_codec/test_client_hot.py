"""Responses to Fetch and Produce that a client decodes by hand, whole and damaged."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.reading.batches import batch
from tests.support.fake_broker import fetched, text
from tidemill.errors import ProtocolError
from tidemill.kafka_codec.client_hot import parse_fetch, parse_produce


def test_records() -> None:
    stored = bytes(batch(b"v"))
    found = parse_fetch(memoryview(fetched(stored, end=7)), 10)
    assert (found.error, found.end, bytes(found.records), found.aborted) == (0, 7, stored, [])


def produced(version: int) -> bytes:
    partition = struct.pack(">ihqq", 0, 6, 5, -1) + (bytes(8) if version >= 5 else b"")
    return struct.pack(">i", 1) + text("t") + struct.pack(">i", 1) + partition + bytes(4)


@pytest.mark.parametrize("version", [3, 7])
def test_codes_of_partitions(version: int) -> None:
    response = memoryview(produced(version))
    assert parse_produce(response, version, [("t", 0)]) == {("t", 0): 6}
    with pytest.raises(ProtocolError, match="missing"):
        parse_produce(response, version, [("t", 0), ("t", 1)])


PARSERS: list[tuple[Callable[[memoryview], Any], bytes]] = [
    (lambda view: parse_fetch(view, 4), fetched(b"xyz")),
    (lambda view: parse_fetch(view, 10), fetched(b"xyz")),
    (lambda view: parse_produce(view, 3, []), produced(3)),
    (lambda view: parse_produce(view, 7, []), produced(7)),
]


@pytest.mark.parametrize(("parse", "whole"), PARSERS)
def test_damaged_responses_are_malformed_and_nothing_else(
    parse: Callable[[memoryview], Any], whole: bytes
) -> None:
    dice = random.Random(3)
    for _ in range(2000):
        damaged = bytearray(whole)
        for _ in range(dice.randrange(4)):
            damaged[dice.randrange(len(damaged))] = dice.choice([0, 1, 0x7F, 0x80, 0xFF])
        if dice.random() < 0.3:
            del damaged[dice.randrange(len(damaged)) :]
        with contextlib.suppress(ProtocolError):
            parse(memoryview(damaged))
