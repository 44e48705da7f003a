"""Parse the records of a changelog to rows of its table, in Python workers.

Values are parsed as those of streams: docs/json-values.md has the rules, and ``source.parse`` the
parser. A null value is a row that is null. Must not know: Kafka clients, which records count.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.spark.base.ddl import Column
from tidemill.spark.errors import JoinError
from tidemill.spark.source.parse import Parser, make_parser
from tidemill.spark.tables.changes import INTEGERS, key_json
from tidemill.spark.tables.records import TableSchema
from tidemill.spark.tables.source import (
    COMMIT_TIME,
    DELETED,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    VERSION,
)

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn

Place = Callable[[int], str]
"""Returns the name of the record at an index, for error messages."""

_DIGITS = r"\A(0|-?[1-9][0-9]*)\z"
_SHOWN = 200
"""Most characters of a row in an error message."""
_A_NUMBER = re.compile(r" is not TIMESTAMP: -?[0-9]")
_TIMES_HINT = (
    'If the number counts from 1970, declare the table with timestamp_format="epoch_s" (or '
    "epoch_ms, epoch_us)."
)
_HINT = (
    "docs/json-values.md says what each type accepts. Write the record again, or delete its row."
)


class RowParser:
    """Parses rows of one table. Spark pickles it for its Python workers.

    Args:
        table: the name of the table in error messages.

    Attributes:
        names: the names of all columns.
    """

    def __init__(self, table: str, schema: TableSchema) -> None:
        self._table = table
        self._schema = schema
        self.names = schema.names

    @cached_property
    def _values(self) -> Parser:
        return make_parser(self._schema.parsed)

    @cached_property
    def _keys(self) -> Parser:
        return make_parser(self._schema.parsed_key)

    def rows(self, values: pa.Array, place: Place) -> pa.StructArray:
        """Return values as structs of all columns; null for null.

        Raises:
            JoinError: a value is not a JSON object of the table's schema.
        """
        valid = values.is_valid()
        parsed = self._values.parse(values.drop_null())
        if parsed.reasons:
            index, reason = parsed.reasons[0]
            index = pc.indices_nonzero(valid)[index].as_py()
            raise self._error(place(index), f"can't be parsed: {reason}")
        fields = [pa.field(each.name, each.arrow) for each in self._schema.parsed.columns]
        made = pa.StructArray.from_arrays(parsed.columns, fields=fields)
        if not values.null_count:
            return made
        numbers = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
        return made.take(pc.if_else(valid, numbers, pa.scalar(None, pa.int64())))

    def keys(self, keys: pa.Array, place: Place) -> list[pa.Array]:
        """Return the columns of the table's key from the keys of records.

        Raises:
            JoinError: a key is null, lacks a column, or has a column of another type.
        """
        names = self._schema.key_names
        if keys.null_count:
            index = pc.index(keys.is_null(), True).as_py()
            raise self._error(place(index), f"has no key of {', '.join(names)}")
        column = self._schema.key[0]
        if len(names) == 1 and column.type == "STRING":
            with contextlib.suppress(pa.ArrowInvalid):  # below, the error says which key it is
                return [keys.cast(pa.string())]
        parsed = self._keys.parse(_key_objects(keys, column) if len(names) == 1 else keys)
        if parsed.reasons:
            index, reason = parsed.reasons[0]
            reason = re.sub("^the value", "it", reason)
            raise self._error(place(index), f"has an invalid key: {reason}")
        for name, column in zip(names, parsed.columns, strict=True):
            if column.null_count:
                index = pc.index(column.is_null(), True).as_py()
                raise self._error(place(index), f"has a key without {name}")
        return parsed.columns

    def records(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the columns of the table, those of the key from the keys of records.

        Args:
            batch: records with the columns key, value, partition and offset.
        """

        def place(index: int) -> str:
            offset, partition = (batch.column(name)[index] for name in ("offset", "partition"))
            return f"the record at offset {offset} of partition {partition}"

        keys = self.keys(batch.column("key"), place)
        rows = self.rows(batch.column("value"), place)
        found = dict(zip(self.names, rows.flatten(), strict=True))
        found |= zip(self._schema.key_names, keys, strict=True)
        return [found[name] for name in self.names]

    def _error(self, record: str, problem: str) -> JoinError:
        hint = _TIMES_HINT if _A_NUMBER.search(problem) else _HINT
        return JoinError(f"table {self._table}: {record} {problem}", hint=hint)


def _key_objects(keys: pa.Array, column: Column) -> pa.Array:
    """Return keys, which are texts of one column, as JSON objects."""
    if column.type in INTEGERS and pc.all(pc.match_substring_regex(keys, _DIGITS)).as_py():
        name = orjson.dumps(column.name)
        return pc.binary_join_element_wise(b"{" + name + b":", keys, b"}", b"")
    made = [key_json(key, column.name, column.type) for key in keys.to_pylist()]
    return pa.array(made, pa.binary())


CHANGE_COLUMNS = (
    f"{DELETED} boolean, {PARTITION} int, {OFFSET} bigint, {TIMESTAMP} timestamp, {VERSION} bigint"
)
"""Columns of ``change_rows`` behind those of the table."""


def change_rows(
    records: pa.RecordBatch, parser: RowParser, version: pa.Array, commit: pa.Array | None = None
) -> pa.RecordBatch:
    """Return records as changes of a table, with the columns of ``TableSource.changes``.

    Args:
        records: the columns key, value, partition, offset and timestamp.
    """
    columns = {
        **dict(zip(parser.names, parser.records(records), strict=True)),
        DELETED: records.column("value").is_null(),
        PARTITION: records.column("partition"),
        OFFSET: records.column("offset"),
        TIMESTAMP: records.column("timestamp").cast(pa.timestamp("us", tz="UTC")),
        VERSION: version,
        **({} if commit is None else {COMMIT_TIME: commit}),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def row_of(value: SparkColumn, schema: TableSchema, table: str) -> SparkColumn:
    """Return the row that a JSON object is, as a struct of all columns; null for null.

    The function's name and the type are part of the fingerprints of queries.

    Args:
        value: the JSON objects, as bytes or text.
    """
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

    parser = RowParser(table, schema)

    def parse_row(values: pa.Array) -> pa.Array:
        return parser.rows(values, lambda index: f"the row {_shown(values[index].as_py())}")

    made: SparkColumn = arrow_udf(parse_row, schema.row_type)(value)
    return made.cast(schema.row_type)


def _shown(value: bytes | str) -> str:
    text = value if isinstance(value, str) else value.decode(errors="replace")
    return text[:_SHOWN]
