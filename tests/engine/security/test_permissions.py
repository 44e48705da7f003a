"""AMQP permissions on a whole engine: which method asks what, as in RabbitMQ."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.engine.queues.harness import Client
from tests.engine.support import entered, running, until
from tests.support.faultyfs import FaultyFileSystem
from tidemill.engine.authorize import Principal
from tidemill.engine.door import Door, Queues, Security
from tidemill.engine.engine import Engine
from tidemill.engine.errors import AuthorizationError
from tidemill.engine.queues.api import ConsumerSpec, ExchangeSpec, Message, Owner, QueueSpec
from tidemill.state.errors import InvalidRegularExpressionError
from tidemill.state.security.types import Permission, TopicPermission

Call = Callable[[Queues], Any]
ALICE = Principal("alice")
OWNER = Owner("alice")
RECIPIENT = Mock(**{"credit.return_value": 0})
"""A consumer that takes nothing."""
NOTHING = "^$"
EVERYTHING = Permission(".*", ".*", ".*")


@contextlib.asynccontextmanager
async def prepared(**security: object) -> AsyncIterator[Engine]:
    """Run a broker with queue ``q``, exchanges ``x`` and ``other`` and the binding of both."""
    given = {"super_users": "User:root", **security}
    # A folder that exists: publishing looks at the space of its disk.
    async with running(Path("/tmp"), fs=FaultyFileSystem(), security=given) as engine:
        queues = engine.inner_door().queues
        await queues.declare_queue("q", QueueSpec(), OWNER)
        for name in ("x", "other"):
            await queues.declare_exchange(name, ExchangeSpec("topic"))
        await queues.bind("q", "x", "k", {}, OWNER)
        yield engine


@pytest.fixture
def engine(loop_runner: asyncio.Runner) -> Iterator[Engine]:
    yield from entered(loop_runner, prepared())


@pytest.fixture
def alice(engine: Engine) -> Door:
    return engine.door(ALICE)


@pytest.fixture
def admin(engine: Engine) -> Security:
    return engine.inner_door().security


async def is_allowed(door: Door, call: Call) -> bool:
    try:
        result = call(door.queues)
        if inspect.isawaitable(result):
            await result
    except AuthorizationError:
        return False
    return True


def publish(exchange: str, key: str) -> Call:
    return lambda q: q.publisher(None).publish(1, exchange, key, Message(b"v"))


def declare(**arguments: str) -> Call:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    return lambda q: q.declare_queue("q2", QueueSpec(arguments=named), OWNER)


def may(configure: str = NOTHING, write: str = NOTHING, read: str = NOTHING) -> Permission:
    return Permission(configure, write, read)


WITH_ALTERNATE = ExchangeSpec("fanout", arguments={"alternate-exchange": "other"})
CALLS: dict[str, tuple[Call, Permission]] = {
    "declare": (declare(), may("^q2$")),
    "declare with dead letters": (
        declare(x_dead_letter_exchange="other"),
        may("^q2$", write="^other$", read="^q2$"),
    ),
    "declare exchange": (lambda q: q.declare_exchange("new", ExchangeSpec("fanout")), may("^new$")),
    "declare exchange with an alternate": (
        lambda q: q.declare_exchange("new", WITH_ALTERNATE),
        may("^new$", write="^other$", read="^new$"),
    ),
    "delete": (lambda q: q.delete_queue("q", OWNER), may("^q$")),
    "delete exchange": (lambda q: q.delete_exchange("other"), may("^other$")),
    "publish": (publish("x", "k"), may(write="^x$")),
    "publish to the default exchange": (publish("", "q"), may(write="^amq.default$")),
    "get": (lambda q: q.get("q", OWNER, no_ack=True), may(read="^q$")),
    "consume": (lambda q: q.consume("q", ConsumerSpec("t", OWNER), RECIPIENT), may(read="^q$")),
    "purge": (lambda q: q.purge("q", OWNER), may(read="^q$")),
    "bind": (lambda q: q.bind("q", "other", "k", {}, OWNER), may(write="^q$", read="^other$")),
    "unbind": (lambda q: q.unbind("q", "x", "k", {}, OWNER), may(write="^q$", read="^x$")),
    "bind exchange": (
        lambda q: q.bind_exchange("x", "other", "k", {}),
        may(write="^other$", read="^x$"),
    ),
}
"""A call, and the least permission that allows it."""


@pytest.mark.parametrize("name", list(CALLS))
async def test_a_method_asks_for_the_permissions_of_rabbitmq(
    alice: Door, admin: Security, name: str
) -> None:
    call, least = CALLS[name]
    assert not await is_allowed(alice, call)
    for field in Permission._fields:
        if getattr(least, field) != NOTHING:
            await admin.set_permission("alice", least._replace(**{field: NOTHING}))
            assert not await is_allowed(alice, call), field
    await admin.set_permission("alice", least)
    assert await is_allowed(alice, call)


async def test_a_passive_declaration_is_free_for_a_user_with_permissions(
    alice: Door, admin: Security
) -> None:
    def passive(queues: Queues) -> Any:
        return queues.declare_queue("q", QueueSpec(), OWNER, passive=True)

    assert not await is_allowed(alice, passive)
    await admin.set_permission("alice", Permission("", "", ""))
    assert await is_allowed(alice, passive)


async def test_topic_permissions_limit_routing_keys(alice: Door, admin: Security) -> None:
    def bind(key: str) -> Call:
        return lambda q: q.bind("q", "x", key, {}, OWNER)

    await admin.set_permission("alice", EVERYTHING)
    assert await is_allowed(alice, publish("x", "eu.orders"))
    await admin.set_topic_permission("alice", "x", TopicPermission("^eu", "^us"))
    assert await is_allowed(alice, publish("x", "eu.orders"))
    assert not await is_allowed(alice, publish("x", "us.orders"))
    assert await is_allowed(alice, publish("other", "us.orders"))
    assert await is_allowed(alice, bind("us.#"))
    assert not await is_allowed(alice, bind("eu.#"))
    await admin.set_topic_permission("alice", "x", None)
    assert await is_allowed(alice, publish("x", "us.orders"))


@pytest.mark.parametrize("type_", ["classic", "stream"])
async def test_a_consumer_that_may_not_read_any_more_is_cancelled(
    engine: Engine, admin: Security, type_: str
) -> None:
    inner = engine.inner_door()
    root, reading = Client(engine), Client(engine)
    root.queues, root.publisher = inner.queues, inner.queues.publisher(root._settled)
    await root.declare("log", {"x-queue-type": type_})
    await admin.set_permission("alice", Permission("", "", "log"))
    reading.queues = engine.door(ALICE).queues
    reader = await reading.consume("log")
    await root.publish("log", b"1", b"2")
    await until(lambda: len(reader.got) == 2)
    await admin.set_permission("alice", Permission("", "", "other"))
    await root.publish("log", b"3")
    await until(lambda: bool(reader.ended))
    assert reader.ended == ["the client must not read the queue any more"]
    assert [each.value for each in reader.got] == [b"1", b"2"]
    assert root.queues.describe("log").consumers == ()
    reader.consumer.cancel()  # the client's own answer comes too late
    await reading.close()


async def test_permissions_and_rules_do_not_answer_for_each_other(
    alice: Door, admin: Security
) -> None:
    await admin.set_permission("alice", EVERYTHING)
    assert await is_allowed(alice, publish("x", "k"))
    with pytest.raises(AuthorizationError):
        alice.topics.get("q")


async def test_super_users_and_open_brokers_need_no_permissions() -> None:
    async with prepared() as engine:
        assert await is_allowed(engine.door(Principal("root")), publish("x", "k"))
    async with prepared(super_users="") as engine:
        assert await is_allowed(engine.door(ALICE), publish("x", "k"))
    async with prepared(allow_everyone_if_no_acl_found=True) as engine:
        assert await is_allowed(engine.door(ALICE), publish("x", "k"))
        await engine.inner_door().security.set_permission("alice", Permission("", "", ""))
        assert not await is_allowed(engine.door(ALICE), publish("x", "k"))


async def test_an_invalid_expression_is_refused(admin: Security) -> None:
    with pytest.raises(InvalidRegularExpressionError):
        await admin.set_permission("alice", Permission("(", "", ""))
    assert admin.permissions() == []
