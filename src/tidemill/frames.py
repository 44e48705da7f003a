"""Read a topic into Python: ``tidemill.read("orders").to_pandas()``.

A range of each partition is fixed when the topic is read, so what is returned is a snapshot: all
its methods show the same records. Must not know: Spark, the broker's inside.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from tidemill.confluent.asking import TopicQuestions
from tidemill.confluent.clients import Kafka
from tidemill.duration import microseconds
from tidemill.errors import DataLossError, OptionError, TidemillError, UnknownTopicOrPartitionError
from tidemill.extras import require_extra, require_package
from tidemill.record_json import time_ms

if TYPE_CHECKING:
    import pyarrow as pa

Values = Literal["bytes", "text", "json"]
Moment = str | datetime | timedelta
BOOTSTRAP_VARIABLE = "TIDEMILL_BOOTSTRAP_SERVERS"
DEFAULT_SERVERS = "localhost:9092"
_CLIENT = "tidemill-read"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MIN, _MAX = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_SHOWN = 10
_WIDTH = 40


class ValuesError(TidemillError):
    """Values of a topic are not what ``values`` says."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic.

    Attributes:
        key: its key, or None.
        value: its value; None is a tombstone.
        topic: its topic.
        partition: its partition.
        offset: its place in the partition.
        timestamp: its time; the nearest one that Python has, if that is outside of its years.
        headers: names and values, in their order.
    """

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: datetime
    headers: tuple[tuple[str, bytes | None], ...]

    def json(self) -> Any:
        """Return the value as JSON.

        Raises:
            ValueError: it is not JSON, or there is none.
        """
        if self.value is None:
            raise ValueError(f"{self.topic}-{self.partition} offset {self.offset} has no value")
        return json.loads(self.value)


def read(
    topic: str,
    *,
    since: Moment | None = None,
    until: Moment | None = None,
    last: int | None = None,
    partitions: Iterable[int] | None = None,
    limit: int | None = None,
    values: Values = "json",
    bootstrap_servers: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Records:
    """Return the records of a topic that are committed now, or a part of them.

    Nothing is read before a method of the result asks for records.

    Args:
        topic: the topic.
        since: the first time: ``"1 hour"`` or a timedelta ago, an ISO 8601 time (UTC if it names no
            zone) or a datetime. Without it, from the first record that is kept.
        until: the time behind the last record, in the same forms.
        last: only so many offsets at the end of each partition.
        partitions: only these.
        limit: at most so many records, in the order of partitions.
        values: what ``to_arrow`` and the others make of values: columns of the fields of JSON
            objects, one column of text, or one of bytes.
        bootstrap_servers: the brokers; by default the variable TIDEMILL_BOOTSTRAP_SERVERS, or
            localhost:9092.
        properties: librdkafka's properties, e.g. for TLS and SASL.

    Raises:
        OptionError: an argument is not allowed.
        DurationError: a length of time is malformed.
        UnknownTopicOrPartitionError: the topic or a partition does not exist.
        UnreachableError: no broker answers.
        TidemillError: the package pyarrow is missing.
    """
    require_extra("arrow")
    for name, number in (("last", last), ("limit", limit)):
        if number is not None and number < 0:
            raise OptionError(f"{name} is {number}", hint="Give 0 or more.")
    if values not in ("bytes", "text", "json"):
        raise OptionError(f"values is {values!r}", hint="Give 'json', 'text' or 'bytes'.")
    servers = bootstrap_servers or os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_SERVERS
    kafka = Kafka(servers, dict(properties or {}), prefix="properties: ")
    ranges = _ranges(kafka, topic, partitions, since, until, last)
    return Records(kafka, topic, ranges, limit, values)


class Records:
    """Records of a topic, as they were when ``read`` was called.

    Iterate over it for ``Record`` objects, or ask for a table.

    Attributes:
        topic: the topic.
        ranges: the first and the end offset of each partition.
    """

    def __init__(
        self,
        kafka: Kafka,
        topic: str,
        ranges: Mapping[int, tuple[int, int]],
        limit: int | None,
        values: Values,
    ) -> None:
        self.topic = topic
        self.ranges = dict(ranges)
        self._kafka = kafka
        self._limit = limit
        self._values = values
        self._duckdb: Any = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records as Arrow record batches, without keeping them in memory.

        The columns are ``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp``,
        ``timestampType`` and ``headers``.

        Raises:
            DataLossError: records of the range were removed meanwhile.
            UnreachableError: a partition can't be read.
        """
        from tidemill.reading.fetch import fetch
        from tidemill.reading.plan import FetchPlan
        from tidemill.reading.ranges import OffsetRange

        plan = FetchPlan.committed(
            self._kafka.servers, self._kafka.properties, _CLIENT, include_headers=True
        )
        left = self._limit
        for partition, (start, end) in self.ranges.items():
            if left == 0:
                return
            try:
                for batch in fetch(OffsetRange(self.topic, partition, start, end), plan):
                    if left is not None:
                        batch = batch.slice(0, left)
                        left -= batch.num_rows
                    yield batch
                    if left == 0:
                        break
            except DataLossError as error:
                hint = "Read the topic again: its retention has removed what was listed before."
                raise DataLossError(str(error), hint=hint) from error

    def __iter__(self) -> Iterator[Record]:
        for batch in self.batches():
            times = _times(batch.column("timestamp"))
            rows = batch.drop_columns(["timestamp", "timestampType"]).to_pylist()
            for row, timestamp in zip(rows, times, strict=True):
                headers = tuple((each["key"], each["value"]) for each in row.pop("headers") or ())
                yield Record(**row, timestamp=timestamp, headers=headers)

    def __len__(self) -> int:
        return int(self._stored.num_rows)

    def to_arrow(self) -> pa.Table:
        """Return a table. The columns of the record are named ``_key``, ``_offset`` and so on.

        With JSON, each field of the objects has a column, by the rules of docs/json-values.md. One
        that has values of several kinds is text: as they are written. A value that is missing is
        null.

        Raises:
            ValuesError: a value is not a JSON object, or not UTF-8; its place is in the message.
        """
        return self._table

    def to_pandas(self) -> Any:
        """Return a data frame of pandas, with the columns of ``to_arrow``.

        Raises:
            TidemillError: the package pandas is missing.
        """
        require_package("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return a data frame of polars, with the columns of ``to_arrow``.

        Raises:
            TidemillError: the package polars is missing.
        """
        require_package("polars")
        import polars

        return polars.from_arrow(self.to_arrow())

    def to_duckdb(self, connection: Any = None) -> Any:
        """Return a relation of DuckDB, with the columns of ``to_arrow``.

        Args:
            connection: the connection to use; by default a new one in memory.
        """
        require_extra("sql")
        import duckdb

        if connection is None:
            connection = self._duckdb = duckdb.connect()  # older ones close it with its last name
        return connection.from_arrow(self.to_arrow())

    def __repr__(self) -> str:
        return f"{_as_text(self._head)}\n{self._summary()}"

    def _repr_html_(self) -> str:
        from html import escape

        names = "".join(f"<th>{escape(name)}</th>" for name in self._head.column_names)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in _cells(self._head)
        )
        return (
            f"<table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>"
            f"<p>{escape(self._summary())}</p>"
        )

    @cached_property
    def _stored(self) -> pa.Table:
        import pyarrow as pa

        from tidemill.reading.plan import SCHEMA_WITH_HEADERS

        return pa.Table.from_batches(list(self.batches()), SCHEMA_WITH_HEADERS)

    @cached_property
    def _table(self) -> pa.Table:
        return _with_values(self._stored, self._values, self.topic)

    @cached_property
    def _head(self) -> pa.Table:
        few = Records(self._kafka, self.topic, self.ranges, self._few(), self._values)
        try:
            return few.to_arrow()
        except ValuesError:  # repr never fails because of what is in a topic
            return _with_values(few._stored, "bytes", self.topic)

    def _few(self) -> int:
        return _SHOWN if self._limit is None else min(_SHOWN, self._limit)

    def _summary(self) -> str:
        offsets = sum(end - start for start, end in self.ranges.values())
        parts = len(self.ranges)
        shown = self._head.num_rows
        return (
            f"{self.topic}: {offsets:,} offsets in {parts} partition{'s' * (parts != 1)}; "
            f"{shown} record{'s' * (shown != 1)} shown"
        )


def _ranges(
    kafka: Kafka,
    topic: str,
    partitions: Iterable[int] | None,
    since: Moment | None,
    until: Moment | None,
    last: int | None,
) -> dict[int, tuple[int, int]]:
    asking = TopicQuestions(kafka, _CLIENT)
    there = asking.extents(topic)
    if not there:
        raise UnknownTopicOrPartitionError(
            f"topic {topic} does not exist", hint="'tidemill topic list' shows what exists."
        )
    if partitions is not None:
        wanted = set(partitions)
        if unknown := wanted - there.keys():
            raise UnknownTopicOrPartitionError(
                f"topic {topic} has no partition {min(unknown)}",
                hint=f"It has the partitions 0 to {max(there)}.",
            )
        there = {number: each for number, each in there.items() if number in wanted}
    starts = {number: each.first for number, each in there.items()}
    ends = {number: each.end for number, each in there.items()}
    if since is not None:
        first = asking.since(topic, there, _time_ms("since", since))
        starts = {each: max(starts[each], _or(first[each], ends[each])) for each in there}
    if until is not None:
        after = asking.since(topic, there, _time_ms("until", until))
        ends = {each: min(ends[each], _or(after[each], ends[each])) for each in there}
    if last is not None:
        starts = {each: max(starts[each], ends[each] - last) for each in there}
    return {each: (min(starts[each], ends[each]), ends[each]) for each in there}


def _or(offset: int, other: int) -> int:
    return other if offset < 0 else offset


def _time_ms(name: str, moment: Moment) -> int:
    if isinstance(moment, datetime):
        moment = moment.isoformat()
    if isinstance(moment, str) and moment[:4].isdecimal() and moment[4:5] == "-":
        try:
            return max(0, time_ms(moment))
        except ValueError:
            raise OptionError(
                f"{name} is {moment!r}", hint="Write a time as 2026-11-20T10:00Z, or '1 hour'."
            ) from None
    return max(0, time.time_ns() // 1_000_000 - microseconds(moment) // 1000)


# --- values --------------------------------------------------------------------------------------


def _with_values(stored: pa.Table, values: Values, topic: str) -> pa.Table:
    """Return the records with the columns of their values, and those of the record behind them."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    if values == "json":
        columns = _parsed(stored, topic)
    elif values == "text":
        columns["value"] = _texts(stored, topic)
    else:
        columns["value"] = stored["value"]
    keys = stored["key"] if values == "bytes" else _keys(stored)
    of_record = {
        "_key": keys,
        "_partition": stored["partition"],
        "_offset": stored["offset"],
        "_timestamp": stored["timestamp"],
        "_headers": stored["headers"],
    }
    for name in of_record.keys() & columns.keys():  # a field of the same name stays
        columns[f"value.{name}"] = columns.pop(name)
    return pa.table(columns | of_record)


def _keys(stored: pa.Table) -> Any:
    """Return keys as text, or as bytes if one of them is not UTF-8."""
    import pyarrow as pa

    try:
        return stored["key"].cast(pa.string())
    except pa.ArrowInvalid:
        return stored["key"]


def _texts(stored: pa.Table, topic: str) -> Any:
    import pyarrow as pa

    try:
        return stored["value"].cast(pa.string())
    except pa.ArrowInvalid:
        index = next(i for i, value in enumerate(_values_of(stored)) if not _is_text(value))
        raise _refused(stored, topic, index, "it is not UTF-8", "bytes") from None


def _parsed(stored: pa.Table, topic: str) -> dict[str, Any]:
    """Return the columns of JSON objects: every field that a value has. Nulls have null rows.

    Raises:
        ValuesError: a value is not one JSON object.
    """
    import pyarrow as pa

    from tidemill.reading.parse.fields import FieldParser, fields_of, objects_in

    fields = fields_of(objects_in(_values_of(stored)))
    parser, before = FieldParser(fields), 0
    made: list[list[pa.Array]] = [[] for _ in fields]
    for chunk in stored["value"].chunks:
        arrays, reasons = parser.parse(chunk)
        if reasons:
            raise _refused(stored, topic, before + reasons[0][0], reasons[0][1], "text")
        for column, array in zip(made, arrays, strict=True):
            column.append(array)
        before += len(chunk)
    columns = zip(fields.items(), made, strict=True)
    return {name: pa.chunked_array(parts, kind) for (name, kind), parts in columns}


def _refused(stored: pa.Table, topic: str, index: int, why: str, instead: str) -> ValuesError:
    place = f"{topic}-{stored['partition'][index]} offset {stored['offset'][index]}"
    return ValuesError(f"the value at {place}: {why}", hint=f"Read with values='{instead}'.")


def _values_of(stored: pa.Table) -> Iterator[bytes | None]:
    for chunk in stored["value"].chunks:
        for each in chunk:
            yield each.as_py()


def _is_text(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


# --- how it looks --------------------------------------------------------------------------------


def _times(column: pa.Array) -> list[datetime]:
    try:
        found: list[datetime] = column.to_pylist()
    except (OverflowError, ValueError):
        return [_EPOCH + timedelta(microseconds=_clamped(each.value)) for each in column]
    return found


def _clamped(microseconds: int) -> int:
    first, last = ((each - _EPOCH) // timedelta(microseconds=1) for each in (_MIN, _MAX))
    return min(max(microseconds, first), last)


def _cells(table: pa.Table) -> list[list[str]]:
    columns = [
        _times(column.combine_chunks()) if name == "_timestamp" else column.to_pylist()
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return [[_cell(value) for value in row] for row in zip(*columns, strict=True)]


def shown(text: str, width: int = _WIDTH) -> str:
    """Return a text as a cell of a table: in one line, printable, and cut."""
    text = "".join(each if each.isprintable() else "\N{MIDDLE DOT}" for each in text)
    return text if len(text) <= width else f"{text[: width - 1]}\N{HORIZONTAL ELLIPSIS}"


def _cell(value: object) -> str:
    if value is None:
        return ""
    return shown(
        value.isoformat(" ", "milliseconds") if isinstance(value, datetime) else str(value)
    )


def _as_text(table: pa.Table) -> str:
    rows = [list(table.column_names), *_cells(table)]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
