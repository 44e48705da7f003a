"""The registry of APIs, and what the server advertises."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tidemill.engine.engine import Engine
from tidemill.errors import TidemillError
from tidemill.kafka_codec.schema import known_versions
from tidemill.net.errors import ClientGoneError
from tidemill.protocols.kafka import apis
from tidemill.protocols.kafka.apis import (
    RequestContext,
    Tree,
    handles,
    load_handlers,
    outcome_of_each,
)
from tidemill.protocols.kafka.server import KafkaServer
from tidemill.protocols.kafka.settings import KafkaListener
from tidemill.settings import Settings


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    load_handlers()
    copy = dict(apis.REGISTRY)
    monkeypatch.setattr(apis, "REGISTRY", copy)
    return copy


def test_key_has_one_handler(registry: dict[int, Any]) -> None:
    with pytest.raises(ValueError, match="two handlers"):
        handles(0)(lambda ctx, request: {})


def test_key_needs_versions(registry: dict[int, Any]) -> None:
    with pytest.raises(ValueError, match="VERSIONS"):
        handles(4)(lambda ctx, request: {})


def test_a_key_without_a_handler_is_not_registered(registry: dict[int, Any]) -> None:
    del registry[42]
    handles(42)(lambda ctx, request: {})
    assert registry[42].name == "DeleteGroups"


async def test_an_error_of_the_whole_request_becomes_its_response(
    registry: dict[int, Any],
) -> None:
    def handler(ctx: RequestContext, request: Any) -> Tree:
        raise request

    del registry[42]
    handles(42, refused=lambda error: {"message": str(error)})(handler)
    answer = registry[42].handler
    assert await answer(None, TidemillError("refused")) == {"message": "refused"}
    with pytest.raises(ClientGoneError):  # no one waits for a response
        await answer(None, ClientGoneError("gone"))
    with pytest.raises(ZeroDivisionError):
        await answer(None, ZeroDivisionError())


async def test_an_error_of_all_elements_is_that_of_each() -> None:
    async def work(error: TidemillError) -> list[TidemillError | None]:
        raise error

    error = TidemillError("refused")
    assert await outcome_of_each(work(error), 2) == [error, error]
    with pytest.raises(ClientGoneError):
        await outcome_of_each(work(ClientGoneError("gone")), 2)


def test_every_line_of_the_table_is_known_to_the_codec() -> None:
    for key, (_, oldest, newest) in apis.VERSIONS.items():
        assert newest in known_versions(key)
        assert oldest <= newest


@pytest.mark.parametrize(
    ("bind", "advertised", "expected"),
    [
        ("127.0.0.1", None, "127.0.0.1"),
        ("127.0.0.1", "kafka.example", "kafka.example"),
        ("0.0.0.0", None, socket.gethostname()),
    ],
)
async def test_the_advertised_address_is_one_that_clients_can_use(
    bind: str, advertised: str | None, expected: str
) -> None:
    settings = Settings(host=bind, sections=(KafkaListener(port=0, advertised_host=advertised),))
    server = KafkaServer(Engine(settings), settings)
    _, port = await server.start()
    await server.stop()
    assert (server.node.host, server.node.port) == (expected, port)
