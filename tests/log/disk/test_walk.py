"""Base offsets and indexes are checked at the first read of what an earlier process has written."""

from __future__ import annotations

import random

import pytest

from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import TP, find_slice, open_log, open_store, read_records, write
from tidemill.clock import ManualClock
from tidemill.log.compaction.run import compact
from tidemill.log.errors import CorruptLogError
from tidemill.log.format.batch import iter_headers
from tidemill.log.format.records import decode_records
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.steps import run_steps

CONFIGS = {"internal.segment.bytes": "1000", "index.interval.bytes": "200", "retention.ms": "-1"}
COMPACTED = CONFIGS | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
FOLDER = "/data/t-0"


class Stopped:
    """A partition after a clean stop."""

    def __init__(self, configs: dict[str, str]) -> None:
        self.fs = FaultyFileSystem()
        self.clock = ManualClock(1_000_000)
        self.configs = configs
        log = self.open()
        for number in range(60):
            self.clock.advance(10)
            key = b"k%d" % (number % 7)
            write(log, [(key, b"%03d" % log.log_end_offset)] * 2, self.clock.now_ms())
        if configs is COMPACTED:
            log.roll(self.clock.now_ms())
            log.flush()
            run_steps(compact(log, self.clock.now_ms()))
            write(log, [(b"k", b"v")], self.clock.now_ms())
        self.store.close()
        logs = sorted(name for name in self.fs.files(FOLDER) if name.endswith(".log"))
        self.logs = [f"{FOLDER}/{name}" for name in logs]

    def open(self) -> PartitionLog:
        self.store = open_store("/data", self.clock, self.fs)
        self.log = open_log(self.store, self.configs)
        return self.log

    def batches(self, path: str) -> list[tuple[int, int]]:
        """Return position and base offset of each batch."""
        data = bytes(self.fs.content(path))
        return [(position, header.base_offset) for position, header in iter_headers(data)]

    def fits(self, path: str, number: int, base: int) -> bool:
        """Return whether a batch could begin at ``base``, to judge by its neighbours."""
        data = bytes(self.fs.content(path))
        headers = [header for _, header in iter_headers(data)]
        low = headers[number - 1].last_offset if number else int(path[-24:-4]) - 1
        is_last = number + 1 == len(headers)
        high = headers[number].last_offset if is_last else headers[number + 1].base_offset
        return low < base and base + headers[number].last_offset_delta < high

    def flip(self, path: str, position: int, bit: int) -> None:
        """Flip a bit of a base offset, counted from the lowest one."""
        self.fs.content(path)[position + 7 - bit // 8] ^= 1 << bit % 8

    def truth(self) -> dict[int, bytes | None]:
        self.open()
        found = {record.offset: record.value for record in read_records(self.log)}
        self.store.close()
        return found

    def read(self, offset: int, size: int = 1) -> dict[int, bytes | None]:
        """Return the records of one read, from ``offset`` on."""
        piece = find_slice(self.log, offset, size)
        data = bytes(piece.load())
        return {
            record.offset: record.value
            for position, _ in iter_headers(data)
            for record in decode_records(data, position)
            if record.offset >= offset
        }


@pytest.mark.slow
@pytest.mark.parametrize("configs", [CONFIGS, COMPACTED], ids=["dense", "compacted"])
def test_a_wrong_base_offset_is_never_served(configs: dict[str, str]) -> None:
    """Each bit of some batches, each read alone and with its neighbours."""
    stopped = Stopped(configs)
    truth = stopped.truth()
    dice = random.Random(5)
    for path in stopped.logs:
        batches = stopped.batches(path)
        for number in {0, len(batches) - 1, dice.randrange(len(batches))}:
            position, base = batches[number]
            for bit in (0, 1, 3, 5, 20, 40, 59, 63):
                if configs is COMPACTED and stopped.fits(path, number, base ^ 1 << bit):
                    continue  # in the gap that compaction has left, nothing contradicts it
                stopped.flip(path, position, bit)
                stopped.open()
                errors = 0
                for offset in range(stopped.log.log_end_offset):
                    for size in (1, 5000):
                        try:
                            found = stopped.read(offset, size)
                        except CorruptLogError as error:
                            errors += error.path.startswith(FOLDER)
                            continue
                        assert found.items() <= truth.items(), (path, base, bit, offset)
                assert errors, (path, base, bit)
                stopped.store.close(clean=False)
                stopped.flip(path, position, bit)
                stopped.fs.kill()
                stopped.open()
                stopped.store.close()


def test_a_segment_in_the_place_of_another_makes_no_reader_jump() -> None:
    stopped = Stopped(CONFIGS)
    first, second, third = stopped.logs[:3]
    for other in (first, third):
        content = stopped.fs.content(second)
        kept = bytes(content)
        copy = bytes(stopped.fs.content(other))
        assert len(copy) == len(kept)
        content[:] = copy
        stopped.open()
        offset = stopped.log.segments[1].base_offset
        with pytest.raises(CorruptLogError) as caught:
            stopped.read(offset)
        assert caught.value.path == second
        stopped.store.close()
        stopped.fs.content(second)[:] = kept


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_wrong_index_is_rebuilt_when_it_is_used(suffix: str) -> None:
    stopped = Stopped(CONFIGS)
    truth = stopped.truth()
    path = stopped.logs[1].removesuffix(".log") + suffix
    good = bytes(stopped.fs.content(path))
    for byte in range(len(good)):
        stopped.open()
        stopped.store.close()
        content = stopped.fs.content(path)
        content[:] = good
        content[byte] ^= 0x10
        stopped.open()
        assert {each.offset: each.value for each in read_records(stopped.log)} == truth
        for offset in range(0, 60, 4):
            found = run_steps(stopped.log.find_timestamp(1_000_000 + 10 * (offset // 2 + 1)))
            assert found is not None
            assert found[0] == offset
        stopped.store.close()


def test_a_topic_that_was_compacted_once_gives_no_false_alarm_later() -> None:
    stopped = Stopped(COMPACTED)
    truth = stopped.truth()
    stopped.configs = CONFIGS
    for clean in (True, False, True):
        stopped.open()
        assert {each.offset: each.value for each in read_records(stopped.log)} == truth
        stopped.store.close(clean=clean)
        stopped.fs.kill()
    assert TP not in stopped.store.offline
