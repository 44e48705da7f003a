"""The queue of snapshots asks the source for a table before each chunk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from tests.support.snapshots import TABLE, FakeSource, FakeWriter
from tidemill.connect.cdc.contract import Batch, Chunk, Column, Source, Table
from tidemill.connect.cdc.snapshots import FIRST_ROWS, TARGET_BYTES, ChunkSize, Snapshots
from tidemill.connect.cdc.state import TableProgress, WorkerState
from tidemill.connect.cdc.writer import Writer

NEWER = replace(TABLE, columns=(*TABLE.columns, Column("added", "int", "int")))


class ChangingSource(FakeSource):
    """A source whose catalog is ahead of its stream."""

    def __init__(self) -> None:
        super().__init__()
        self.now: Table | None = TABLE
        self.asked: list[tuple[Table, Any, int]] = []
        for key in range(5):
            self.commit(key, False, True)
        self.read = len(self.states) - 1

    def find_table(self, schema: str, name: str) -> Table | None:
        return None if self.now is None else replace(self.now)

    def read_chunk(self, table: Table, after: list[Any] | None, limit: int) -> Chunk:
        self.asked.append((table, after, limit))
        return super().read_chunk(table, after, limit)


@pytest.fixture
def source() -> ChangingSource:
    return ChangingSource()


def snapshots_of(source: FakeSource, state: WorkerState, chunk_rows: int = 2) -> Snapshots:
    writer = FakeWriter([], state)
    state.position = {"n": source.read}
    made = Snapshots(
        cast(Source, source), cast(Writer, writer), state, lambda topic: [], chunk_rows
    )
    made.know([TABLE])
    return made


def test_a_chunk_is_read_with_the_columns_of_now(source: ChangingSource) -> None:
    state = WorkerState(snapshots=[TableProgress(TABLE.id)])
    snapshots = snapshots_of(source, state)
    source.now = NEWER
    snapshots.see(Batch([], {"n": source.read}, schemas=[TABLE]))  # the stream is behind
    snapshots.step()
    assert source.asked[0][0].columns == NEWER.columns


def test_chunks_share_one_table_until_it_changes(source: ChangingSource) -> None:
    snapshots = snapshots_of(source, WorkerState(snapshots=[TableProgress(TABLE.id)]))
    snapshots.step()
    snapshots.step()
    source.now = NEWER
    snapshots.step()
    first, second, third = [table for table, _, _ in source.asked]
    assert first is second
    assert third.columns == NEWER.columns


def test_another_key_begins_the_snapshot_again(source: ChangingSource) -> None:
    state = WorkerState(snapshots=[TableProgress(TABLE.id)])
    snapshots = snapshots_of(source, state)
    snapshots.step()
    assert state.snapshots[0].after == [1]
    again = snapshots_of(source, WorkerState.decode(state.encode()))
    again.step()
    assert source.asked[-1][1] == [1]
    source.now = replace(TABLE, key=("v", "k"))
    other = snapshots_of(source, WorkerState.decode(state.encode()))
    other.step()
    assert source.asked[-1][1] is None


def test_a_table_is_read_again_behind_the_changes_of_before(source: ChangingSource) -> None:
    """Its catalog is ahead: the changes that come now can be of a table of the same name."""
    state = WorkerState(snapshots=[TableProgress(TABLE.id, resync=True)])
    snapshots = snapshots_of(source, state)
    source.commit(0, False, True)
    source.commit(1, False, True)
    assert not snapshots.step()
    for _ in range(2):
        assert [(after, limit) for _, after, limit in source.asked] == [(None, 1)]
        batch = source.poll(0, 1)
        assert batch is not None
        snapshots.see(batch)
        state.position = batch.position
        is_read = snapshots.step()
    assert is_read
    assert source.asked[-1][1:] == (None, 2)


def test_the_progress_of_an_earlier_version_continues(source: ChangingSource) -> None:
    """It does not name the columns of its key."""
    snapshots = snapshots_of(source, WorkerState(snapshots=[TableProgress(TABLE.id, after=[1])]))
    snapshots.step()
    assert [after for _, after, _ in source.asked] == [[1]]


def test_a_table_that_is_gone_is_skipped(source: ChangingSource) -> None:
    state = WorkerState(snapshots=[TableProgress(TABLE.id)])
    snapshots = snapshots_of(source, state)
    source.now = None
    assert snapshots.step()
    assert not snapshots.active
    assert source.asked == []


def test_chunks_of_short_rows_grow_to_the_bound() -> None:
    size = ChunkSize(10_000)
    asked = []
    for _ in range(5):
        asked.append(size.rows)
        size.adapt([{"id": n, "note": "short"} for n in range(size.rows)])
    assert asked == [FIRST_ROWS, 800, 3200, 10_000, 10_000]


def test_chunks_of_large_rows_fit_the_bound_of_bytes() -> None:
    size = ChunkSize(10_000)
    size.adapt([{"id": n, "body": "x" * 1_000_000} for n in range(20)])
    assert size.rows == TARGET_BYTES // 1_000_009
    size.adapt([{"id": 1, "body": "x" * (TARGET_BYTES + 1)}])
    assert size.rows == 1


def test_chunks_grow_again_behind_large_rows() -> None:
    size = ChunkSize(1_000)
    size.adapt([{"body": "x" * TARGET_BYTES}])
    assert size.rows == 1
    for expected in (4, 16, 64, 256, 1_000, 1_000):
        size.adapt([{"body": None}])
        assert size.rows == expected


def test_a_small_bound_of_rows_is_kept_and_an_empty_chunk_changes_nothing() -> None:
    size = ChunkSize(7)
    size.adapt([])
    assert size.rows == 7
    size.adapt([{"id": 1}])
    assert size.rows == 7
