"""One process of a bank that is killed: a writer, a worker of transfers, or a projection.

Run as ``python -m tests.crash.eventstore.application ROLE SERVERS TOPIC FOLDER NUMBER``. It writes
a line to stdout when it is at work, and another for each thing that it has done.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.eventstore.app.bank import Balances, Bank
from tests.eventstore.app.bank import events as codec
from tidemill.errors import UnreachableError
from tidemill.eventstore.app import ProjectionRunner
from tidemill.eventstore.app.projections.sqlite import SQLite
from tidemill.eventstore.errors import OutcomeUnknownError
from tidemill.eventstore.store import Store

ACCOUNTS = [f"a{number}" for number in range(5)]
CENTS = 10_000
TRANSFERS = 30
"""Requested by one process."""


def note(word: str) -> None:
    os.write(1, f"{word}\n".encode())


def write(bank: Bank, number: int) -> Iterator[None]:
    """Request transfers. Each is requested twice, as by a user who clicks again."""
    chance = random.Random(number)
    for _ in range(TRANSFERS):
        source, target = chance.sample([*ACCOUNTS, "not open"], 2)
        cents = chance.choice([1, 50, CENTS // 2])
        id_ = str(uuid.UUID(int=chance.getrandbits(128), version=4))
        for _ in range(2):
            bank.transfers.execute(
                id_,
                lambda it, s=source, t=target, c=cents: it.request(s, t, c),  # type: ignore[misc]
                command_id="request",
            )
        yield
    while True:
        next(bank.store.follow(after=bank.store.position(), wait_s=1), None)


def transfer(bank: Bank, _: int) -> Iterator[None]:
    """Carry out transfers."""
    worker = bank.worker(checkpoint_every=50)
    while True:
        if worker.step(0.05, lambda: True):
            yield


def project(bank: Bank, folder: Path, number: int) -> Iterator[None]:
    """Follow the store with a projection; every other process begins with a rebuild."""
    runner = ProjectionRunner(bank.store, codec, Balances(), SQLite(folder / "bank.db"))
    if number % 2:
        runner.rebuild()
    position = -1
    while True:
        position, before = runner.catch_up(), position
        if position != before:
            yield
        else:
            next(bank.store.follow(after=position, wait_s=0.05), None)


def main() -> None:
    role, servers, topic, place, number = sys.argv[1:]
    folder = Path(place)
    with Store(servers, topic, folder=folder) as store:
        bank = Bank.over(store)
        note("ready")
        while True:
            # The broker is killed, too: what was under way is done again.
            work = {
                "writer": lambda: write(bank, int(number)),
                "transfers": lambda: transfer(bank, int(number)),
                "projection": lambda: project(bank, folder, int(number)),
            }[role]()
            with contextlib.suppress(OutcomeUnknownError, UnreachableError):
                for _ in work:
                    note("done")


if __name__ == "__main__":
    main()
