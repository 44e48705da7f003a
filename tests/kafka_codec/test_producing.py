"""Responses of brokers to the producer, whole and damaged."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from tidemill.errors import ProtocolError
from tidemill.kafka_codec import producing as messages


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def produced(version: int) -> bytes:
    partition = struct.pack(">ihqq", 0, 6, 5, -1) + (bytes(8) if version >= 5 else b"")
    return struct.pack(">i", 1) + text("t") + struct.pack(">i", 1) + partition + bytes(4)


FETCHED = (
    bytes(4)
    + b"\2"
    + b"\2t"
    + b"\2"
    + struct.pack(">iqi", 0, 7, -1)
    + b"\3{}"
    + bytes(2)
    + b"\0"
    + b"\0"
    + bytes(2)
    + b"\0"
)
ADDED = bytes(4) + struct.pack(">i", 1) + text("t") + struct.pack(">iih", 1, 0, 51)
FOUND = bytes(4) + struct.pack(">h", 0) + text("") + struct.pack(">i", 1) + text("h") + bytes(4)

WANTED = [("t", 0)]
PARSERS: list[tuple[Callable[[memoryview], Any], bytes, Any]] = [
    (lambda view: messages.parse_produce(view, 3, WANTED), produced(3), {("t", 0): 6}),
    (lambda view: messages.parse_produce(view, 7, WANTED), produced(7), {("t", 0): 6}),
    (messages.parse_find_coordinator, FOUND, (0, ("h", 0))),
    (messages.parse_init_producer_id, struct.pack(">ihqh", 0, 0, 9, 3), (0, (9, 3))),
    (messages.parse_add_partitions, ADDED, {("t", 0): 51}),
    (messages.parse_error, struct.pack(">ih", 0, 47), 47),
    (messages.parse_fetch_offset, FETCHED, (0, 7, "{}")),
]


@pytest.mark.parametrize(("parse", "whole", "expected"), PARSERS)
def test_damaged_responses_are_malformed_and_nothing_else(
    parse: Callable[[memoryview], Any], whole: bytes, expected: Any
) -> None:
    assert parse(memoryview(whole)) == expected
    dice = random.Random(4)
    for _ in range(2000):
        damaged = bytearray(whole)
        for _ in range(dice.randrange(4)):
            damaged[dice.randrange(len(damaged))] = dice.choice([0, 1, 0x7F, 0x80, 0xFF])
        if dice.random() < 0.3:
            del damaged[dice.randrange(len(damaged)) :]
        try:
            parse(memoryview(damaged))
        except ProtocolError:
            continue


def test_a_response_must_have_each_partition() -> None:
    with pytest.raises(ProtocolError, match="missing"):
        messages.parse_produce(memoryview(produced(7)), 7, [("t", 0), ("t", 1)])
