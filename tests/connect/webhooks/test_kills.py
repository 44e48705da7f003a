"""Worker, broker and receiver are killed at random, while events are written and delivered."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.connect.webhooks.conftest import SECRET
from tests.support.broker_process import BrokerProcess
from tests.support.effort import chosen_seed, rounds
from tests.support.ports import reserve_port
from tests.support.processes import ServerProcess, accepts_connections, poll_until
from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import BoardWriter, create_topic
from tidemill.connect.webhooks.definition import parse
from tidemill.connect.webhooks.runner import MAX_UNWRITTEN
from tidemill.connect.webhooks.topics import WEBHOOKS

KILLS = rounds("WEBHOOK_KILLS", 10, 100)
KEYS, CONCURRENCY = 8, 8


class Writer(threading.Thread):
    """Writes numbered events until it is stopped. All are on disk when it has ended."""

    def __init__(self, servers: str, seed: int) -> None:
        super().__init__()
        self.stop = threading.Event()
        self.count = 0
        self._random = random.Random(seed)
        settings = {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 1}
        self._producer = Producer({**settings, "message.timeout.ms": 0, "log_level": 0})

    def run(self) -> None:
        while not self.stop.wait(self._random.random() * 0.01):
            key = self._random.randrange(KEYS)
            value = json.dumps({"number": self.count, "key": key})
            self._producer.produce("events", value, f"key{key}")
            self.count += 1
            self._producer.poll(0)
        assert self._producer.flush(120) == 0


class Receiver:
    """The receiver as a process, with the lines that it has written."""

    def __init__(self, folder: Path) -> None:
        self._port, self._file, self._log = reserve_port(), folder / "arrived", folder / "receiver"
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.support.receiver", str(self._port), str(self._file)]
        self._process = ServerProcess("receiver", command, self._log, forked=True)
        self._process.wait_until(lambda: accepts_connections("127.0.0.1", self._port), 30)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def arrived(self) -> list[tuple[str, int, int]]:
        """Return (id, key, number) of each request."""
        found = []
        for line in self._file.read_text().splitlines():
            request = json.loads(line)
            event = json.loads(request["body"])
            found.append((request["id"], event["key"], event["number"]))
        return found


class Worker:
    """``tidemill webhook run shop`` as a process."""

    def __init__(self, servers: str, folder: Path) -> None:
        self._command = [sys.executable, "-m", "tidemill", "webhook", "run", "shop", "-b", servers]
        self.log = folder / "worker.log"
        self._process: ServerProcess | None = None

    def start(self) -> None:
        env = {**os.environ, "WEBHOOK_SECRET": SECRET}
        self._process = ServerProcess("worker", self._command, self.log, env=env, forked=True)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def check(self) -> None:
        """Start it again if it ended: the broker was possibly not there when it started."""
        if self._process is not None and self._process.exit_code is not None:
            self.start()


@pytest.mark.crash
@pytest.mark.slow
def test_each_event_arrives_by_id_exactly_once_and_in_order_per_key(tmp_path: Path) -> None:
    seed = chosen_seed(7)
    print(f"CRASH_SEED={seed} WEBHOOK_KILLS={KILLS}")
    chance = random.Random(seed)
    receiver = Receiver(tmp_path)
    with BrokerProcess(tmp_path / "broker", settings={"webhooks.run": "false"}) as broker:
        kafka = Kafka(broker.bootstrap)
        kafka.create_topics("tests", {"events": (3, {})})
        create_topic(kafka, WEBHOOKS)
        board = BoardWriter(kafka, WEBHOOKS)
        board.define(
            parse(
                {
                    "name": "shop",
                    "topic": "events",
                    "url": receiver.url,
                    "secrets": ["${env:WEBHOOK_SECRET}"],
                    "start_at": "beginning",
                    "allow_private": True,
                    "concurrency": CONCURRENCY,
                    "retries_s": [0.3] * 50,
                }
            )
        )
        board.flush()
        worker, writer = Worker(broker.bootstrap, tmp_path), Writer(broker.bootstrap, seed)
        receiver.start()
        worker.start()
        writer.start()
        try:
            for _ in range(KILLS):
                time.sleep(chance.uniform(0.1, 0.9))  # the moment of a kill is random
                victim = chance.choice(["worker", "worker", "receiver", "broker"])
                match victim:
                    case "worker":
                        worker.kill()
                        worker.start()
                    case "receiver":
                        receiver.kill()
                        receiver.start()
                    case "broker":
                        broker.kill()
                        broker.start()
                worker.check()
            writer.stop.set()
            writer.join()
            assert writer.count > 10 * KILLS

            def complete() -> bool:
                worker.check()
                return len({number for _, _, number in receiver.arrived()}) == writer.count

            try:
                poll_until(complete, 90, "all events arrive", 0.1)
            except TimeoutError as error:
                raise AssertionError(f"{error}: {worker.log.read_text()[-4000:]}") from None
        finally:
            writer.stop.set()
            worker.kill()
            receiver.kill()
    repeated = check(receiver.arrived())
    assert repeated <= KILLS * (CONCURRENCY + MAX_UNWRITTEN)


def check(arrived: list[tuple[str, int, int]]) -> int:
    """Check what a receiver sees that leaves out ids that it has seen. Return how many it has."""
    first: dict[str, int] = {}
    in_order: dict[int, list[int]] = defaultdict(list)
    for message_id, key, number in arrived:
        if message_id in first:
            assert first[message_id] == number
            continue
        first[message_id] = number
        in_order[key].append(number)
    assert len(set(first.values())) == len(first)  # an event never has two ids
    for numbers in in_order.values():
        assert numbers == sorted(numbers)
    print(f"{len(first)} events, {len(arrived) - len(first)} repeated")
    return len(arrived) - len(first)
