"""Gives the encoder the columns of Arrow record batches, without copying them.

Must not know: brokers, batches of records, Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tidemill.spark.errors import DeliveryError

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

Columns = tuple[Any, ...]
"""Value, key, partition and headers, each a tuple of buffers or None."""


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each topic, in their order.

    Args:
        topic: Topic for all rows; None for the topic in each row.
    """
    if topic is not None:
        yield topic, batch
        return
    topics = batch.column("topic")
    if topics.null_count:
        raise DeliveryError(
            "the topic of a row is null", hint="Set the option topic, or filter rows."
        )
    import pyarrow.compute as pc  # its import takes a while, and one topic for all rows is usual

    # A stable sort, so that the time does not depend on the number of topics.
    batch = batch.take(pc.array_sort_indices(topics))
    runs, first = pc.run_end_encode(batch.column("topic").cast(pa.string())), 0
    for name, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield name, batch.slice(first, end - first)
        first = end


def columns(batch: pa.RecordBatch) -> Columns:
    """Return the buffers of the columns, as the encoder takes them.

    Args:
        batch: Rows with a column ``value``, and optionally ``key``, ``partition`` and ``headers``.
    """
    names = set(batch.schema.names)
    value = _binary(batch.column("value"), "value")
    key = _binary(batch.column("key"), "key") if "key" in names else None
    partition = headers = None
    if "partition" in names:
        partition = _numbers(_cast(batch.column("partition"), pa.int32(), "partition"))
    if "headers" in names:
        headers = _headers(_cast(batch.column("headers"), _HEADERS, "headers"))
    return value, key, partition, headers


def _cast(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DeliveryError(
            f"column {name} has the type {column.type}, which is not written: {error}",
            hint=f"Cast it to {kind}.",
        ) from error


def _binary(column: pa.Array, name: str) -> Columns:
    kind = column.type
    if pa.types.is_null(kind):
        return _nulls(column)
    if not pa.types.is_string(kind) and not pa.types.is_binary(kind):
        if not (_is_text(kind) or _is_text(getattr(kind, "value_type", None))):
            raise DeliveryError(
                f"column {name} has the type {kind}, which is not written",
                hint="Cast it to a string or to binary.",
            )
        column = _cast(column, pa.binary(), name)
    return (column.offset, len(column), *column.buffers())


def _is_text(kind: Any) -> bool:
    types = pa.types
    return isinstance(kind, pa.DataType) and (
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_large_string(kind)
        or types.is_large_binary(kind)
        or types.is_string_view(kind)
        or types.is_binary_view(kind)
    )


def _nulls(column: pa.Array) -> Columns:
    """Return a column in which all values are null."""
    nothing = pa.nulls(len(column), pa.binary())
    return (0, len(nothing), *nothing.buffers())


def _numbers(column: pa.Array) -> Columns:
    bits, values = column.buffers()
    return column.offset, len(column), bits, values, None


def _headers(column: pa.Array) -> Columns:
    bits, ends = column.buffers()[:2]
    # With the validity of the struct, so that a null in its place has a null key.
    keys, values = column.values.flatten()
    return (
        (column.offset, len(column), bits, ends, None),
        (keys.offset, len(keys), *keys.buffers()),
        (values.offset, len(values), *values.buffers()),
    )
