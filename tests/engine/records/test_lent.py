"""Reads that return ranges of files, which the server sends without reading them."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.support import produce, query, running, write
from tidemill import system
from tidemill.engine.api import Isolation, ReadQuery, ReadResult
from tidemill.engine.engine import Engine
from tidemill.log.disk.slice import LENT_BYTES
from tidemill.log.errors import StorageError
from tidemill.log.names import TopicPartition

pytestmark = [
    pytest.mark.disk,
    pytest.mark.skipif(not system.can_send_files(), reason="sendfile or cachestat is missing"),
]

VALUE = os.urandom(1000)


@pytest.fixture
def engine(real_engine: Engine) -> Engine:
    return real_engine


def lending(*parts: tuple[str, int, int]) -> ReadQuery:
    return replace(query(*parts), lends=True)


async def fill(engine: Engine) -> None:
    await engine.topics.ensure("t")
    await produce(engine, *[write("t", *[VALUE] * 10) for _ in range(20)])


async def read(engine: Engine, asked: ReadQuery) -> ReadResult:
    (result,) = await engine.records.read(asked)
    assert result.error is None
    return result


def content(result: ReadResult) -> bytes:
    assert result.lent is not None
    assert result.records == b""
    return os.pread(result.lent.fd, len(result.lent), result.lent.position)


async def test_a_long_range_is_lent_where_the_query_allows_it(engine: Engine) -> None:
    await fill(engine)
    for offset in (0, 55):
        lent = await read(engine, lending(("t", 0, offset)))
        loaded = await read(engine, query(("t", 0, offset)))
        assert loaded.lent is None
        assert len(loaded.records) >= LENT_BYTES
        assert content(lent) == loaded.records
    short = await read(engine, lending(("t", 0, 190)))
    assert short.lent is None
    assert 0 < len(short.records) < LENT_BYTES


async def test_bytes_of_an_earlier_process_are_verified_before_they_are_lent(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as engine:
        await fill(engine)
    async with running(tmp_path) as engine:
        first = await read(engine, lending(("t", 0, 0)))
        second = await read(engine, lending(("t", 0, 0)))
        assert first.lent is None
        assert content(second) == first.records


async def test_a_range_that_is_not_in_the_page_cache_is_read_by_a_thread_and_then_lent(
    engine: Engine,
) -> None:
    await fill(engine)
    expected = (await read(engine, query(("t", 0, 0)))).records
    log = engine._store.partitions[TopicPartition("t", 0)]
    file = log.chain.active.file
    file.datasync()
    fd = os.open(file.path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    is_cached = system.is_cached(fd, 0, len(expected))
    os.close(fd)
    if is_cached:
        pytest.skip("the file system keeps all pages")
    lent = await read(engine, lending(("t", 0, 0)))
    assert content(lent) == expected


async def test_a_file_that_can_not_be_read_is_an_error_of_its_partition(
    monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    await fill(engine)
    monkeypatch.setattr(system, "is_cached", lambda *_: False)
    monkeypatch.setattr(system, "fill_cache", fail)
    monkeypatch.setattr(system, "read_cached", fail)
    (result,) = await engine.records.read(lending(("t", 0, 0)))
    assert isinstance(result.error, StorageError)
    assert result.lent is None


async def test_a_reader_that_waits_for_many_bytes_does_not_wait_for_a_batch_that_is_cut(
    engine: Engine,
) -> None:
    await fill(engine)
    asked = lending(("t", 0, 0))
    asked.partitions[0].max_bytes = asked.min_bytes = 100_000
    asked.max_wait_ms = 600_000
    async with asyncio.timeout(120):
        got = await read(engine, asked)
    assert got.lent is not None
    assert 80_000 < len(got.lent) < 100_000


async def test_files_stay_open_while_they_are_lent_and_few_are(engine: Engine) -> None:
    await fill(engine)
    log = engine._store.partitions[TopicPartition("t", 0)]
    pool = log.chain.active.file._pool
    expected = (await read(engine, query(("t", 0, 0)))).records
    lent = await read(engine, lending(("t", 0, 0)))
    pool.limit = 4  # one range
    assert (await read(engine, lending(("t", 0, 0)))).lent is None
    await engine.topics.delete(["t"])
    assert content(lent) == expected
    lent.lent = None
    assert pool.lent == 0


async def test_a_reader_of_committed_records_gets_no_range_if_transactions_were_aborted(
    monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    await fill(engine)
    asked = lending(("t", 0, 0))
    asked.isolation = Isolation.READ_COMMITTED
    assert (await read(engine, asked)).lent is not None
    log = engine._store.partitions[TopicPartition("t", 0)]
    monkeypatch.setattr(type(log), "has_aborted_transactions", True)
    assert (await read(engine, asked)).lent is None
    asked.isolation = Isolation.READ_UNCOMMITTED
    assert (await read(engine, asked)).lent is not None
