"""Files that can't be opened, because too many are open: requests get errors, nothing is lost."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar, cast

import pytest

from tests.engine.support import produce, start, write
from tests.engine.transactions.support import cut_power
from tests.support.effort import rounds
from tests.support.faultyfs import FaultyFileSystem, Unlucky
from tests.support.logs import read_records
from tidemill.engine import flusher as flusher_module
from tidemill.engine import journaling as journaling_module
from tidemill.engine.api import NewTopic
from tidemill.engine.engine import Engine
from tidemill.errors import TidemillError
from tidemill.log.errors import TooManyOpenFilesError
from tidemill.log.names import TopicPartition
from tidemill.settings import Limits, Log

PARTITIONS = 12
CONFIGS = {"internal.segment.bytes": "2000"}


Method = TypeVar("Method", bound=Callable[..., Any])


def refusing(method: Method) -> Method:
    """Refuse a part of all calls of a method that opens a file."""

    def opened(fs: CrowdedFileSystem, path: str, *rest: Any, **named: Any) -> Any:
        if fs.rng.random() < fs.share:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return method(fs, path, *rest, **named)

    return cast(Method, opened)


class CrowdedFileSystem(FaultyFileSystem):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        self.share = 0.0

    open = refusing(FaultyFileSystem.open)
    read_bytes = refusing(FaultyFileSystem.read_bytes)
    write_bytes = refusing(FaultyFileSystem.write_bytes)
    write_atomic = refusing(FaultyFileSystem.write_atomic)
    sync_file = refusing(FaultyFileSystem.sync_file)
    sync_dir = refusing(FaultyFileSystem.sync_dir)
    sync_all = refusing(FaultyFileSystem.sync_all)


async def start_crowded(fs: FaultyFileSystem) -> Engine:
    log = Log(journal_bytes=1 << 20, sync_interval_ms=5, checkpoint_interval_ms=100)
    return await start(fs=fs, limits=Limits(open_files=16), log=log)


async def send(engine: Engine, topic: str, partition: int, value: bytes) -> bool:
    """Write a record with acks=all; return whether it was acknowledged."""
    (result,) = await produce(engine, write(topic, value, partition=partition))
    return isinstance(result, tuple)


@pytest.mark.parametrize("seed", range(rounds("REFUSED_OPENS", 4, 100)))
async def test_refused_opens_lose_nothing_acknowledged_and_stop_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (flusher_module, journaling_module):
        monkeypatch.setattr(module, "RETRY_S", 0.002)
    fs = CrowdedFileSystem(seed)
    engine = await start_crowded(fs)
    await engine.topics.create([NewTopic("t", PARTITIONS, configs=CONFIGS)])
    acknowledged: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    topics = ["t"]

    async def send_to(partition: int, number: int) -> None:
        topic = fs.rng.choice(topics)
        value = (b"%d" % number).ljust(fs.rng.choice([10, 300, 1500]))
        if await send(engine, topic, partition, value):
            acknowledged[topic, partition].append(value)

    async with asyncio.timeout(120):
        for number in range(40):
            fs.share = fs.rng.choice([0.0, 0.1, 0.5])
            if number % 10 == 5:
                new = NewTopic(f"n{number}", PARTITIONS, configs=CONFIGS)
                (answer,) = await engine.topics.create([new])
                if isinstance(answer, TidemillError):
                    assert isinstance(answer, TooManyOpenFilesError)
                else:
                    topics.append(f"n{number}")
            await asyncio.gather(*(send_to(n, number) for n in range(PARTITIONS)))
        fs.share = 0.0
        assert not engine.failed.done()
        assert not engine._store.offline
        for partition in range(PARTITIONS):
            assert await send(engine, "t", partition, b"last")
    await cut_power(engine, fs, Unlucky())
    fs.clear_faults()
    engine = await start_crowded(fs)
    assert not engine._store.offline
    for (topic, number), values in acknowledged.items():
        log = engine._store.get(TopicPartition(topic, number))
        assert {each.value for each in read_records(log)} >= set(values)
    await engine.stop()
