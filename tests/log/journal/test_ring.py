"""Files of the journal are created with zeros, in few writes, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.faultyfs import FaultyFileSystem
from tidemill.log.disk.files import Buffer, RealFile, RealFileSystem
from tidemill.log.journal.ring import Ring


def test_a_new_file_takes_few_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them gives Python's lock away and takes it back."""
    writes: list[int] = []
    pwrite = RealFile.pwrite

    def counted(self: RealFile, buffers: Sequence[Buffer], position: int) -> int:
        writes.append(position)
        return pwrite(self, buffers, position)

    monkeypatch.setattr(RealFile, "pwrite", counted)
    file = Ring(RealFileSystem(), str(tmp_path), 8 << 20, 2).create()
    file.raw.close()
    assert Path(file.path).read_bytes() == bytes(8 << 20)
    assert len(writes) <= 64


@pytest.mark.parametrize("size", [4096, (1 << 18) + 4096, 1 << 19])
def test_a_new_file_has_the_size_of_the_setting(size: int) -> None:
    fs = FaultyFileSystem()
    fs.makedirs("/journal")
    file = Ring(fs, "/journal", size, 2).create()
    assert fs.read_bytes(file.path) == bytes(size)


def test_a_file_that_does_not_fit_on_the_disk_is_removed() -> None:
    fs = FaultyFileSystem()
    fs.makedirs("/journal")
    fs.capacity = fs.used() + 300_000
    with pytest.raises(OSError, match="No space left"):
        Ring(fs, "/journal", 1 << 20, 2).create()
    assert not fs.files("/journal")


def test_the_file_with_the_oldest_entries_is_used_next() -> None:
    fs = FaultyFileSystem()
    fs.makedirs("/journal")
    ring = Ring(fs, "/journal", 8192, 3)
    ring.files = [ring.create() for _ in range(3)]
    used = []
    for sequence in range(1, 13):  # two entries in each file
        file = ring.space_for(4096, sequence, sequence - 1)
        assert file is not None
        file.first = sequence if file.first < 0 else file.first
        file.last = sequence
        file.used += 4096
        used.append(ring.files.index(file))
    assert used == [0, 0, 1, 1, 2, 2] * 2
    assert ring.needs_next(4096)
