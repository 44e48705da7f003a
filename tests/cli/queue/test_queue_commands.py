"""``tidemill queue`` and ``tidemill exchange`` against a broker process."""

from __future__ import annotations

import socket

import pytest

from tests.cli.conftest import CommandLine
from tests.support.broker_process import BrokerProcess
from tidemill.amqp_client.connection import AmqpClient


@pytest.fixture(autouse=True)
def address(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_AMQP_URL", f"amqp://127.0.0.1:{broker.amqp_port}/")


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_messages_are_published_listed_consumed_and_purged(
    tidemill: CommandLine, topic: str
) -> None:
    assert tidemill.ok("queue", "create", topic) == f"created {topic}\n"
    tidemill.ok("queue", "publish", topic, stdin="a\nb\nc\n")
    (found,) = [q for q in tidemill.json("queue", "list") if q["name"] == topic]
    assert (found["ready"], found["type"], found["consumers"]) == (3, "classic", [])
    assert tidemill.ok("queue", "consume", topic, "--peek", "-n", "2") == "a\nb\n"
    assert tidemill.ok("queue", "consume", topic, "-n", "2") == "a\nb\n"
    message = tidemill.json("queue", "consume", topic, "--json", "-n", "1")
    assert (message["body"], message["redelivered"]) == ("c", False)
    tidemill.ok("queue", "publish", topic, "--header", "kind=new", stdin="d\n")
    message = tidemill.json("queue", "consume", topic, "--json", "--peek")
    assert message["headers"]["kind"] == "new"
    assert tidemill.ok("queue", "purge", topic, "--yes") == f"purged {topic} (1 message)\n"
    assert tidemill.ok("queue", "consume", topic, "--until-empty") == ""
    assert tidemill.ok("queue", "delete", topic, "--yes") == f"deleted {topic} (0 messages)\n"
    assert tidemill.run("queue", "describe", topic).returncode == 3


def test_an_exchange_routes_to_its_queues(tidemill: CommandLine, topic: str) -> None:
    exchange = f"{topic}-x"
    tidemill.ok("queue", "create", topic)
    tidemill.ok("exchange", "create", exchange, "--type", "topic")
    bound = tidemill.ok("queue", "bind", topic, exchange, "-k", "order.#", "-k", "item.*")
    assert bound == (
        f"bound {topic} to {exchange} with key order.#\n"
        f"bound {topic} to {exchange} with key item.*\n"
    )
    published = ["queue", "publish", "--exchange", exchange]
    tidemill.ok(*published, "-k", "order.new.big", stdin="yes\n")
    refused = tidemill.run(*published, "-k", "item.a.b", stdin="no\n")
    assert refused.returncode == 1
    assert "line 1: no queue takes it" in refused.stderr
    described = tidemill.json("queue", "describe", topic)
    assert described["ready"] == 1
    assert [each["routing_key"] for each in described["bindings"]] == ["order.#", "item.*"]
    assert [exchange, "topic"] in [row[:2] for row in lines(tidemill.ok("exchange", "list"))]
    tidemill.ok("queue", "bind", topic, exchange, "-k", "order.#", "--remove")
    assert tidemill.run(*published, "-k", "order.new", stdin="no\n").returncode == 1
    other = f"{topic}-y"
    tidemill.ok("exchange", "create", other, "--type", "fanout")
    tidemill.ok("exchange", "bind", other, exchange, "-k", "item.x")
    tidemill.ok("exchange", "delete", other, "--yes")
    assert tidemill.ok("exchange", "delete", exchange, "--yes") == f"deleted {exchange}\n"


def test_dead_letters_go_back_to_where_they_died(tidemill: CommandLine, topic: str) -> None:
    dead = f"{topic}-dead"
    tidemill.ok(
        "queue",
        "create",
        topic,
        "--dead-letter-to",
        dead,
        "--set",
        "x-overflow=drop-head",
        "--max-length",
        "1",
    )
    tidemill.ok("queue", "publish", topic, stdin="one\ntwo\n")
    assert tidemill.ok("queue", "consume", topic, "-n", "1") == "two\n"
    assert (
        tidemill.ok("queue", "move", dead, "--dry-run")
        == f"would move 1 message from {dead} to {topic}\n"
    )
    assert tidemill.ok("queue", "move", dead) == f"moved 1 message from {dead} to {topic}\n"
    assert tidemill.ok("queue", "consume", topic, "-n", "1") == "one\n"
    assert tidemill.ok("queue", "move", dead) == f"{dead} has no message to move\n"
    tidemill.ok("queue", "publish", dead, stdin="never died\n")
    assert tidemill.ok("queue", "move", dead) == ""
    moved = tidemill.ok("queue", "move", dead, "--to", topic)
    assert moved == f"moved 1 message from {dead} to {topic}\n"
    missing = tidemill.run("queue", "move", topic, "--to", f"{topic}-missing")
    assert missing.returncode == 3
    assert tidemill.ok("queue", "consume", topic, "-n", "1") == "never died\n"


def test_a_queue_without_a_name_gets_one_which_is_shown(tidemill: CommandLine) -> None:
    created = tidemill.ok("queue", "create", "").removeprefix("created ").strip()
    assert created.startswith("amq.gen-")
    assert created in tidemill.ok("queue", "list")
    tidemill.ok("queue", "delete", created, "--yes")


def test_mistakes_have_their_exit_codes(tidemill: CommandLine, topic: str) -> None:
    tidemill.ok("queue", "create", topic)
    other = tidemill.run("queue", "create", topic, "--max-length", "3")
    assert (other.returncode, "x-max-length" in other.stderr) == (4, True)
    unknown = tidemill.run("queue", "create", f"{topic}-2", "--set", "x-max-lenght=1")
    assert (unknown.returncode, "Did you mean x-max-length?" in unknown.stderr) == (2, True)
    assert tidemill.run("queue", "publish", f"{topic}-3", stdin="a").returncode == 3
    assert tidemill.run("queue", "publish", stdin="a").returncode == 2
    wrong = tidemill.run("queue", "list", "-a", "http://127.0.0.1/")
    assert (wrong.returncode, "invalid AMQP URL" in wrong.stderr) == (2, True)
    gone = tidemill.run("queue", "list", "-a", "amqp://127.0.0.1:1/")
    assert gone.returncode == 5
    assert "no broker answers at 127.0.0.1:1 (connection refused)\n" in gone.stderr
    refused = tidemill.run("queue", "list", "-a", f"amqp://x:y@{_host()}/")
    assert (refused.returncode, "user and password" in refused.stderr) == (5, True)


def _host() -> str:
    import os

    return os.environ["TIDEMILL_AMQP_URL"].split("//")[1].rstrip("/")


def test_a_command_does_not_wait_for_delayed_acknowledgements(broker: BrokerProcess) -> None:
    """Two small writes one after the other cost 40 ms with Nagle's delay: each command did."""
    with AmqpClient(f"amqp://127.0.0.1:{broker.amqp_port}/") as client:
        assert client._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_missing_queue_or_exchange_has_a_hint(tidemill: CommandLine, topic: str) -> None:
    missing = f"{topic}-missing"
    tidemill.ok("queue", "create", topic)
    for command, kind in (
        (["queue", "consume", missing], "queue"),
        (["queue", "publish", missing], "queue"),
        (["queue", "purge", missing, "--yes"], "queue"),
        (["queue", "move", missing], "queue"),
        (["queue", "bind", topic, missing], "exchange"),
    ):
        done = tidemill.run(*command, stdin="a\n")
        assert done.returncode == 3, command
        assert f"error: no {kind} '{missing}'" in done.stderr
        assert f"hint: See: tidemill {kind} list" in done.stderr
