"""A search index in a folder keeps the contract."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tantivy

from tests.contracts.documents import DocumentContract, Documents
from tests.contracts.upsert import follow
from tidemill.spark import TantivySink
from tidemill.spark.errors import RowError, SchemaError, SinkError
from tidemill.spark.sinks.database.rows import Column, Layout


def opened(path: Path) -> Any:
    return tantivy.Index.open(str(path / "current"))


def texts(path: Path) -> dict[str, str]:
    if not (path / "current").exists():
        return {}
    searcher = opened(path).searcher()
    hits = searcher.search(tantivy.Query.all_query(), limit=10_000).hits
    found = (searcher.doc(address).to_dict() for _, address in hits)
    return {each["_key"][0]: each["text"][0] for each in found if "_key" in each}


class TestTantivy(DocumentContract):
    @pytest.fixture
    def documents(self, tmp_path: Path) -> Documents:
        def sink(key: str, **options: Any) -> TantivySink:
            return TantivySink(key, path=tmp_path / "index", **options)

        return Documents(sink, lambda: texts(tmp_path / "index"))


def test_words_of_text_columns_are_found_and_deleted_documents_are_not(tmp_path: Path) -> None:
    path = tmp_path / "index"
    store = TantivySink("id", path=path, text="text").store()
    follow(store, (1, "Boeing 737 of United", 1), (2, "Airbus of United", 2), (3, "Boeing", 3))
    follow(store, (3, None, 4))
    index = opened(path)

    def search(words: str) -> list[int]:
        hits = index.searcher().search(index.parse_query(words, ["text"]), 10).hits
        return sorted(index.searcher().doc(address)["id"][0] for _, address in hits)

    assert search("boeing") == [1]
    assert search("united") == [1, 2]
    store.close()


def test_values_of_all_types_are_stored(tmp_path: Path) -> None:
    kinds = {
        "id": ("int", 1), "b": ("boolean", True), "d": ("double", 0.5),
        "n": ("decimal", Decimal("1.50")), "t": ("timestamp", datetime(2013, 1, 1, 5, tzinfo=UTC)),
        "day": ("date", date(1969, 12, 31)), "raw": ("binary", b"\x00"), "none": ("string", None),
    }  # fmt: skip
    layout = Layout(tuple(Column(name, kind) for name, (kind, _) in kinds.items()), ("id",))
    rows = pa.table({name: [value] for name, (_, value) in kinds.items()} | {"_deleted": [False]})
    store = TantivySink("id", path=tmp_path / "index").store()
    store.apply(rows, layout, 1)
    searcher = opened(tmp_path / "index").searcher()
    [(_, address)] = searcher.search(tantivy.Query.all_query(), 1).hits
    found = searcher.doc(address).to_dict()
    assert (found["id"], found["b"], found["d"], found["n"]) == ([1], [True], [0.5], ["1.50"])
    assert found["t"][0].replace(tzinfo=None) == datetime(2013, 1, 1, 5)
    assert found["day"][0].replace(tzinfo=None) == datetime(1969, 12, 31)
    assert "none" not in found
    store.close()


def test_an_index_with_other_columns_and_one_that_is_being_written_are_typed_errors(
    tmp_path: Path,
) -> None:
    store = TantivySink("id", path=tmp_path / "index").store()
    follow(store, (1, "a", 1))
    with pytest.raises(SinkError, match="can't write index") as error:
        follow(TantivySink("id", path=tmp_path / "index").store(), (1, "a", 1))
    assert "Another process" in error.value.hint
    store.close()
    with pytest.raises(SchemaError, match="text was raw, and is text") as refusal:
        follow(TantivySink("id", path=tmp_path / "index", text="text").store(), (1, "a", 1))
    assert "rebuild" in refusal.value.hint


def test_a_batch_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    store = TantivySink("id", path=tmp_path / "index").store()
    follow(store, (1, "a", 1))
    other = TantivySink("id", path=tmp_path / "other").store()
    rows = pa.table({"id": ["fine", "x" * 70_000], "_deleted": [False] * 2})
    with pytest.raises(RowError, match="has more than"):
        other.apply(rows, Layout((Column("id", "string"),), ("id",)), 1)
    assert opened(tmp_path / "other").searcher().num_docs == 0
    other.close()
    store.close()
