"""Turns the records of a topic into typed rows, or picks those that can't be parsed.

It connects ``fetch``, which yields records, with a parser of values. Must not know: Spark, options'
names, how records are read, how a format is parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

import pyarrow as pa

from tidemill.reading.parse.contract import Reasons
from tidemill.reading.ranges import OffsetRange
from tidemill.spark.base.ddl import Column, columns
from tidemill.spark.errors import RecordError
from tidemill.spark.source import refusals, used_columns
from tidemill.spark.source.parse import Parsed, Parser, ParseSchema, make_parser
from tidemill.spark.source.parse.ddl_schema import schema_of
from tidemill.spark.source.planning.parsing import (
    REASON,
    RECORD_COLUMNS,
    RowPlan,
    check_columns,
)


def parse_range(
    records: Iterable[pa.RecordBatch], plan: RowPlan, wanted: OffsetRange
) -> Iterator[pa.RecordBatch]:
    """Yield rows as ``parse_records``, and report at the end how many records were refused.

    Args:
        plan: What to return, with the socket for the report.
    """
    refused: list[int] = []
    yield from parse_records(records, plan, refused.append)
    if plan.report is not None:
        refusals.send(plan.report, wanted, sum(refused))


def parse_records(
    records: Iterable[pa.RecordBatch],
    plan: RowPlan,
    on_refused: Callable[[int], None] = lambda _: None,
) -> Iterator[pa.RecordBatch]:
    """Yield rows, or the refused records, in the order of the records.

    Args:
        records: Records with the columns of Kafka's sources: ``value``, ``topic``, ``partition``
            and ``offset``, and those that the schema names.
        on_refused: Called with the number of records that were refused, if there are some.

    Yields:
        Record batches, none of them empty. Rows have the columns of the schema, in its order.
        Refused records have the columns of ``records``, and ``REASON``.

    Raises:
        RecordError: A record can't be parsed, and the plan has no place for it.
        SchemaError: The schema is invalid.
    """
    names, parser = _prepared(plan)
    for batch in records:
        values = _column(batch, "value")
        if plan.refused:
            reasons = parser.check(values)
            if reasons:
                yield _refused(batch, reasons)
            continue
        parsed = parser.parse(values)
        if parsed.reasons and not plan.drop_malformed:
            raise _error(batch, *parsed.reasons[0])
        if parsed.reasons:
            on_refused(len(parsed.reasons))
        if len(parsed.reasons) < batch.num_rows:
            rows = _rows(batch, parsed, names)
            if rows.num_rows:  # a parser may leave out records that have no row
                yield rows


@lru_cache(maxsize=32)
def _prepared(plan: RowPlan) -> tuple[tuple[str, ...], Parser]:
    """Return the names of all columns, and the parser. A worker runs many tasks of a query."""
    made = columns(plan.schema)
    schema = parse_schema(made, plan.schema, plan.event_time, plan.timestamp_format)
    names = tuple(each.name for each in made)
    wanted = None if plan.used is None else used_columns.read(plan.used)
    if wanted is None:
        return names, make_parser(schema, plan.format)
    parsed = {each.name for each in schema.columns}
    return names, make_parser(schema, plan.format, only=parsed & wanted)


def parse_schema(
    columns: Sequence[Column], ddl: str, event_time: str | None, timestamp_format: str
) -> ParseSchema:
    """Return what values are parsed to: the columns that don't come from the record.

    Raises:
        SchemaError: A column has a reserved name, or its type is not supported.
        OptionError: The timestamp format is unknown.
    """
    check_columns(columns)
    # The time of a record is never null.
    of_record = event_time is not None and event_time.lower() in RECORD_COLUMNS
    return schema_of(
        ddl,
        event_time=None if of_record else event_time,
        timestamp_format=timestamp_format,
        skip=tuple(RECORD_COLUMNS),
    )


def _rows(batch: pa.RecordBatch, parsed: Parsed, names: tuple[str, ...]) -> pa.RecordBatch:
    values = iter(parsed.columns)
    arrays: list[pa.Array] = []
    for name in names:
        if name not in RECORD_COLUMNS:
            arrays.append(next(values))
            continue
        column = _column(batch, name.removeprefix("_"))
        arrays.append(column if parsed.accepted is None else column.filter(parsed.accepted))
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _refused(batch: pa.RecordBatch, reasons: Reasons) -> pa.RecordBatch:
    picked = batch.take(pa.array([index for index, _ in reasons], pa.int64()))
    texts = pa.array([reason for _, reason in reasons], pa.string())
    arrays = [_column(picked, name) for name in picked.schema.names]
    return pa.RecordBatch.from_arrays([*arrays, texts], names=[*picked.schema.names, REASON])


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column in the type of ``fetch``: Spark gives times another zone."""
    column = batch.column(name)
    return column.cast(_TYPES[name]) if name in _TYPES else column


_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def _error(batch: pa.RecordBatch, index: int, reason: str) -> RecordError:
    topic, partition, offset = (
        batch.column(name)[index].as_py() for name in ("topic", "partition", "offset")
    )
    return RecordError(
        f"topic {topic}: the record at offset {offset} of partition {partition} can't be "
        f"parsed: {reason}"
    )
