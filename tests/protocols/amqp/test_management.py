"""Questions about queues: what is asked for, and what can't be answered."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

import pytest

from tidemill.engine.door import Queues
from tidemill.engine.queues.api import (
    BindingDescription,
    ConsumerDescription,
    ExchangeSpec,
    QueueDescription,
)
from tidemill.errors import TidemillError
from tidemill.protocols.amqp.management import answer

ORDERS = QueueDescription(
    name="orders",
    topic="orders",
    type="classic",
    durable=True,
    exclusive=False,
    auto_delete=False,
    arguments={"x-max-length": 5, "since": datetime(2026, 1, 2, tzinfo=UTC), "d": Decimal("1.5")},
    ready=3,
    unacknowledged=1,
    bytes=400,
    oldest_age_ms=17,
    published=4,
    delivered=1,
    acknowledged=0,
    redelivered=0,
    dead=0,
    consumers=(ConsumerDescription("tag", "127.0.0.1:5", 1, 0, True),),
)


class Door:
    """The part of ``door.queues`` that questions are about."""

    def queues(self) -> list[QueueDescription]:
        return [ORDERS]

    def exchanges(self) -> list[tuple[str, ExchangeSpec]]:
        return [("amq.fanout", ExchangeSpec("fanout"))]

    def bindings(self) -> list[BindingDescription]:
        raise TidemillError("the broker is stopping")


def asked(question: bytes) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(answer(cast(Queues, Door()), question)))


def test_queues_are_listed_with_their_consumers_and_arguments() -> None:
    (queue,) = asked(b'{"list": "queues"}')["result"]
    assert queue["name"] == "orders"
    assert queue["arguments"] == {
        "x-max-length": 5,
        "since": "2026-01-02T00:00:00+00:00",
        "d": "1.5",
    }
    assert queue["consumers"] == [
        {"tag": "tag", "owner": "127.0.0.1:5", "unacknowledged": 1, "priority": 0, "active": True}
    ]


def test_exchanges_are_listed() -> None:
    (exchange,) = asked(b'{"list": "exchanges"}')["result"]
    assert (exchange["name"], exchange["type"]) == ("amq.fanout", "fanout")


@pytest.mark.parametrize(
    ("question", "error"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "invalid question"),
        (b'{"list": []}', "invalid question"),
        (b'{"list": "users"}', "invalid question"),
        (b'{"list": "bindings"}', "the broker is stopping"),
    ],
)
def test_what_can_not_be_answered_is_an_error(question: bytes, error: str) -> None:
    assert error in asked(question)["error"]
