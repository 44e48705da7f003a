"""``rabbitmqadmin``, RabbitMQ's tool over its management API, against the gateway.

It is RabbitMQ's own program, from Debian's package rabbitmq-server or its plugin.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.gateway_process import GatewayProcess
from tests.support.processes import poll_until
from tidemill.amqp_client.connection import AmqpClient
from tidemill.errors import TidemillError

TOOL = shutil.which("rabbitmqadmin")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(TOOL is None, reason="rabbitmqadmin is not installed"),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, broker: BrokerProcess
) -> Iterator[GatewayProcess]:
    settings = {"gateway.amqp_url": f"amqp://127.0.0.1:{broker.amqp_port}/"}
    folder = tmp_path_factory.mktemp("gateway")
    with GatewayProcess(folder, broker.bootstrap, settings=settings) as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[AmqpClient]:
    """A client of the queue ``a/b``, which is bound to ``amq.topic`` and has a message."""
    with AmqpClient(f"amqp://127.0.0.1:{broker.amqp_port}/") as client:
        client.call("queue.delete", queue="a/b")  # of the test before
        client.call("queue.declare", queue="a/b", durable=True)
        client.call("queue.bind", queue="a/b", exchange="amq.topic", routing_key="x.#")
        client.call("confirm.select")
        client.publish("amq.topic", "x.y", b"body")
        client.consume("a/b", prefetch=3)
        yield client


@pytest.fixture
def tool(gateway: GatewayProcess, client: AmqpClient) -> Callable[..., Any]:
    """A function that runs the tool and returns its JSON. The client's queue is listed."""
    http = httpx.Client(base_url=gateway.url, timeout=60, trust_env=False)
    with http:
        there = "/api/queues/%2F/a%2Fb?columns=consumers,messages_unacknowledged"
        wanted = {"consumers": 1, "messages_unacknowledged": 1}
        poll_until(lambda: http.get(there).json() == wanted, 30, "it is listed")
        own = "{}:{}".format(*client._sock.getsockname())
        poll_until(lambda: clients(http) == [own], 30, "others are gone")

    def run(*arguments: str) -> Any:
        command = [str(TOOL), "--port", str(gateway.port), "--format", "raw_json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout) if done.stdout.startswith(("[", "{")) else done.stdout

    return run


def clients(http: httpx.Client) -> list[str]:
    """Return the addresses of the clients that are listed."""
    return [each["name"].split()[0] for each in http.get("/api/connections").json()]


@pytest.mark.parametrize(
    ("what", "name"),
    [
        *(("queues", "a/b"), ("exchanges", "amq.topic"), ("vhosts", "/"), ("nodes", "tidemill@")),
        *(("connections", " -> "), ("channels", " (1)")),
    ],
)
def test_objects_are_listed(tool: Callable[..., Any], what: str, name: str) -> None:
    assert any(name in each["name"] for each in tool("list", what))


def test_columns_bindings_and_the_overview_are_shown(tool: Callable[..., Any]) -> None:
    (queue,) = tool("list", "queues", "name", "messages", "message_stats.publish")
    assert queue == {"name": "a/b", "messages": 1, "message_stats": {"publish": 1}}
    assert ("amq.topic", "a/b", "x.#") in {
        (each["source"], each["destination"], each["routing_key"])
        for each in tool("list", "bindings")
    }
    (consumer,) = tool("list", "consumers")
    assert (consumer["queue"]["name"], consumer["prefetch_count"]) == ("a/b", 3)
    (overview,) = tool("show", "overview")
    assert overview["object_totals"]["queues"] == 1


def test_a_connection_is_closed(tool: Callable[..., Any], client: AmqpClient) -> None:
    (connection,) = tool("list", "connections")
    assert "connection closed" in tool("close", "connection", f"name={connection['name']}")
    with pytest.raises(TidemillError, match="CONNECTION_FORCED"):
        client.call("basic.qos", prefetch_count=1)


def test_what_would_declare_is_refused(gateway: GatewayProcess) -> None:
    declare = [str(TOOL), "--port", str(gateway.port), "declare", "queue", "name=new"]
    done = subprocess.run(declare, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "405" in done.stdout + done.stderr
