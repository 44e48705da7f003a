"""Writers and the broker of an event store are killed while they work.

Nothing that a writer knew to be stored is lost, doubled or out of order, and all indexes are equal:
those that killed processes wrote, and one that is built from the log.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.eventstore.test_races import model_of
from tests.support import effort
from tests.support.broker_process import BrokerProcess
from tests.support.processes import ServerProcess, poll_until
from tidemill.confluent.clients import Kafka
from tidemill.eventstore.store import Store

TOPIC = "accounts"
WRITERS = 3


class Writers:
    """Processes that write without end. Two share an index, the third has its own."""

    def __init__(self, folder: Path, broker: BrokerProcess) -> None:
        self._folder = folder
        self._broker = broker
        self._starts = 0
        self._running: dict[int, ServerProcess] = {}

    def index(self, number: int) -> Path:
        return self._folder / f"index-{number % 2}"

    def start(self, number: int) -> None:
        self._starts += 1
        out = self._folder / f"out-{self._starts}"
        self._running[number] = ServerProcess(
            f"writer {self._starts}",
            [
                *(sys.executable, "-m", "tests.eventstore.writers"),
                *(self._broker.bootstrap, TOPIC, f"w{self._starts}", str(self._starts * 1000)),
                *("1000000", "2", "0", str(self.index(number))),
            ],
            self._folder / f"log-{self._starts}",
            stdout_path=out,
            cwd=Path.cwd(),
            forked=True,
        )

    def kill(self, number: int) -> None:
        process = self._running.pop(number)
        assert process.exit_code is None, process.output()
        process.kill()

    def kill_all(self) -> None:
        for number in list(self._running):
            self.kill(number)

    def accepted(self) -> Iterator[dict[str, Any]]:
        """Yield what writers knew to be stored. The last line of one can be cut."""
        for number in range(1, self._starts + 1):
            text = (self._folder / f"out-{number}").read_text()
            for line in text.splitlines(keepends=True):
                if line.endswith("\n"):
                    yield json.loads(line)


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_nothing_is_lost_when_writers_and_the_broker_are_killed(tmp_path: Path) -> None:
    kills = effort.rounds("EVENTSTORE_KILLS", 20, 200)
    chance = random.Random(effort.chosen_seed(33))
    with BrokerProcess(tmp_path / "broker") as broker:
        kafka = Kafka(broker.bootstrap)
        with contextlib.closing(Store(kafka, TOPIC, folder=tmp_path / "index-0")):
            writers = Writers(tmp_path, broker)
            for number in range(WRITERS):
                writers.start(number)
        known = 0

        def is_working() -> bool:
            return sum(1 for _ in writers.accepted()) > known

        for _ in range(kills):
            known = sum(1 for _ in writers.accepted())
            poll_until(is_working, 60, "something is written")
            if chance.random() < 0.25:
                broker.kill()
                broker.start()
            else:
                number = chance.randrange(WRITERS)
                writers.kill(number)
                writers.start(number)
        poll_until(is_working, 60, "something is written")
        writers.kill_all()
        check(kafka, writers, tmp_path)


def check(kafka: Kafka, writers: Writers, folder: Path) -> None:
    model, _ = model_of(kafka, TOPIC)
    contents, heads = [], []
    for index in (writers.index(0), writers.index(1), folder / "rebuilt"):
        with Store(kafka, TOPIC, folder=index) as store:
            heads.append(store.head())
        with Store(kafka, TOPIC, folder=index) as store:  # all is in the index now
            assert not store._state.steps
            contents.append(list(store.read_all()))
            for event in contents[-1][-50:]:
                place = store._state.places([event.id.bytes])[event.id.bytes]
                assert (place.position, place.version) == (event.position, event.version)
    assert heads[0] == heads[1] == heads[2]
    assert contents[0] == contents[1] == contents[2]
    events = contents[0]
    assert [(each.stream, each.id) for each in events] == [
        (stream, event.id) for stream, event in model.events
    ]
    assert len({each.id for each in events}) == len(events)
    versions: dict[str, int] = {}
    for event in events:
        versions[event.stream] = versions.get(event.stream, 0) + 1
        assert event.version == versions[event.stream]
    accepted = list(writers.accepted())
    assert len(accepted) > 20
    for each in accepted:
        found = events[each["positions"][0] - 1 : each["positions"][1] - 1]
        assert [str(event.id) for event in found] == each["ids"]
