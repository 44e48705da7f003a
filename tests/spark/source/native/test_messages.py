"""Responses of brokers, whole and damaged, and each version of Fetch against a real one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.source.native.batches import batch, extension, offsets
from tests.spark.source.native.fake_broker import FakeBroker, fetched, text
from tidemill.kafka_client import messages as wire
from tidemill.kafka_client.errors import ConnectionFailedError
from tidemill.spark.source.native import edition, messages
from tidemill.spark.source.plan import FetchPlan
from tidemill.spark.source.planning.ranges import OffsetRange

if TYPE_CHECKING:
    from tests.spark.conftest import Broker


def test_leaders() -> None:
    found = wire.parse_metadata(memoryview(FakeBroker(port=9092).metadata()), "t")
    assert found.brokers == {1: ("127.0.0.1", 9092)}
    assert (found.error, found.leaders) == (0, {0: (0, 1)})
    with pytest.raises(ConnectionFailedError, match="malformed"):
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
        except ConnectionFailedError:
            continue


@pytest.mark.parametrize("version", range(4, 11))
def test_each_version_of_fetch(
    tidemill_broker: Broker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    extension()
    edition.close_idle_clients()
    needs = {**messages.NEEDS, messages.FETCH: (version, version)}
    monkeypatch.setattr(messages, "NEEDS", needs)
    topic = tidemill_broker.topic()
    tidemill_broker.produce(topic, [b"x"] * 30)
    for isolation in ("read_committed", "read_uncommitted"):
        kafka = {"bootstrap.servers": tidemill_broker.bootstrap, "isolation.level": isolation}
        batches = edition.start(OffsetRange(topic, 0, 5, 30), FetchPlan(kafka, timeout_ms=10_000))
        assert batches is not None
        assert offsets(list(batches)) == list(range(5, 30))
    edition.close_idle_clients()
