"""Addresses that brokers give to their clients: a client learns that it can't reach them."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from tests.protocols.kafka.wire import serving
from tests.support.ports import reserve_port
from tidemill.cli import client
from tidemill.cli.server import advertised
from tidemill.kafka_client.named import unreachable_names, why_unreachable
from tidemill.kafka_client.settings import Address, connection_settings
from tidemill.kafka_client.who_answers import explain
from tidemill.protocols.kafka.protocol import PROTOCOL
from tidemill.protocols.kafka.settings import KafkaListener


async def test_a_client_learns_that_the_broker_sends_it_to_a_wrong_address() -> None:
    wrong = reserve_port()
    async with serving(KafkaListener(port=0, advertised_port=wrong)) as s:
        servers = f"127.0.0.1:{s.address[1]}"
        settings = connection_settings({"bootstrap.servers": servers}, "tests")
        found = await asyncio.to_thread(unreachable_names, settings, 3)
        assert found == (Address("127.0.0.1", wrong), "connection refused")
        said = await asyncio.to_thread(explain, servers, {})
        assert said is not None
        text, hint = said
        assert text == (
            f"the broker at {servers} sends clients to 127.0.0.1:{wrong}, where no broker answers: "
            "connection refused"
        )
        assert "kafka.advertised_host" in hint
        assert await asyncio.to_thread(explain, servers, {}, only_certain=True) is None
        assert PROTOCOL.advertised(s.server) == ("127.0.0.1", wrong)


@pytest.mark.parametrize("host", [None, "localhost"])
async def test_an_address_that_answers_is_right_whatever_its_name(host: str | None) -> None:
    async with serving(KafkaListener(port=0, advertised_host=host)) as s:
        servers = f"127.0.0.1:{s.address[1]}"
        settings = connection_settings({"bootstrap.servers": servers}, "tests")
        assert await asyncio.to_thread(unreachable_names, settings, 3) is None
        assert await asyncio.to_thread(explain, servers, {}) is None
        expected = None if host is None else (host, s.address[1])
        assert PROTOCOL.advertised(s.server) == expected


@pytest.mark.parametrize("host", ["nowhere.invalid", "a" * 70 + ".invalid", "a..b", ""])
def test_a_name_that_is_unknown_or_no_name_has_a_reason(host: str) -> None:
    assert why_unreachable(Address(host, reserve_port()), 1)


async def test_the_broker_warns_of_an_address_that_it_can_not_reach_at_any_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong, late = Address("wrong", 1), Address("late", 2)
    answers = {wrong: ["timed out"] * 3, late: ["name not known", ""]}
    monkeypatch.setattr(advertised, "why_unreachable", lambda address, _: answers[address].pop(0))
    with capture_logs() as logs:
        await advertised.check([("kafka", wrong), ("inside", late)], (0, 0, 0))
    (line,) = logs
    assert (line["event"], line["listener"]) == ("advertised.unreachable", "kafka")
    assert (line["address"], line["error"]) == ("wrong:1", "timed out")
    assert "advertised_host" in line["hint"]
    assert answers == {wrong: [], late: []}


def test_commands_warn_before_they_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Address("10.0.0.9", 9092), "timed out"
    monkeypatch.setattr(client, "unreachable_names", lambda *_: found)
    client.Cluster("here:9092").check_login()
    said = capsys.readouterr().err
    assert "the broker at here:9092 sends clients to 10.0.0.9:9092" in said
    assert "timed out" in said
    assert "kafka.advertised_host" in said
