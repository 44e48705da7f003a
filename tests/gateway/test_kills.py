"""kill -9 of gateway and broker: no acknowledged record is lost, and a retry is stored once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.gateway.test_posting import stored
from tests.support.broker_process import BrokerProcess
from tests.support.effort import rounds
from tests.support.gateway_process import GatewayProcess
from tidemill.confluent.clients import Kafka

pytestmark = pytest.mark.crash

KILLS = rounds("GATEWAY_KILLS", 10, 100)
CLIENTS, LIST = 6, 3
Victim = BrokerProcess | GatewayProcess
VICTIMS: list[Callable[[GatewayProcess, BrokerProcess], list[Victim]]] = [
    lambda gateway, broker: [gateway],
    lambda gateway, broker: [broker],
    lambda gateway, broker: [gateway, broker],
]


class Poster:
    """Posts lists, each with a key, until each of them is acknowledged."""

    def __init__(self, url: str, topic: str, number: int, stop: threading.Event) -> None:
        self.acknowledged: dict[str, tuple[int, int]] = {}
        self.sent: list[str] = []
        self.retries = 0
        self.errors: list[str] = []
        self._url, self._topic, self._name, self._stop = url, topic, f"c{number}", stop
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30, trust_env=False) as client:
            count = 0
            while not self._stop.is_set():
                values = [f"{self._name}-{count}-{n}" for n in range(LIST)]
                count += 1
                self.sent += values
                self._post(client, values)

    def _post(self, client: httpx.Client, values: list[str]) -> None:
        body = {"records": [{"value": value} for value in values]}
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                answer = client.post(
                    f"/topics/{self._topic}", json=body, headers={"idempotency-key": values[0]}
                )
            except httpx.TransportError:  # the gateway was killed
                self.retries += 1
                time.sleep(0.05)
                continue
            if answer.status_code == 200:
                for value, each in zip(values, answer.json()["records"], strict=True):
                    self.acknowledged[value] = each["partition"], each["offset"]
                return
            if answer.status_code != 503:
                self.errors.append(answer.text)
                return
            self.retries += 1
            time.sleep(0.05)
        self.errors.append(f"never acknowledged: {values}")


def await_more(posters: list[Poster], more: int) -> None:
    """Wait until so many more records are acknowledged."""
    wanted = sum(len(poster.acknowledged) for poster in posters) + more
    deadline = time.monotonic() + 120
    while sum(len(poster.acknowledged) for poster in posters) < wanted:
        assert time.monotonic() < deadline, [poster.errors for poster in posters]
        time.sleep(0.002)


@pytest.mark.disk
def test_no_acknowledged_record_is_lost_or_doubled_over_kills(tmp_path: Path) -> None:
    chance = random.Random(3)
    with (
        BrokerProcess(tmp_path / "broker") as broker,
        GatewayProcess(tmp_path / "gateway", broker.bootstrap) as gateway,
    ):
        kafka = Kafka(broker.bootstrap)
        kafka.create_topics("tests", {"events": (3, {})})
        stop = threading.Event()
        posters = [Poster(gateway.url, "events", n, stop) for n in range(CLIENTS)]
        for number in range(KILLS):
            await_more(posters, chance.randrange(30))
            victims = VICTIMS[number % 3](gateway, broker)
            for victim in victims:
                victim.kill()
            for victim in reversed(victims):
                victim.start()
        await_more(posters, 30)
        stop.set()
        for poster in posters:
            poster.thread.join(180)
        found = stored(kafka, "events")
        assert "gateway.failed" not in gateway.log()
    assert [poster.errors for poster in posters] == [[]] * CLIENTS
    values = [(value or b"").decode() for _, _, _, value, _ in found]
    assert sorted(values) == sorted(value for poster in posters for value in poster.sent)
    places = {(value or b"").decode(): (number, offset) for number, offset, _, value, _ in found}
    for poster in posters:
        assert poster.acknowledged.items() <= places.items()
    assert sum(poster.retries for poster in posters) > 0


def test_a_broker_that_is_down_is_said_and_found_again(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "broker") as broker,
        GatewayProcess(tmp_path / "gateway", broker.bootstrap) as gateway,
        httpx.Client(base_url=gateway.url, timeout=60, trust_env=False) as client,
    ):
        Kafka(broker.bootstrap).create_topics("tests", {"events": (1, {})})
        assert client.post("/topics/events", json={"value": 1}).status_code == 200
        broker.kill()
        with ThreadPoolExecutor(3) as threads:
            paths = ("/topics", "/topics/events/partitions/0", "/groups")
            for answer in threads.map(client.get, paths):
                assert (answer.status_code, answer.json()["error"]) == (503, "unavailable")
                assert answer.headers["retry-after"] == "1"
        broker.start()
        deadline = time.monotonic() + 60
        while client.get("/topics/events/partitions/0").status_code != 200:
            assert time.monotonic() < deadline
        assert gateway.terminate() == 0
