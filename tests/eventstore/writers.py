"""A process whose threads write to a store that others write to, too.

Run as ``python -m tests.eventstore.writers SERVERS TOPIC NAME SEED COUNT THREADS PROCESSES
[FOLDER]``, with the number of processes that wait for each other and the folder of the index. Each
line on stdout is a JSON object: what was accepted, then the head behind what all have written.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import uuid

from tidemill.errors import UnreachableError
from tidemill.eventstore.errors import ConflictError, OutcomeUnknownError
from tidemill.eventstore.events import (
    ANY,
    Appended,
    Condition,
    NewEvent,
    Query,
    StreamAppend,
    Version,
)
from tidemill.eventstore.store import Store

STREAMS = [f"account-{number}" for number in range(4)]


def note(**fields: object) -> None:
    os.write(1, (json.dumps(fields) + "\n").encode())


def write(store: Store, name: str, chance: random.Random, count: int) -> None:
    """Append until so many commits were accepted."""
    accepted = 0
    while accepted < count:
        appends = []
        for stream in chance.sample(STREAMS, chance.choice([1, 1, 1, 2])):
            known = store.version(stream)
            expected: Version = ANY if chance.random() < 0.25 else known
            events = tuple(
                NewEvent(
                    "moved",
                    f"{name} {accepted}".encode(),
                    uuid.UUID(int=chance.getrandbits(128), version=4),
                    tags=frozenset({f"lot:{chance.randrange(20)}"}),
                )
                for _ in range(chance.choice([1, 1, 3]))
            )
            appends.append(StreamAppend(stream, events, expected))
        conditions = []
        if chance.random() < 0.3:
            wanted = Query(tags=frozenset({f"lot:{chance.randrange(20)}"}))
            conditions.append(Condition((wanted,), store.position()))
        outcome = until_known(store, appends, conditions)
        if outcome is not None:
            note(
                positions=[outcome.positions.start, outcome.positions.stop],
                ids=[str(event.id) for each in appends for event in each.events],
                versions=dict(outcome.versions),
            )
            accepted += 1


def until_known(
    store: Store, appends: list[StreamAppend], conditions: list[Condition]
) -> Appended | None:
    """Commit; as long as the outcome is not known, commit again. Return None after a conflict."""
    while True:
        try:
            return store.commit(appends, conditions=conditions)
        except ConflictError:
            return None
        except (OutcomeUnknownError, UnreachableError):
            continue


def opened(servers: str, topic: str, folder: str | None) -> Store:
    """Open a store as soon as the broker is there."""
    while True:
        try:
            return Store(servers, topic, folder=folder)
        except UnreachableError:
            continue


def meet(store: Store, place: str, processes: int) -> None:
    """Wait until all processes are here."""
    store.append(place, [NewEvent("here")])
    for _, _ in zip(range(processes), store.follow(category=place), strict=False):
        pass


def main(
    servers: str,
    topic: str,
    name: str,
    seed: int,
    count: int,
    threads: int,
    processes: int,
    folder: str | None = None,
) -> None:
    with opened(servers, topic, folder) as store:
        meet(store, "ready", processes)
        writing = [
            threading.Thread(target=write, args=(store, name, random.Random(seed + each), count))
            for each in range(threads)
        ]
        for thread in writing:
            thread.start()
        for thread in writing:
            thread.join()
        meet(store, "done", processes)
        store.catch_up()
        head = store.head()
        note(head=[head.position, head.hash.hex()])


if __name__ == "__main__":
    servers, topic, name, seed, count, threads, processes, *folder = sys.argv[1:]
    main(servers, topic, name, int(seed), int(count), int(threads), int(processes), *folder)
