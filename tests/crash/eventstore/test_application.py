"""Process managers, projections and writers are killed, and so is the broker.

Afterwards all money is there, each transfer has ended once, and the projection is what the events
say.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.crash.eventstore.application import ACCOUNTS, CENTS
from tests.eventstore.app.bank import Balances, Bank, Deposited, TransferEnded, Withdrawn
from tests.eventstore.app.bank import events as codec
from tests.support.broker_process import BrokerProcess
from tests.support.effort import chosen_seed, rounds
from tests.support.processes import ServerProcess
from tidemill.eventstore.app import ProjectionRunner
from tidemill.eventstore.app.process import DECIDED
from tidemill.eventstore.app.projections.sqlite import SQLite
from tidemill.eventstore.events import Query
from tidemill.eventstore.store import Store

pytestmark = [pytest.mark.crash]

KILLS = rounds("CRASH_KILLS", 10, nightly=100)
ROLES = ["writer", "transfers", "transfers", "projection", "projection"]
BROKER_EVERY = 5
"""Every so many kills, the broker is killed instead."""


@dataclass
class Processes:
    """The processes of the bank, each started again when it was killed."""

    bootstrap: str
    topic: str
    folder: Path
    starts: int = 0
    running: dict[int, tuple[ServerProcess, Path]] = field(default_factory=dict)

    def start(self, place: int) -> None:
        self.starts += 1
        out = self.folder / f"out-{self.starts}"
        out.touch()
        given = [ROLES[place], self.bootstrap, self.topic, str(self.folder), str(self.starts)]
        process = ServerProcess(
            ROLES[place],
            ["python", "-m", "tests.crash.eventstore.application", *given],
            self.folder / f"log-{self.starts}",
            stdout_path=out,
            forked=True,
        )
        self.running[place] = process, out

    def wait_for(self, place: int, word: str) -> None:
        process, out = self.running[place]
        process.wait_until(lambda: word in out.read_text(), 120)

    def kill(self, place: int) -> None:
        self.running[place][0].kill()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process, _out in self.running.values():
            process.kill()


def test_what_is_killed_leaves_neither_money_nor_rows_wrong(tmp_path: Path) -> None:
    seed = chosen_seed(7)
    print(f"CRASH_SEED={seed}")
    chance = random.Random(seed)
    topic = "bank"
    with BrokerProcess(tmp_path / "broker") as broker:
        with Store(broker.bootstrap, topic, folder=tmp_path) as store:
            bank = Bank.over(store)
            for name in ACCOUNTS:
                bank.fund(name, CENTS)
        with Processes(broker.bootstrap, topic, tmp_path) as processes:
            for place in range(len(ROLES)):
                processes.start(place)
            processes.wait_for(1, "done")
            for kill in range(1, KILLS + 1):
                if kill % BROKER_EVERY == 0:
                    for place in range(len(ROLES)):  # a start without a broker is an error
                        processes.wait_for(place, "ready")
                    broker.kill()
                    broker.start()
                    continue
                place = chance.randrange(len(ROLES))
                processes.wait_for(place, "ready")
                time.sleep(chance.random() * 0.1)  # the moment of the kill
                processes.kill(place)
                processes.start(place)
            for place in range(len(ROLES)):
                processes.wait_for(place, "done")
        check(broker.bootstrap, topic, tmp_path)


def check(bootstrap: str, topic: str, folder: Path) -> None:
    """Finish the work in this process, and compare everything with the events."""
    with Store(bootstrap, topic, folder=folder) as store:
        bank = Bank.over(store)
        worker = bank.worker()
        while worker.step():
            pass
        balances, moves = Counter[str](), Counter[str]()
        for stored in store.read_all(queries=[Query(types=codec.names([Deposited, Withdrawn]))]):
            event = codec.decode(stored)
            balances[stored.stream] += event.cents * (1 if isinstance(event, Deposited) else -1)
            moves[stored.stream] += 1
        assert sum(balances.values()) == CENTS * len(ACCOUNTS)
        assert min(balances.values()) >= 0
        ids = bank.transfers.ids()
        stages = Counter(bank.transfers.load(each).state.stage for each in ids)
        assert set(stages) <= {"done", "failed"}, stages
        assert stages["done"] > 0
        ended = list(store.read_all(queries=[Query(types=codec.names([TransferEnded]))]))
        assert len(ended) == len(ids) == len({each.stream for each in ended})
        decided = list(store.read_all(queries=[Query(types=frozenset({DECIDED}))]))
        causes = {tag for each in decided for tag in each.tags if tag.startswith("cause:")}
        assert len(causes) == len(decided)
        expected = [(name, balances[name], moves[name]) for name in sorted(balances)]
        database = SQLite(folder / "bank.db")
        runner = ProjectionRunner(store, codec, Balances(), database)
        runner.catch_up()
        assert rows(database) == expected
        runner.rebuild()
        assert rows(database) == expected
        database.close()


def rows(database: SQLite) -> list[tuple[object, ...]]:
    with database.transaction() as db:
        return db.run("SELECT account, cents, moves FROM balance ORDER BY account")
