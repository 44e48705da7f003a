"""What was acknowledged survives, whatever happens to partitions with a journal before a crash.

Random steps: appends, also of records without timestamps, syncs, rolls, retention, deleted records,
compaction that is switched on and off, a full disk. Then the process is killed or the power is cut,
and the steps go on with what was recovered.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.log.journal.test_journal_recovery import NOW, World
from tests.support.effort import rounds
from tests.support.faultyfs import Unlucky
from tests.support.journaled import commit, make_durable, store_segments, witness
from tests.support.logs import read_records
from tidemill.engine.runs import Target
from tidemill.log.compaction.run import Steps, compact
from tidemill.log.config.parse import parse_config
from tidemill.log.errors import JournalDamagedError, StorageError
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.log.journal.checkpoint import CHECKPOINT
from tidemill.log.journal.entry import BLOCK
from tidemill.log.journal.extent import EXTENT
from tidemill.log.partition.append import append_run
from tidemill.log.partition.partition import PartitionLog

PARTITIONS = 3
OPERATIONS = ["write", "create", "rename", "truncate", "remove", "read"]
Record = tuple[bytes | None, bytes | None]


class Run:
    """One run of random steps."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        size = self.dice.choice([2_000, 1 << 30])
        self.world = World(PARTITIONS, file_delete_delay_ms="0", internal_segment_bytes=str(size))
        self.has_faults = self.dice.random() < 0.5
        self.configs = [dict(self.world.configs) for _ in range(PARTITIONS)]
        self.written: list[dict[int, Record]] = [{0: (b"k", b"first")} for _ in range(PARTITIONS)]
        self.steps = (
            [self.append] * 7
            + [self.append_together] * 3
            + [
                *(self.store, self.store, self.roll, self.delete, self.retain),
                *(self.checkpoint, self.purge, self.switch, self.clean, self.fill_disk),
                *(self.sync_during_a_delete, self.witness, self.witness),
            ]
        )
        self.logs = [self.world.log(partition) for partition in range(PARTITIONS)]
        journal = self.world.store.journal
        if self.dice.random() < 0.5:
            journal.add_file(journal.create_file())

    def step(self, number: int) -> None:
        log = self.logs[self.dice.randrange(PARTITIONS)]
        if log.failure is not None:
            return  # offline until the next start, because a write could not be undone
        fs = self.world.fs
        is_broken = self.has_faults and self.dice.random() < 0.2
        if is_broken:
            operation = self.dice.choice(OPERATIONS)
            fs.fail(operation, self.dice.choice([errno.EIO, errno.ENOSPC]), path="/data/t-")
        try:
            self.dice.choice(self.steps)(log, number)
        except StorageError:
            assert is_broken or log.chain.active.file.broken
        finally:
            fs.clear_faults()

    def put(self, log: PartitionLog, key: bytes, value: bytes) -> None:
        offset = log.log_end_offset
        now = self.dice.choice([NOW, NOW, -1])
        batch = encode_batch([NewRecord(key, value)], timestamp_ms=now)
        log.append(memoryview(batch), now_ms=NOW, from_client=True)
        self.written[log.tp.partition][offset] = key, value

    def append(self, log: PartitionLog, number: int) -> None:
        value = b"%d." % number + bytes(self.dice.randrange(1500))
        self.put(log, b"%d" % self.dice.randrange(5), value)
        if self.dice.random() < 0.8:
            make_durable(self.world.store, log)

    def append_together(self, log: PartitionLog, number: int) -> None:
        """Append batches that clients sent together; perhaps only some of them fit on the disk."""
        fs, dice = self.world.fs, self.dice
        target = Target(log.tp, None)
        target.find(log)
        records = [(b"%d" % dice.randrange(5), bytes(dice.randrange(800))) for _ in range(4)]
        facts = (1, NOW, NOW, 0, -1)
        run = []
        for key, value in records:
            batch = encode_batch([NewRecord(key, value)], timestamp_ms=NOW)
            run.append((target, memoryview(batch), facts))
        results: list[Any] = [None] * len(run)
        if dice.random() < 0.3:
            fs.capacity = fs.used() + dice.randrange(2500)
        (count,) = append_run(run, {target: list(range(len(run)))}, results, NOW)
        fs.capacity = None
        written, end = self.written[log.tp.partition], log.log_end_offset
        assert [each and each[0] for each in results[:count]] == list(range(end - count, end))
        written.update(zip(range(end - count, end), records[:count], strict=True))
        if log.chain.active.file.broken:  # a write that was not undone: a restart can find it
            written.update(enumerate(records[count:], end))
        if dice.random() < 0.8 and log.failure is None:
            make_durable(self.world.store, log)
        if count < len(run):
            assert isinstance(results[count], StorageError)

    def store(self, log: PartitionLog, number: int) -> None:
        store_segments(self.world.store, log)

    def roll(self, log: PartitionLog, number: int) -> None:
        if log.chain.active.size:
            log.roll(NOW)

    def delete(self, log: PartitionLog, number: int) -> None:
        log.delete_records_before(self.dice.randint(log.log_start_offset, log.high_watermark))

    def retain(self, log: PartitionLog, number: int) -> None:
        config = self.configs[log.tp.partition]
        log.config = parse_config({**config, "retention.ms": "1"})
        log.delete_old_segments(NOW + 1000)
        log.config = parse_config(config)

    def checkpoint(self, log: PartitionLog, number: int) -> None:
        self.world.store.checkpoint()

    def purge(self, log: PartitionLog, number: int) -> None:
        self.world.store.purge_deleted()

    def switch(self, log: PartitionLog, number: int) -> None:
        config = self.configs[log.tp.partition]
        config["cleanup.policy"] = self.dice.choice(["delete", "compact"])
        log.config = parse_config(config)

    def clean(self, log: PartitionLog, number: int) -> None:
        if log.config.compact:
            finish(compact(log, NOW))

    def fill_disk(self, log: PartitionLog, number: int) -> None:
        fs = self.world.fs
        fs.capacity = fs.used() + self.dice.randrange(100)
        try:
            self.put(log, b"z", bytes(500))
        except StorageError:
            assert log.log_end_offset not in self.written[log.tp.partition]
        fs.capacity = None

    def sync_during_a_delete(self, log: PartitionLog, number: int) -> None:
        journal = self.world.store.journal
        ticket = log.begin_sync()
        stored = journal.begin_store(log)
        if ticket is not None:
            if self.dice.random() < 0.5:
                self.delete(log, number)
            ticket.run()
            log.finish_sync(ticket)
            assert log.topic_id is not None
            journal.notes.add(log, ticket.note(log.topic_id.bytes))
        journal.finish_store(stored)

    def witness(self, log: PartitionLog, number: int) -> None:
        witness(self.world.store)

    def crash(self, damage: Callable[[], None] | None = None) -> None:
        """End the process or cut the power, start again and check what is there.

        Args:
            damage: damages the journal meanwhile. What is lost must be reported.
        """
        world = self.world
        if self.dice.random() < 0.5:
            commit(world.store, [])
        if damage is not None:
            witness(world.store)
        marks = [(log.log_start_offset, log.high_watermark) for log in self.logs]
        self.stop()
        world.fs.page = 0
        if damage is not None:
            damage()
        world.reopen()
        assert "not restored" not in world.reports()  # there is no other writer
        if damage is None:
            assert not world.store.offline
            assert "the journal is" not in world.reports()
            assert "of the journal is damaged" not in world.reports()
        for number, tp in enumerate(world.partitions):
            if tp not in world.store.offline:
                check(world.log(number), self.written[number], *marks[number])
        if world.store.offline:
            return
        self.logs = [world.log(partition) for partition in range(PARTITIONS)]
        for number, log in enumerate(self.logs):
            written = self.written[number].items()
            self.written[number] = {k: v for k, v in written if k < log.log_end_offset}
            log.config = parse_config(self.configs[number])

    def stop(self) -> None:
        fs = self.world.fs
        if self.dice.random() < 0.4:
            fs.kill()
        else:
            fs.page = self.dice.choice([0, 512])
            fs.power_cut(self.dice if self.dice.random() < 0.7 else Unlucky())

    def damage_journal(self) -> None:
        """Damage one file of the journal, as a disk or a person can."""
        fs, dice = self.world.fs, self.dice
        files = [f"/data/journal/{name}" for name in fs.files("/data/journal")]
        path = dice.choice([*files, *files, f"/data/{CHECKPOINT}", f"/data/{EXTENT}"])
        data = fs.content(path)
        kind, size = dice.choice(["remove", "cut", "zeros", "garbage", "bit", "bit"]), len(data)
        at = dice.randrange(size) // 512 * 512 if size > 512 else dice.randrange(size)
        length = dice.choice([1, 16, 512, BLOCK, size - at])
        if kind == "remove":
            fs.remove(path)
        elif kind == "cut":
            del data[at:]
        elif kind == "bit":
            data[dice.randrange(size)] ^= 1 << dice.randrange(8)
        else:
            part = len(data[at : at + length])
            data[at : at + length] = bytes(part) if kind == "zeros" else dice.randbytes(part)


