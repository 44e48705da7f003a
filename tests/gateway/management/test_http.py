"""RabbitMQ's management API over HTTP, with a broker and a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.processes import poll_until
from tidemill.amqp_client.connection import AmqpClient
from tidemill.confluent.clients import Kafka
from tidemill.errors import TidemillError
from tidemill.gateway.amqp.actions import AmqpActions


@pytest.fixture
def amqp(broker: BrokerProcess) -> Iterator[AmqpClient]:
    with AmqpClient(f"amqp://127.0.0.1:{broker.amqp_port}/") as client:
        yield client


def listed(http: httpx.Client, what: str, name: str) -> dict[str, Any] | None:
    found = http.get(f"/api/{what}").json()
    return next((each for each in found if each["name"] == name), None)


def waited(http: httpx.Client, what: str, name: str) -> dict[str, Any]:
    """Return an object as soon as it is listed."""
    poll_until(lambda: listed(http, what, name) is not None, 20, f"{name} is listed")
    found = listed(http, what, name)
    assert found is not None
    return found


def test_a_queue_with_a_slash_is_found_by_its_name(http: httpx.Client, amqp: AmqpClient) -> None:
    amqp.call("queue.declare", queue="a/b c", arguments={"x-max-length": 5})
    amqp.call("confirm.select")
    amqp.publish("", "a/b c", b"body")
    waited(http, "queues", "a/b c")
    poll_until(
        lambda: http.get("/api/queues/%2F/a%2Fb%20c").json()["messages"] == 1, 20, "it has one"
    )
    found = http.get("/api/queues/%2f/a%2Fb%20c").json()
    assert (found["arguments"], found["type"]) == ({"x-max-length": 5}, "classic")
    assert found["message_stats"]["publish"] == 1
    amqp.call("queue.delete", queue="a/b c")
    poll_until(lambda: http.get("/api/queues/%2F/a%2Fb%20c").status_code == 404, 20, "it is gone")
    missing = http.get("/api/queues/%2F/a%2Fb%20c").json()
    assert missing == {"error": "Object Not Found", "reason": "Not Found"}


def test_a_connection_is_closed_with_a_reason(http: httpx.Client, amqp: AmqpClient) -> None:
    local = "{}:{}".format(*amqp._sock.getsockname())
    poll_until(
        lambda: any(each["name"].startswith(local) for each in http.get("/api/connections").json()),
        20,
        "the connection is listed",
    )
    (name,) = (
        each["name"]
        for each in http.get("/api/connections").json()
        if each["name"].startswith(local)
    )
    where = f"/api/connections/{quote(name, safe='')}"
    assert http.get(where).json()["user"] == "guest"
    answer = http.delete(where, headers={"x-reason": "maintenance"})
    assert (answer.status_code, answer.content) == (204, b"")
    with pytest.raises(TidemillError, match="CONNECTION_FORCED - maintenance"):
        amqp.call("basic.qos", prefetch_count=1)
    assert http.delete(where).status_code == 404
    poll_until(lambda: http.get(where).status_code == 404, 20, "it is not listed")


def test_the_connections_of_a_user_are_closed(http: httpx.Client, amqp: AmqpClient) -> None:
    local = "{}:{}".format(*amqp._sock.getsockname())
    where = "/api/connections/username/guest"
    poll_until(
        lambda: any(each["name"].startswith(local) for each in http.get(where).json()),
        20,
        "the connection is listed",
    )
    assert http.delete(where).status_code == 204
    with pytest.raises(TidemillError, match="CONNECTION_FORCED"):
        amqp.call("basic.qos", prefetch_count=1)
    assert http.delete("/api/connections/username/none").status_code == 204


async def test_a_connection_that_has_gone_does_not_keep_others_open(
    broker: BrokerProcess, amqp: AmqpClient
) -> None:
    here, there = (
        "{}:{}".format(*each) for each in (amqp._sock.getsockname(), amqp._sock.getpeername())
    )
    actions = AmqpActions(f"amqp://127.0.0.1:{broker.amqp_port}/", Kafka(broker.bootstrap))
    await actions.close_connections(["192.0.2.1:1 -> 192.0.2.2:2", f"{here} -> {there}"], "bye")
    with pytest.raises(TidemillError, match="CONNECTION_FORCED - bye"):
        amqp.call("basic.qos", prefetch_count=1)


def test_other_methods_and_strange_paths_are_refused(http: httpx.Client) -> None:
    refused = http.put("/api/queues/%2F/new", json={})
    assert (refused.status_code, refused.headers["allow"]) == (405, "HEAD, GET, DELETE")
    assert http.delete("/api/queues/%2F/orders").status_code == 405
    assert http.delete("/api/connections/none").status_code == 404
    assert http.head("/api/overview").status_code == 200
    for path in ("/api/", "/api/%ff%ff", "/api/queues/%", "/api/" + "a/" * 3000):
        assert http.get(path).status_code == 404, path
    assert http.get("/api/queues?page=x").json()["error"] == "bad_request"


def test_the_user_is_the_one_of_the_gateway(http: httpx.Client) -> None:
    assert http.get("/api/whoami").json() == {"name": "guest", "tags": ["administrator"]}
    assert http.get("/api/healthchecks/node").json() == {"status": "ok"}
    assert http.get("/api/health/checks/port-listener/1").status_code == 503
