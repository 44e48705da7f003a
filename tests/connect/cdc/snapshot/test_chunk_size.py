"""Chunks grow to the bound of rows, and stay small where rows are large."""

from __future__ import annotations

from tidemill.connect.cdc.snapshot.chunk_size import FIRST_ROWS, TARGET_BYTES, ChunkSize


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
