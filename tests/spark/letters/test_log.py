"""The files of a checkpoint: positions survive, and damage is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.spark.errors import PipelineError
from tidemill.spark.letters.log import KEPT, Batch, BatchLog


@pytest.fixture
def log(tmp_path: Path) -> BatchLog:
    return BatchLog(tmp_path)


def test_a_batch_starts_where_the_one_before_ends(log: BatchLog, tmp_path: Path) -> None:
    assert log.last() is None
    log.skip(0, '{"t": {"0": 5}}')
    assert log.last() == Batch(0, None, '{"t": {"0": 5}}', is_done=True)
    log.plan(1, '{"t": {"0": 9}}')
    assert log.last() == Batch(1, '{"t": {"0": 5}}', '{"t": {"0": 9}}', is_done=False)
    log.commit(1)
    again = BatchLog(tmp_path)
    assert again.last() == Batch(1, '{"t": {"0": 5}}', '{"t": {"0": 9}}', is_done=True)
    assert again.query_id == log.query_id


def test_a_skipped_batch_without_its_position_was_never_planned(log: BatchLog) -> None:
    log.skip(0, '{"t": {"0": 5}}')
    log.commit(1)  # killed between the two files of a skipped batch
    found = log.last()
    assert found is not None
    assert (found.number, found.is_done) == (0, True)


def test_old_batches_are_removed(log: BatchLog, tmp_path: Path) -> None:
    for number in range(KEPT + 5):
        log.skip(number, "{}")
    for folder in ("offsets", "commits"):
        kept = sorted(int(each.name) for each in (tmp_path / folder).iterdir())
        assert kept == list(range(5, KEPT + 5))


def test_a_checksum_of_an_earlier_file_is_removed(log: BatchLog, tmp_path: Path) -> None:
    stale = tmp_path / "offsets" / ".3.crc"
    stale.write_bytes(b"crc")
    log.plan(3, "{}")
    assert not stale.exists()


@pytest.mark.parametrize(
    "text",
    ["", "v1\n{}", "v2\n{}\n{}", "v1\n{}\nnot json", "v1\n{}\n{}\n{}", b"\xff\xfe"],
)
def test_a_file_that_is_not_understood_is_an_error_with_its_name(
    log: BatchLog, tmp_path: Path, text: str | bytes
) -> None:
    path = tmp_path / "offsets" / "0"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PipelineError, match=r"offsets/0 can't be read"):
        log.last()


@pytest.mark.parametrize("text", ["", "[]", "{}", "not json"])
def test_damaged_metadata_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "metadata").write_text(text)
    with pytest.raises(PipelineError, match="metadata can't be read"):
        BatchLog(tmp_path)