def finish(steps: Steps) -> None:
    for work in steps:
        if work is not None:
            work.run()


def check(log: PartitionLog, written: dict[int, Record], start: int, end: int) -> None:
    """Compare a recovered log with what was acknowledged from ``start`` up to ``end``."""
    assert log.log_start_offset <= start
    assert log.log_end_offset >= end
    found = {record.offset: (record.key, record.value) for record in read_records(log)}
    assert all(written[offset] == record for offset, record in found.items() if offset < end)
    promised = {offset: record for offset, record in written.items() if start <= offset < end}
    if log.chain.sparse:  # the last record of each key
        newest = {key: offset for offset, (key, _) in sorted(promised.items())}
        promised = {offset: written[offset] for offset in newest.values()}
    assert promised.items() <= found.items()


@pytest.mark.parametrize("seed", range(rounds("JOURNAL_SEEDS", 100, 3000)))
def test_a_crash_after_any_steps_loses_nothing_that_was_acknowledged(seed: int) -> None:
    run = Run(seed)
    for _ in range(run.dice.randint(1, 3)):
        for number in range(run.dice.randrange(10, 150)):
            run.step(number)
        run.crash()


@pytest.mark.parametrize("seed", range(rounds("JOURNAL_DAMAGE_SEEDS", 60, 3000)))
def test_damage_of_the_journal_after_any_steps_is_never_silent(seed: int) -> None:
    """Its partition is offline, or the broker does not start."""
    run = Run(seed)
    for number in range(run.dice.randrange(10, 150)):
        run.step(number)
    try:
        run.crash(run.damage_journal)
    except JournalDamagedError as error:
        assert "/data/journal" in str(error)  # noqa: PT017
