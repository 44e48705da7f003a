"""Measures the rule for what goes through the journal: its cost and that of a sync per segment.

A round writes as many bytes to each of some files, and makes them durable: with an entry of the
journal, as the broker writes it, or with an fdatasync of each file on as many threads as the broker
has for that. Both write the files first, as an append does. The journal's way leaves the sync of
the files for later, which this does not measure.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench.compare import Comparison, Figures
from bench.report import Section
from bench.run import Run, percentile
from tidemill.clock import SystemClock
from tidemill.engine.flusher import SYNC_THREADS
from tidemill.engine.threads.entries import EntryWriter
from tidemill.engine.threads.worker import Worker
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import RealFileSystem
from tidemill.log.disk.index import MapCache
from tidemill.log.disk.log_file import HandlePool
from tidemill.log.journal.entry import Piece
from tidemill.log.journal.journal import LOG_BYTES, Journal

ROUNDS, QUICK_ROUNDS = 200, 60
FILE_LIMIT = 32 << 20
"""Bytes at which a segment is written from its beginning again."""
CASES = [(1, size << 10) for size in (1, 16, 64, 256, 1024)]
CASES += [(12, size << 10) for size in (1, 16, 64, 256)]
CASES += [(100, 1 << 10), (100, 16 << 10)]

FIGURES = ("p50 ms", "CPU µs")


def section(run: Run) -> Section:
    """Measure some numbers of partitions and sizes."""
    compared = Comparison(
        run,
        "The journal, and a sync per segment",
        FIGURES,
        about=("partitions", "KB each", "rule"),
        base="segments",
        by=FIGURES,
        note="CPU: of a round. Rule: how the broker makes so many unsynced bytes durable.",
    )
    rounds = QUICK_ROUNDS if run.options.quick else ROUNDS
    for number, (partitions, size) in enumerate(CASES):
        folder = run.options.folder / f"sync-rule-{number}"
        folder.mkdir()
        rule = "journal" if size <= LOG_BYTES else "segments"
        ways = {
            "journal": partial(_by_journal, folder, partitions, size, rounds),
            "segments": partial(_by_segments, folder, partitions, size, rounds),
        }
        compared.measure([partitions, size / 1024, rule], ways, max(2, run.options.rounds))
    return Section("sync-rule", [compared.table()])


def _figures(seconds: Sequence[float], spent: float) -> Figures:
    return {"p50 ms": percentile(seconds, 50) * 1e3, "CPU µs": spent / len(seconds) * 1e6}


def _open(folder: Path, partitions: int) -> list[int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    return [os.open(folder / f"{n}.log", flags, 0o600) for n in range(partitions)]


def _write(files: Sequence[int], data: bytes, round_: int) -> None:
    position = round_ * len(data) % FILE_LIMIT
    for file in files:
        os.pwrite(file, data, position)


def _by_segments(folder: Path, partitions: int, size: int, rounds: int) -> Figures:
    files, data, seconds = _open(folder, partitions), os.urandom(size), []
    share = -(-partitions // SYNC_THREADS)
    groups = [files[at : at + share] for at in range(0, partitions, share)]

    def sync(group: Sequence[int]) -> None:
        for file in group:
            os.fdatasync(file)

    with ThreadPoolExecutor(SYNC_THREADS) as pool:
        spent = time.process_time()
        for round_ in range(rounds):
            began = time.perf_counter()
            _write(files, data, round_)
            list(pool.map(sync, groups))
            seconds.append(time.perf_counter() - began)
        spent = time.process_time() - spent
    for file in files:
        os.close(file)
    return _figures(seconds, spent)


def _by_journal(folder: Path, partitions: int, size: int, rounds: int) -> Figures:
    return asyncio.run(_journal_rounds(folder, partitions, size, rounds))


async def _journal_rounds(folder: Path, partitions: int, size: int, rounds: int) -> Figures:
    files, data, seconds = _open(folder, partitions), os.urandom(size), []
    fs = RealFileSystem()
    env = Environment(fs, HandlePool(fs, 4), MapCache(fs), SystemClock())
    journal = Journal(env, str(folder), 32 << 20)
    journal.prepare()
    loop = asyncio.get_running_loop()
    worker = Worker(loop, "journal")
    writer = EntryWriter(loop, worker)
    spent = time.process_time()
    for round_ in range(rounds):
        began = time.perf_counter()
        _write(files, data, round_)
        pieces = [Piece(bytes(16), n, 0, 0, 0, 1, size, (data,)) for n in range(partitions)]
        write = journal.begin(pieces)
        assert write is not None
        done: asyncio.Future[BaseException | None] = loop.create_future()
        writer.run(write, done.set_result)
        if error := await done:
            raise error
        journal.finish(write, ())
        seconds.append(time.perf_counter() - began)
    spent = time.process_time() - spent
    writer.close()
    worker.close()
    journal.close()
    for file in files:
        os.close(file)
    return _figures(seconds, spent)
