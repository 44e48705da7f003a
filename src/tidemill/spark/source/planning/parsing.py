"""Parses the options that say how the source parses values, and plans the rows of a query.

Must not know: Spark, Kafka clients, Arrow, how a format is parsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.spark.errors import OptionError, SchemaError

if TYPE_CHECKING:  # a process that plans a query parses no DDL, and has no need of a parser for it
    from tidemill.spark.base.ddl import Column

FORMATS = ("json", "debezium")
RECORD_COLUMNS: Mapping[str, str] = {
    "_key": "BINARY",
    "_topic": "STRING",
    "_partition": "INT",
    "_offset": "BIGINT",
    "_timestamp": "TIMESTAMP",
    "_headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
"""Columns that come from the record instead of from its value, with their types."""

REASON = "reason"
"""The column of a refused record with the reason."""

_NEED_FORMAT = (
    *("value.schema", "event.time", "timestamp.format", "mode", "rows", "refusals.report"),
    "columns.used",
)
_MODES = ("FAILFAST", "DROPMALFORMED")
_ROWS = ("accepted", "refused")


@dataclass(frozen=True, slots=True)
class RowPlan:
    """The way from records to rows, the same for all tasks of a query.

    Attributes:
        schema: The columns as DDL, those of ``RECORD_COLUMNS`` among them; empty in the options of
            a source whose columns ``.schema()`` gives.
        format: The format of the values.
        event_time: A column in which null refuses the record, or None.
        timestamp_format: What a number in a TIMESTAMP column means.
        drop_malformed: Whether records that can't be parsed are left out. If not, they fail the
            query.
        refused: Whether to return the records that can't be parsed, instead of the rows.
        report: A socket for reports about refused records (``source.refusals``), or None.
        used: A file with the columns that have values (``source.used_columns``), or None.
    """

    schema: str = ""
    format: str = "json"
    event_time: str | None = None
    timestamp_format: str = "iso"
    drop_malformed: bool = False
    refused: bool = False
    report: str | None = None
    used: str | None = None


def parsing_options(given: Mapping[str, str]) -> RowPlan | None:
    """Return the options for parsing values; None if values are not parsed.

    Raises:
        OptionError: An option is invalid, or has an effect only together with ``value.format``.
    """
    if "value.format" not in given:
        alone = [name for name in _NEED_FORMAT if name in given]
        if alone:
            raise OptionError(
                f"option {alone[0]} has no effect without value.format",
                hint="Set value.format to json or debezium, or remove the option.",
            )
        return None
    refused = _one_of(given, "rows", _ROWS) == "refused"
    if refused and not given.get("value.schema"):
        raise OptionError(
            "rows=refused needs the option value.schema",
            hint="Set value.schema to the columns of the value as DDL, and leave .schema() out.",
        )
    return RowPlan(
        format=_one_of(given, "value.format", FORMATS),
        schema=given.get("value.schema", ""),
        event_time=given.get("event.time"),
        timestamp_format=given.get("timestamp.format", "iso"),
        drop_malformed=_one_of(given, "mode", _MODES) == "DROPMALFORMED",
        refused=refused,
        report=given.get("refusals.report"),
        used=given.get("columns.used"),
    )


def check_columns(columns: Iterable[Column]) -> None:
    """Check the names and types of a schema's columns against those of a record.

    Raises:
        SchemaError: A column of the record has another type or spelling than in
            ``RECORD_COLUMNS``, or no column comes from the value.
    """
    of_value = 0
    for each in columns:
        name = each.name.lower()
        if name not in RECORD_COLUMNS:
            of_value += 1
        elif name != each.name or each.type.replace("`", "") != RECORD_COLUMNS[name]:
            raise SchemaError(
                f"column {each.name} {each.type}: this name is reserved for a column of the record",
                hint=f"Declare it as {name} {RECORD_COLUMNS[name]}, or rename it.",
            )
    if not of_value:
        raise SchemaError(
            "the schema has no column of the value",
            hint="Add one, or read the columns of the source without parsing the values.",
        )


def _one_of(given: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    """Return an option in its declared spelling; the first of ``known`` if it is not set."""
    value = given.get(name, known[0]).strip()
    for each in known:
        if value.lower() == each.lower():
            return each
    raise OptionError(f"invalid option {name} {value!r}", hint=f"Use {' or '.join(known)}.")
