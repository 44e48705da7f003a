"""Brokers on damaged data folders: they start or refuse, and every loss is reported.

The catalog, the committed offsets and the transactional ids are compared with what was stored.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import islice

import pytest

from tests.engine.support import start
from tests.engine.transactions.support import Producer, kill
from tests.log.damage.world import read_all
from tests.support.damage import Files, damages, give_files, kind_of, take_files
from tests.support.effort import rounds
from tests.support.faultyfs import FaultyFileSystem
from tidemill.engine.api import CommitRequest, NewTopic, OffsetToCommit
from tidemill.engine.engine import Engine
from tidemill.errors import TidemillError
from tidemill.log.errors import StorageError

FOLDER = "/data"
CASES = rounds("DAMAGE_CASES", 80, 5_000)
SEED = rounds("DAMAGE_SEED", 1, 1)

TOPICS = {"a": 2, "b": 1, "c": 1}
GROUPS = [f"g{number}" for number in range(8)]
IDS = ["x", "y", "z"]


@dataclass
class State:
    """What a broker knows."""

    topics: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    values: dict[str, list[bytes | None]] = field(default_factory=dict)


@dataclass
class World:
    files: Files
    state: State


def _state(engine: Engine) -> tuple[State, set[str]]:
    """Return the state, and the partitions of topics that can't be read."""
    state, unreadable = State(), set()
    catalog = engine._topic_admin.catalog
    for topic in catalog.topics():
        state.topics[topic.name] = (topic.partitions, catalog.config_of(topic.name))
    for group in GROUPS:
        for found in engine.groups.committed(group, None).values():
            state.offsets[group] = getattr(found, "offset", -1)
    for listing in engine.transactions.listings():
        state.ids[listing.transactional_id] = str(listing.producer_id)
    for name, partitions in TOPICS.items():
        for number in range(partitions):
            try:
                log = engine._partitions.log(name, number)
                state.values[str(log.tp)] = [value for _, value, _ in read_all(log).values()]
            except TidemillError as error:
                if FOLDER not in str(error):
                    raise
                unreadable.add(f"{name}-{number}")
    return state, unreadable


async def _make(*, clean: bool) -> World:
    fs = FaultyFileSystem()
    engine = await start(fs=fs)
    new = [NewTopic(name, count) for name, count in TOPICS.items()]
    await engine.topics.create(new)
    producers: dict[str, Producer] = {}
    for turn in range(6):
        for name in IDS:
            producer = producers.get(name)
            if producer is None:
                producer = producers[name] = await Producer(engine, name).init()
            await producer.send("a", b"%s %d" % (name.encode(), turn))
            await producer.end(commit=turn % 3 != 0)
        for number, group in enumerate(GROUPS):
            offset = OffsetToCommit("a", number % 2, turn * 10 + number, -1, "")
            await engine.groups.commit(CommitRequest(group, -1, "", None, (offset,)))
        if turn == 3:
            await engine._housekeeping.checkpoint()
            await engine._housekeeping.checkpoint()
    # What is above the recovery point when a broker is killed has no second witness.
    await engine._housekeeping.checkpoint()
    await engine._housekeeping.checkpoint()
    state, unreadable = _state(engine)
    assert not unreadable
    assert (set(state.offsets), set(state.ids)) == (set(GROUPS), set(IDS))
    if clean:
        await engine.stop()
    files = take_files(fs, FOLDER)
    if not clean:
        await kill(engine, fs)
    return World(files, state)


@pytest.fixture(scope="module", params=[True, False], ids=["clean stop", "kill"])
def world(request: pytest.FixtureRequest) -> World:
    return asyncio.run(_make(clean=request.param))


async def _check(world: World, files: Files) -> list[str]:
    fs = give_files(files)
    try:
        engine = await start(fs=fs)
    except TidemillError as error:
        return [] if FOLDER in str(error) else [f"no place: {error}"]
    try:
        state, unreadable = _state(engine)
        store = engine._store
        told = {each.path for each in store.reports} | {str(e) for e in store.offline.values()}
        told_of = "\n".join(f"{each}/" for each in told)
        problems = []
        if state.topics != world.state.topics and "__tidemill_catalog" not in told_of:
            problems.append(f"topics {state.topics}")
        if state.offsets != world.state.offsets and "__consumer_offsets" not in told_of:
            problems.append(f"offsets {state.offsets}, not {world.state.offsets}")
        if state.ids != world.state.ids and "__transaction_state" not in told_of:
            problems.append(f"ids {state.ids}, not {world.state.ids}")
        for name, values in world.state.values.items():
            if name in unreadable or state.values.get(name) == values:
                continue
            if f"/{name}/" not in told_of:
                problems.append(f"{name} has {state.values.get(name)}, not {values}")
        return problems
    finally:
        try:
            await engine.stop()
        except StorageError as error:
            if FOLDER not in str(error):
                raise


def test_an_undamaged_folder_has_no_problem(world: World) -> None:
    assert asyncio.run(_check(world, world.files)) == []


def test_a_broker_starts_or_refuses_and_tells_every_loss(world: World) -> None:
    failures = []
    for files, victim, done in islice(damages(world.files, SEED), CASES):
        if kind_of(victim) == ".log" and ("copy of" in done or "exchanged" in done):
            continue  # a log has no mark of its partition: after a kill, nothing shows this
        try:
            problems = asyncio.run(_check(world, files))
        except Exception as error:
            problems = [f"{type(error).__name__}: {error}"]
        if problems:
            failures.append(f"{done}:\n    " + "\n    ".join(problems[:3]))
    assert not failures, f"{len(failures)} of {CASES}\n" + "\n".join(failures[:25])
