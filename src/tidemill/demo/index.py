"""Read the documents of the demo's search index, which the package tantivy keeps in a folder.

This module must not know the database, brokers or Spark.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidemill.demo.check import Record
from tidemill.demo.check_results import text

_KEY = "_key"
_OF_INDEX = (_KEY, "_version")


def can_be_kept() -> bool:
    """Return whether the package of the index is installed."""
    return importlib.util.find_spec("tantivy") is not None


def documents(folder: Path) -> Iterator[Record]:
    """Yield the documents of an index, as results have them; not those that were deleted."""
    import tantivy

    index = tantivy.Index.open(str(folder / "current"))
    searcher = index.searcher()
    found = searcher.search(tantivy.Query.all_query(), limit=max(1, searcher.num_docs)).hits
    for _, address in found:
        fields: dict[str, Any] = searcher.doc(address).to_dict()
        if _KEY in fields:
            yield {
                name: _value(values[0])
                for name, values in fields.items()
                if name not in _OF_INDEX and values
            }


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return text(int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()))
    return value
