"""A sink that keeps a search index in a folder, with tantivy: no server is needed.

The folder has one index, ``index-1``, and the link ``current`` to it, which a rebuild changes. A
batch is one commit. The version of a document is in the index, also that of a deleted one, as a
document without any column. Must not know: Spark, Kafka.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tidemill.extras import load
from tidemill.spark.errors import MissingPackageError, RowError, SchemaError, SinkError
from tidemill.spark.sinks.base import Columns, Mistake, QueryContext, as_columns
from tidemill.spark.sinks.database.rows import Column, Layout
from tidemill.spark.sinks.documents.store import Document, DocumentSink, DocumentStore, text_of

KEY, GONE, VERSION = "_key", "_gone", "_version"
"""Fields of each document besides its columns: the key, or that of a deleted document; the
version."""
CURRENT = "current"
_INDEX = "index-"
_COLUMNS = "tidemill.json"
_HEAP_BYTES = 64 << 20
_LONGEST_KEY = 60_000  # tantivy silently drops a term above 65,530 bytes
_CHUNK = 1_000
_WHOLE = frozenset({"tinyint", "smallint", "int", "bigint"})
_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})


@dataclass(frozen=True)
class TantivySink(DocumentSink):
    """Keeps a search index in a folder. A batch that is run again changes nothing.

    Readers open it with ``tantivy.Index.open(f"{path}/current")``.

    Attributes:
        path: The folder. It is created if it is missing.
        key: Columns that identify a document.
        text: Columns whose words can be searched. Other texts are found as a whole only.
        order_by: If a key occurs more than once in a batch, the row with the greatest values in
            these columns wins. Rows with a column ``_version`` need none.
        is_beside: Whether to write the index that a rebuild makes.
    """

    path: str | Path
    text: Columns = ()
    is_beside: bool = field(default=False, kw_only=True, repr=False)

    @property
    def target(self) -> str:
        return f"index {self.path}"

    @property
    def place(self) -> Hashable:
        return ("tantivy", Path(self.path).resolve(), self.is_beside)

    def check(self, context: QueryContext) -> Iterable[Mistake]:
        yield from super().check(context)
        path = Path(self.path)
        if path.exists() and not path.is_dir():
            yield Mistake(f"{path} for the search index is not a folder", "Name a new folder.")
        elif not path.parent.is_dir():
            yield Mistake(
                f"folder {path.parent} for {self.target} does not exist",
                "Create it first. A relative path starts in the folder where the pipeline is run.",
            )

    def check_result(self, df: Any, checkpoint: Any) -> None:
        super().check_result(df, checkpoint)
        names = {name.lower() for name in df.columns}
        missing = [name for name in as_columns(self.text) if name.lower() not in names]
        if missing:
            raise SchemaError(
                f"the result has no column {', '.join(missing)}, which text names",
                hint=f"Its columns are {', '.join(df.columns)}.",
            )

    def store(self) -> TantivyStore:
        return TantivyStore(self)

    def beside(self) -> TantivySink:
        return replace(self, is_beside=True)


class TantivyStore(DocumentStore):
    """The search index of one folder."""

    def __init__(self, sink: TantivySink) -> None:
        super().__init__(sink.key_columns, as_columns(sink.order_by))
        self._sink = sink
        self._tantivy = _module()
        self._columns: tuple[Column, ...] = ()
        self._index: Any = None
        self._writer: Any = None

    @property
    def target(self) -> str:
        return self._sink.target

    def close(self) -> None:
        """Close the index. Batches that were not committed are gone."""
        writer, self._index, self._writer = self._writer, None, None
        if writer is not None:
            with self._errors():
                writer.rollback()
                writer.wait_merging_threads()

    def prepare(self, layout: Layout) -> None:
        """Open the index, or create it."""
        if self._index is not None and self._columns == layout.columns:
            return
        self.close()
        with self._errors():
            folder = self._folder()
            schema = self._schema(layout.columns)
            wanted = {each.name: _kind(each, self._texts) for each in layout.columns}
            noted = folder / _COLUMNS
            if noted.exists():
                found = json.loads(noted.read_text())
                if found != wanted:
                    raise SchemaError(
                        f"{self.target} has other columns: {_difference(found, wanted)}",
                        hint="Rebuild it: tidemill pipeline rebuild.",
                    )
            else:
                folder.mkdir(parents=True, exist_ok=True)
                noted.write_text(json.dumps(wanted))
            if not self._sink.is_beside:
                self._link(folder)
            self._index = self._tantivy.Index(schema, path=str(folder), reuse=True)
            self._writer = self._index.writer(heap_size=_HEAP_BYTES, num_threads=1)
            self._columns = layout.columns

    def last_version(self) -> int | None:
        with self._errors():
            self._index.reload()
            searcher = self._index.searcher()
            if searcher.num_docs == 0:
                return None
            query = self._tantivy.Query.all_query()
            found = searcher.search(query, limit=1, count=False, order_by_field=VERSION).hits
            return int(found[0][0]) if found else None

    def write(self, documents: Iterator[Document], last: int) -> None:
        known = self.last_version()
        with self._errors():
            try:
                while part := list(itertools.islice(documents, _CHUNK)):
                    self._write(part, known)
                self._writer.commit()
            except BaseException:
                self._writer.rollback()
                raise

    def switch(self) -> None:
        """Let ``current`` name the index of a rebuild, and remove the old one."""
        with self._errors():
            number = self._number()
            following = self._at(number + 1)
            if (following / _COLUMNS).exists():
                self._link(following)
                number += 1
            for each in Path(self._sink.path).glob(f"{_INDEX}*"):
                if each != self._at(number):
                    shutil.rmtree(each)

    def discard(self) -> None:
        """Remove the index of a rebuild that was not switched."""
        with self._errors():
            following = self._at(self._number() + 1)
            if following.exists():
                shutil.rmtree(following)

    # --- the folder -------------------------------------------------------------------------------

    def _at(self, number: int) -> Path:
        return Path(self._sink.path) / f"{_INDEX}{number}"

    def _number(self) -> int:
        """Return the number of the present index; 1 if there is none."""
        try:
            name = os.readlink(Path(self._sink.path) / CURRENT)
        except FileNotFoundError:
            return 1
        number = name.removeprefix(_INDEX)
        if not number.isdecimal():
            raise SinkError(f"{self.target}: the link {CURRENT} names {name}")
        return int(number)

    def _folder(self) -> Path:
        return self._at(self._number() + self._sink.is_beside)

    def _link(self, folder: Path) -> None:
        """Let ``current`` name a folder, in one step."""
        link = Path(self._sink.path) / CURRENT
        if link.is_symlink() and os.readlink(link) == folder.name:
            return
        made = link.with_name(f"{CURRENT}.new")
        made.unlink(missing_ok=True)
        made.symlink_to(folder.name)
        made.replace(link)

    # --- documents --------------------------------------------------------------------------------

    @property
    def _texts(self) -> frozenset[str]:
        return frozenset(name.lower() for name in as_columns(self._sink.text))

    def _schema(self, columns: Iterable[Column]) -> Any:
        builder = self._tantivy.SchemaBuilder()
        builder.add_text_field(KEY, stored=True, tokenizer_name="raw")
        builder.add_text_field(GONE, stored=True, tokenizer_name="raw")
        builder.add_unsigned_field(VERSION, stored=True, indexed=True, fast=True)
        for column in columns:
            kind = _kind(column, self._texts)
            if kind == "integer":
                builder.add_integer_field(column.name, stored=True, indexed=True, fast=True)
            elif kind == "float":
                builder.add_float_field(column.name, stored=True, indexed=True, fast=True)
            elif kind == "boolean":
                builder.add_boolean_field(column.name, stored=True, indexed=True, fast=True)
            elif kind == "date":
                builder.add_date_field(column.name, stored=True, indexed=True, fast=True)
            elif kind == "bytes":
                builder.add_bytes_field(column.name, stored=True)
            else:
                tokenizer = "default" if kind == "text" else "raw"
                builder.add_text_field(column.name, stored=True, tokenizer_name=tokenizer)
        return builder.build()

    def _write(self, part: list[Document], known: int | None) -> None:
        # A version above all in the index needs no look.
        looked = [d.key for d in part if d.version is None or (known or 0) >= d.version]
        stored = self._versions(looked) if looked and known is not None else {}
        for each in part:
            before = stored.get(each.key)
            version = before if each.version is None else each.version
            if version is None or (before is not None and before > version):
                continue
            if len(each.key.encode()) > _LONGEST_KEY:
                raise RowError(f"a key for {self.target} has more than {_LONGEST_KEY} bytes")
            for name in (KEY, GONE):
                self._writer.delete_documents_by_term(name, each.key)
            self._writer.add_document(self._document(each, version))

    def _versions(self, keys: list[str]) -> dict[str, int]:
        """Return the versions that documents have in the index, also those that are deleted."""
        queries = self._tantivy.Query
        searcher, schema = self._index.searcher(), self._index.schema
        found: dict[str, int] = {}
        for name in (KEY, GONE):
            query = queries.term_set_query(schema, name, keys)
            for _, address in searcher.search(query, limit=len(keys), count=False).hits:
                document = searcher.doc(address)
                found[document[name][0]] = document[VERSION][0]
        return found

    def _document(self, document: Document, version: int) -> Any:
        made = self._tantivy.Document()
        made.add_text(GONE if document.fields is None else KEY, document.key)
        made.add_unsigned(VERSION, version)
        for column in self._columns if document.fields is not None else ():
            value = (document.fields or {}).get(column.name)
            if value is None:
                continue
            kind = _kind(column, self._texts)
            if kind == "integer":
                made.add_integer(column.name, value)
            elif kind == "float":
                made.add_float(column.name, value)
            elif kind == "boolean":
                made.add_boolean(column.name, value)
            elif kind == "date":
                made.add_date(column.name, _moment(value))
            elif kind == "bytes":
                made.add_bytes(column.name, value)
            else:
                made.add_text(column.name, text_of(value))
        return made

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise tantivy's errors, which are ``ValueError`` and ``OSError``, as ``SinkError``."""
        try:
            yield
        except (ValueError, OSError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            hint = "Check the folder and the disk. The batch will be retried."
            if "lock" in str(error).lower():
                hint = "Another process writes to it. The batch will be retried."
            raise SinkError(f"can't write {self.target}: {lines[0]}", hint=hint) from error


def _kind(column: Column, texts: frozenset[str]) -> str:
    """Return the kind of a column's field: ``text`` can be searched by words."""
    if column.type in _WHOLE:
        return "integer"
    if column.type in ("float", "double"):
        return "float"
    if column.type in _TIMES:
        return "date"
    if column.type in ("boolean", "binary"):
        return "boolean" if column.type == "boolean" else "bytes"
    return "text" if column.name.lower() in texts else "raw"


def _moment(value: Any) -> Any:
    """Return a date or a time as a time without a zone, in UTC."""
    import datetime

    if not isinstance(value, datetime.datetime):
        return datetime.datetime(value.year, value.month, value.day)
    return value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo else value


def _difference(found: dict[str, str], wanted: dict[str, str]) -> str:
    changed = [
        f"{name} was {found.get(name, 'missing')}, and is {wanted.get(name, 'missing')}"
        for name in sorted(found.keys() | wanted.keys())
        if found.get(name) != wanted.get(name)
    ]
    return "; ".join(changed)


def _module() -> Any:
    """Import the package, which is an optional dependency."""
    return load("search", MissingPackageError)
