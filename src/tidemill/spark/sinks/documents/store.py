"""Keep a document for each key, guarded by a version, in a store without SQL.

A document is written unless the store has a later version of it, and a deletion leaves its version
behind. The version is that of the row, or of its batch. So a batch that is run again changes
nothing. A batch is not atomic here: a reader may see a part of it. Must not know: any one store,
Spark, Kafka.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from tidemill.spark.sinks.base import DELETED, Columns, Run, Sink, Writer, as_columns
from tidemill.spark.sinks.database.rows import VERSION, Layout, layout_of
from tidemill.spark.sinks.database.sink import TableWriter
from tidemill.spark.sinks.database.version import check_versions

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK = 10_000


@dataclass(frozen=True, slots=True)
class Document:
    """A row of a batch.

    Attributes:
        key: The key as text.
        version: The version; None for a deletion that deletes whatever is there.
        fields: The columns that are not null, the key's among them; None if the row is deleted.
    """

    key: str
    version: int | None
    fields: dict[str, Any] | None


@dataclass(frozen=True)
class DocumentSink(Sink):
    """Base of the sinks that keep a document for each key.

    Attributes:
        key: Columns that identify a document.
        order_by: If a key occurs more than once in a batch, the row with the greatest values in
            these columns wins. Rows with a column ``_version`` need none.
    """

    key: Columns
    order_by: Columns = field(default=(), kw_only=True)

    needs_key: ClassVar[bool] = True

    @property
    def key_columns(self) -> tuple[str, ...]:
        return as_columns(self.key)

    def check_result(self, df: Any, checkpoint: Any) -> None:
        super().check_result(df, checkpoint)
        layout_of(df.schema, self.key_columns, as_columns(self.order_by))

    def store(self) -> DocumentStore:
        """Return the store.

        Raises:
            MissingPackageError: Its package is not installed.
        """
        raise NotImplementedError

    def open(self, run: Run) -> Writer:
        return TableWriter(self.store(), run)

    def switch(self) -> None:
        with closing(self.store()) as store:
            store.switch()

    def discard(self) -> None:
        with closing(self.store()) as store:
            store.discard()


class DocumentStore(ABC):
    """A store of documents. One that does not answer raises ``SinkError``."""

    def __init__(self, key: Sequence[str], order_by: Sequence[str] = ()) -> None:
        self.key = tuple(key)
        self.order_by = tuple(order_by)

    @property
    @abstractmethod
    def target(self) -> str:
        """The name of the store, for messages. It must not contain a password."""

    def prepare(self, layout: Layout) -> None:  # noqa: B027 - most stores need no columns
        """Prepare for rows of a layout. Called before each batch.

        Raises:
            SchemaError: The store has other columns.
            SinkError: The store does not answer.
        """

    @abstractmethod
    def last_version(self) -> int | None:
        """Return the greatest version of a batch or row that was begun; None if there is none."""

    @abstractmethod
    def write(self, documents: Iterator[Document], last: int) -> None:
        """Write documents, each unless the store has a later version of it.

        Args:
            documents: The documents. No key occurs twice.
            last: What ``last_version`` must return from now on, if it is greater than before.
        """

    @abstractmethod
    def switch(self) -> None:
        """Make what a rebuild has written the content, as ``Sink.switch``."""

    @abstractmethod
    def discard(self) -> None:
        """Delete what a rebuild has written, as ``Sink.discard``."""

    def close(self) -> None:  # noqa: B027 - most stores keep nothing
        """Release what is kept between batches. The next batch acquires it again."""

    def apply(
        self,
        rows: pa.Table,
        layout: Layout,
        number: int,
        *,
        is_first: bool = False,
        is_new: bool = False,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the rows of a batch. The arguments are those of ``UpsertTable.apply``.

        Raises:
            SinkError: The store rejected the batch, or contains a newer version.
            CheckpointRestoredError: The batch is new, but the store has begun it before.
        """
        self.prepare(layout)
        latest = self.last_version() if layout.versioned or is_first or is_new else None
        check_versions(self.target, latest, number, layout, is_first=is_first, is_new=is_new)
        on_start()
        if rows.num_rows:
            self.write(_documents(rows, layout, number), _last(rows, layout, number))


def _last(rows: pa.Table, layout: Layout, number: int) -> int:
    import pyarrow.compute as pc

    return (pc.max(rows.column(VERSION)).as_py() or 0) if layout.versioned else number


def _documents(rows: pa.Table, layout: Layout, number: int) -> Iterator[Document]:
    names = [column.name for column in layout.columns]
    places = [names.index(name) for name in layout.key]
    for batch in rows.to_batches(max_chunksize=_CHUNK):
        deleted = batch.column(DELETED).to_pylist()
        versions = (
            batch.column(VERSION).to_pylist() if layout.versioned else [number] * len(deleted)
        )
        columns = [batch.column(name).to_pylist() for name in names]
        for values, version, is_deleted in zip(
            zip(*columns, strict=True), versions, deleted, strict=True
        ):
            key = key_text([values[place] for place in places])
            fields = {n: v for n, v in zip(names, values, strict=True) if v is not None}
            yield Document(key, version, None if is_deleted else fields)


def key_text(values: Sequence[Any]) -> str:
    """Return the key of a document: one value as its text, several with colons between them.

    In a key of several values, a colon in a value is written as ``%3A``, and ``%`` as ``%25``.
    """
    if len(values) == 1:
        return text_of(values[0])
    return ":".join(quote(text_of(each), safe=_SAFE) for each in values)


_SAFE = "".join(chr(i) for i in range(33, 127) if chr(i) not in ":%") + " "


def text_of(value: Any) -> str:
    """Return a value as text: times in ISO 8601, booleans as ``true`` and ``false``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "isoformat"):
        text: str = value.isoformat()
        return text.replace("+00:00", "Z")
    if hasattr(value, "as_tuple"):  # a Decimal
        return format(value, "f")
    return str(value)
