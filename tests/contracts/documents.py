"""The contract of a store that keeps a document for each key. Subclass it, and give it a fixture.

Batches are Arrow tables; nothing needs Spark.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from tests.contracts.upsert import (
    FIRST,
    FOLLOWED,
    SECOND,
    Change,
    FollowContract,
    Followed,
    Frame,
    deletions,
    follow,
    writer_of,
)
from tidemill.spark.errors import CheckpointRestoredError, RowError, SinkError
from tidemill.spark.sinks.base import Sink
from tidemill.spark.sinks.database.rows import Layout, prepare
from tidemill.spark.sinks.database.version import version
from tidemill.spark.sinks.documents.store import DocumentSink, DocumentStore


@dataclass
class Documents:
    """One kind of store: how a sink is declared, and how its own client reads it."""

    sink: Callable[..., DocumentSink]
    texts: Callable[[], dict[str, str]]
    """Returns the column ``text`` of each document, by its key."""


class DocumentContract(FollowContract):
    """Documents are kept by key, also if batches are repeated or late."""

    @pytest.fixture
    @abstractmethod
    def documents(self) -> Documents:
        raise NotImplementedError

    @pytest.fixture
    def store(self, documents: Documents) -> Any:
        made = documents.sink("id").store()
        yield made
        made.close()

    @pytest.fixture
    def followed(self, documents: Documents, store: DocumentStore) -> Followed:
        return Followed(store, lambda: {int(key): text for key, text in documents.texts().items()})

    def test_batches_replace_and_delete_by_key(
        self, documents: Documents, store: DocumentStore
    ) -> None:
        writer = writer_of(store, FIRST)
        writer.write(deletions((1, "a", False), (2, "b", None), (3, "c", False)), 0)
        second = deletions((1, None, True), (2, "B", False), (9, None, True))
        for _ in range(2):
            writer.write(second, 1)
            assert documents.texts() == {"2": "B", "3": "c"}
        writer.write(deletions((1, "again", False)), 2)
        writer.write(deletions((9, "late", False), (2, "late", False)), 0)
        assert documents.texts() == {"1": "again", "2": "B", "3": "c"}

    def test_many_documents_at_once(self, documents: Documents, store: DocumentStore) -> None:
        follow(store, *((i, f"t{i}", i) for i in range(3_000)))
        follow(store, *((i, None, i + 1) for i in range(2_999)))
        assert documents.texts() == {"2999": "t2999"}

    def test_an_empty_batch_and_a_store_that_is_opened_again(
        self, documents: Documents, store: DocumentStore
    ) -> None:
        writer_of(store, FIRST).write(Frame([]), 0)
        assert documents.texts() == {}
        writer_of(store, FIRST).write(Frame([(1, "a")]), 1)
        store.close()
        again = documents.sink("id").store()
        writer_of(again, FIRST).write(Frame([(2, "b")]), 2)
        again.close()
        assert documents.texts() == {"1": "a", "2": "b"}

    def test_older_checkpoints_and_restored_ones_are_refused(
        self, documents: Documents, store: DocumentStore
    ) -> None:
        writer_of(store, SECOND).write(deletions((1, "a", False)), 3)
        store.close()
        other = documents.sink("id").store()
        with pytest.raises(SinkError, match="of a checkpoint created at"):
            writer_of(other, FIRST).write(deletions((1, "b", False)), 0)
        rows = prepare(
            pa.table({"id": pa.array([1], pa.int32()), "text": ["b"]}), _ROWS, other.target
        )
        with pytest.raises(CheckpointRestoredError, match="batch 3 again"):
            other.apply(rows, _ROWS, version(SECOND, 3), is_new=True)
        with pytest.raises(SinkError, match="version is that of a batch"):
            follow(other, (1, "b", 5))
        other.close()
        assert documents.texts() == {"1": "a"}

    def test_rows_without_a_key_are_refused(self, store: DocumentStore) -> None:
        with pytest.raises(RowError, match=r"1 of 2 rows for .* have no id"):
            writer_of(store, FIRST).write(Frame([(1, "a"), (None, "b")]), 0)

    def test_a_rebuild_is_beside_until_it_is_switched(self, documents: Documents) -> None:
        sink = documents.sink("id")
        beside = sink.beside()
        assert isinstance(beside, DocumentSink)
        assert beside.place != sink.place
        _write(sink, (1, "old", 5), (2, "gone", 5))
        _write(beside, (1, "left over", 9))
        sink.discard()
        for part in ((1, "new", 5), (3, "c", 6)):
            _write(beside, part)
            assert documents.texts() == {"1": "old", "2": "gone"}
        for _ in range(2):  # it may be repeated after a crash
            sink.switch()
            assert documents.texts() == {"1": "new", "3": "c"}
        _write(sink, (3, "old", 5), (1, None, 6))
        assert documents.texts() == {"3": "c"}
        _write(beside, (7, "x", 1))
        sink.switch()
        assert documents.texts() == {"7": "x"}


_ROWS = Layout(FOLLOWED.columns, ("id",))


def _write(sink: Sink, *changes: Change) -> None:
    assert isinstance(sink, DocumentSink)
    store = sink.store()
    follow(store, *changes)
    store.close()
