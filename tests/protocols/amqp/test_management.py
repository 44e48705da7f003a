"""Questions about queues: what is asked for, and what can't be answered."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

import pytest

from tidemill.engine.door import Queues, Security
from tidemill.engine.queues.api import (
    BindingDescription,
    ConsumerDescription,
    ExchangeSpec,
    QueueDescription,
)
from tidemill.errors import TidemillError
from tidemill.protocols.amqp.management import answer, change, is_change
from tidemill.state.routing.errors import UnknownQueueError
from tidemill.state.security.types import Permission, TopicPermission

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

    def names(self) -> list[str]:
        return ["orders", "deleted meanwhile"]

    def describe(self, queue: str) -> QueueDescription:
        if queue != ORDERS.name:
            raise UnknownQueueError(queue)
        return ORDERS

    def exchanges(self) -> list[tuple[str, ExchangeSpec]]:
        return [("amq.fanout", ExchangeSpec("fanout"))]

    def permissions(self) -> list[dict[str, str]]:
        return [{"user": "alice", "configure": "", "write": ".*", "read": ""}]

    def bindings(self) -> list[BindingDescription]:
        raise TidemillError("the broker is stopping")


def asked(question: bytes) -> dict[str, Any]:
    work = answer(cast(Queues, Door()), cast(Security, Door()), question)
    return cast("dict[str, Any]", json.loads(asyncio.run(work)))


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


def test_permissions_are_listed() -> None:
    (found,) = asked(b'{"list": "permissions"}')["result"]
    assert found == {"user": "alice", "configure": "", "write": ".*", "read": ""}


class Refusing:
    """The part of ``door.security`` that sets permissions."""

    def __init__(self) -> None:
        self.set: list[tuple[object, ...]] = []

    async def set_permission(self, user: str, permission: Permission | None) -> None:
        if user == "root":
            raise TidemillError("not allowed", hint="Ask root.")
        self.set.append((user, permission))

    async def set_topic_permission(
        self, user: str, exchange: str, permission: TopicPermission | None
    ) -> None:
        self.set.append((user, exchange, permission))


async def changed(question: bytes) -> tuple[dict[str, Any], list[tuple[object, ...]]]:
    security = Refusing()
    assert is_change(question)
    said = await change(cast(Security, security), question)
    return json.loads(said), security.set


async def test_permissions_are_set_and_deleted() -> None:
    said, made = await changed(
        b'{"set": "permission", "user": "a", "configure": "^$", "write": ".*", "read": ""}'
    )
    assert (said, made) == ({"result": []}, [("a", Permission("^$", ".*", ""))])
    _, made = await changed(b'{"set": "permission", "user": "a"}')
    assert made == [("a", None)]
    topic = b'{"set": "permission", "user": "a", "exchange": "x", "write": "w", "read": "r"}'
    _, made = await changed(topic)
    assert made == [("a", "x", TopicPermission("w", "r"))]


@pytest.mark.parametrize(
    ("question", "error"),
    [
        (b'{"set": "permission"}', "user"),
        (b'{"set": "permission", "user": 5}', "user"),
        (b'{"set": "permission", "user": "a", "write": "w"}', "configure"),
        (b'{"set": "permission", "user": "a", "admin": "yes"}', "admin"),
        (b'{"set": "permission", "user": "' + b"a" * 5000 + b'"}', "too long"),
        (b'{"set": "permission", "user": "root"}', "Ask root"),
    ],
)
async def test_an_invalid_or_refused_change_is_an_error(question: bytes, error: str) -> None:
    said, made = await changed(question)
    assert (error in said["error"], made) == (True, [])


@pytest.mark.parametrize("question", [b"", b"[]", b'{"list": "queues"}', b'{"set": "x"}', b"\xff"])
def test_other_questions_are_no_changes(question: bytes) -> None:
    assert not is_change(question)


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
