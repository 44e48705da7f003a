"""AMQP permissions on a whole engine: which method asks what, as in RabbitMQ."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from tests.engine.queues.harness import Client
from tests.engine.support import entered, running, until
from tests.support.faultyfs import FaultyFileSystem
from tidemill.engine.authorize import Principal
from tidemill.engine.door import Door, Security
from tidemill.engine.engine import Engine
from tidemill.engine.errors import AuthorizationError
from tidemill.engine.queues.api import ConsumerSpec, ExchangeSpec, Message, Owner, QueueSpec
from tidemill.state.errors import InvalidRegularExpressionError
from tidemill.state.security.types import Permission, TopicPermission

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
    async with running(fs=FaultyFileSystem(), security=given) as engine:
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


async def is_allowed(door: Door, call: Callable[[Door], Any]) -> bool:
    try:
        result = call(door)
        if inspect.isawaitable(result):
            await result
    except AuthorizationError:
        return False
    return True


def publish(exchange: str, key: str) -> Callable[[Door], Any]:
    return lambda d: d.queues.publisher(None).publish(1, exchange, key, Message(b"v"))


def declare(**arguments: str) -> Callable[[Door], Any]:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    return lambda d: d.queues.declare_queue("q2", QueueSpec(arguments=named), OWNER)


CALLS: dict[str, tuple[Callable[[Door], Any], Permission]] = {
    "declare": (declare(), Permission("^q2$", NOTHING, NOTHING)),
    "declare with dead letters": (
        declare(x_dead_letter_exchange="other"),
        Permission("^q2$", "^other$", "^q2$"),
    ),
    "declare exchange": (
        lambda d: d.queues.declare_exchange("new", ExchangeSpec("fanout")),
        Permission("^new$", NOTHING, NOTHING),
    ),
    "declare exchange with an alternate": (
        lambda d: d.queues.declare_exchange(
            "new", ExchangeSpec("fanout", arguments={"alternate-exchange": "other"})
        ),
        Permission("^new$", "^other$", "^new$"),
    ),
    "delete": (lambda d: d.queues.delete_queue("q", OWNER), Permission("^q$", NOTHING, NOTHING)),
    "delete exchange": (
        lambda d: d.queues.delete_exchange("other"),
        Permission("^other$", NOTHING, NOTHING),
    ),
    "publish": (publish("x", "k"), Permission(NOTHING, "^x$", NOTHING)),
    "publish to the default exchange": (
        publish("", "q"),
        Permission(NOTHING, "^amq.default$", NOTHING),
    ),
    "get": (lambda d: d.queues.get("q", OWNER, no_ack=True), Permission(NOTHING, NOTHING, "^q$")),
    "consume": (
        lambda d: d.queues.consume("q", ConsumerSpec("t", OWNER), RECIPIENT),
        Permission(NOTHING, NOTHING, "^q$"),
    ),
    "purge": (lambda d: d.queues.purge("q", OWNER), Permission(NOTHING, NOTHING, "^q$")),
    "bind": (
        lambda d: d.queues.bind("q", "other", "k", {}, OWNER),
        Permission(NOTHING, "^q$", "^other$"),
    ),
    "unbind": (
        lambda d: d.queues.unbind("q", "x", "k", {}, OWNER),
        Permission(NOTHING, "^q$", "^x$"),
    ),
    "bind exchange": (
        lambda d: d.queues.bind_exchange("x", "other", "k", {}),
        Permission(NOTHING, "^other$", "^x$"),
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
    def passive(door: Door) -> Any:
        return door.queues.declare_queue("q", QueueSpec(), OWNER, passive=True)

    assert not await is_allowed(alice, passive)
    await admin.set_permission("alice", Permission("", "", ""))
    assert await is_allowed(alice, passive)


async def test_topic_permissions_limit_routing_keys(alice: Door, admin: Security) -> None:
    def bind(key: str) -> Callable[[Door], Any]:
        return lambda d: d.queues.bind("q", "x", key, {}, OWNER)

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
async def test_a_consumer_that_may_not_read_any_more_is_cancelled(type_: str) -> None:
    async with running() as engine:
        inner = engine.inner_door()
        root, admin = Client(engine), inner.security
        root.queues, root.publisher = inner.queues, inner.queues.publisher(root._settled)
        await root.declare("log", {"x-queue-type": type_})
        await admin.set_permission("alice", Permission("", "", "log"))
        alice = Client(engine)
        alice.queues = engine.door(ALICE).queues
        reader = await alice.consume("log")
        await root.publish("log", b"1", b"2")
        await until(lambda: len(reader.got) == 2)
        await admin.set_permission("alice", Permission("", "", "other"))
        await root.publish("log", b"3")
        await until(lambda: bool(reader.ended))
        assert reader.ended == ["the client must not read the queue any more"]
        assert [each.value for each in reader.got] == [b"1", b"2"]
        assert root.queues.describe("log").consumers == ()
        reader.consumer.cancel()  # the client's own answer comes too late
        await alice.close()


async def test_permissions_and_rules_do_not_answer_for_each_other(
    alice: Door, admin: Security
) -> None:
    await admin.set_permission("alice", EVERYTHING)
    assert await is_allowed(alice, publish("x", "k"))
    assert not await is_allowed(alice, lambda d: d.topics.get("q"))


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
