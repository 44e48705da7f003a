"""Kills of gateway and broker at random: each acknowledged delivery is stored, and each id once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.gateway.hooks.conftest import write_settings
from tests.gateway.hooks.test_writer import stored
from tests.support.broker_process import BrokerProcess
from tests.support.effort import IS_NIGHTLY, rounds
from tests.support.gateway_process import GatewayProcess
from tests.support.ports import reserve_port
from tidemill.confluent.clients import Kafka

pytestmark = pytest.mark.crash

SENDERS = 4
PATIENCE_S = 120
HOOKS = """
[hooks]
port = {port}
[[hook]]
name = "kills"
topic = "kills"
partitions = 2
verifier = "none"
key = "header:x-key"
delivery_id = "header:x-id"
timeout_s = 5
"""


class Sender(threading.Thread):
    """Sends deliveries one after the other. Each is repeated until it is answered with 200."""

    def __init__(self, number: int, url: str) -> None:
        super().__init__(daemon=True)
        self._number = number
        self._url = url
        self.acknowledged: list[str] = []
        self.attempts = 0
        self.statuses: Counter[int] = Counter()
        self.stopping = threading.Event()

    def run(self) -> None:
        with httpx.Client(timeout=20, trust_env=False) as client:
            while not self.stopping.is_set():
                self._deliver(client, f"{self._number}-{len(self.acknowledged)}")

    def _deliver(self, client: httpx.Client, id_: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.attempts += 1
            headers = {"x-id": id_, "x-key": str(self._number)}
            try:
                answer = client.post(self._url, content=id_, headers=headers)
            except httpx.TransportError:
                time.sleep(0.02)  # nothing listens: the gateway starts again
                continue
            self.statuses[answer.status_code] += 1
            if answer.status_code == 200:
                self.acknowledged.append(id_)
                return
        raise AssertionError(f"{id_} was not accepted within {PATIENCE_S} s")


def test_each_delivery_is_stored_once_when_gateway_and_broker_are_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        check_kills(tmp_path, broker.bootstrap, broker, rounds("HOOK_KILLS", 10, 100))


def check_kills(folder: Path, bootstrap: str, broker: BrokerProcess | None, kills: int) -> None:
    """Kill a gateway, and a broker if one is given, while deliveries arrive; then look at them."""
    seed = random.randrange(2**32) if IS_NIGHTLY else 31
    chance = random.Random(seed)
    port = reserve_port()
    file = write_settings(folder, port, HOOKS)
    with GatewayProcess(folder / "gateway", bootstrap, config=file) as gateway:
        senders = [Sender(n, f"http://127.0.0.1:{port}/hooks/kills") for n in range(SENDERS)]
        for sender in senders:
            sender.start()
        for _ in range(kills):
            _await_more(senders, chance.randrange(40))
            choices: list[list[GatewayProcess | BrokerProcess]] = [[gateway]]
            if broker is not None:
                choices = [[gateway], [gateway], [broker], [gateway, broker]]
            for victim in chance.choice(choices):
                victim.kill()
                victim.start()
        _await_more(senders, 20)
        for sender in senders:
            sender.stopping.set()
        for sender in senders:
            sender.join(PATIENCE_S)
            assert not sender.is_alive()
    values = [each.value() or b"" for each in stored(Kafka(bootstrap), "kills")]
    found = Counter(value.decode() for value in values)
    acknowledged = {id_ for sender in senders for id_ in sender.acknowledged}
    assert acknowledged <= found.keys(), f"lost with seed {seed}: {acknowledged - found.keys()}"
    twice = [id_ for id_, count in found.items() if count > 1]
    assert not twice, f"stored twice with seed {seed}: {twice}"
    assert found.keys() == acknowledged
    statuses = sum((sender.statuses for sender in senders), Counter[int]())
    assert statuses.keys() <= {200, 503}, statuses
    assert sum(sender.attempts for sender in senders) > len(acknowledged)


def _await_more(senders: list[Sender], more: int) -> None:
    """Wait until so many more deliveries are acknowledged."""
    wanted = sum(len(sender.acknowledged) for sender in senders) + more
    deadline = time.monotonic() + PATIENCE_S
    while sum(len(sender.acknowledged) for sender in senders) < wanted:
        assert time.monotonic() < deadline, "no delivery is acknowledged any more"
        time.sleep(0.002)
