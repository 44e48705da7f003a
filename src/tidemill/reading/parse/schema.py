"""The columns that values are parsed to. Must not know: formats of values.

A schema can be pickled, so that the driver makes it once for all tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tidemill.errors import OptionError, SchemaError
from tidemill.reading.parse import ISO, TIMESTAMP_FORMATS


@dataclass(frozen=True, slots=True)
class ParsedColumn:
    """A column of a schema.

    Attributes:
        name: Name of the column, and of the field in the value.
        type: Spark's name of the type: ``TIMESTAMP``, ``ARRAY<STRING>``.
        arrow: The Arrow type that Spark expects for it.
    """

    name: str
    type: str
    arrow: pa.DataType


@dataclass(frozen=True, slots=True)
class ParseSchema:
    """The columns that values are parsed to.

    Attributes:
        columns: The columns, in order.
        event_time: The column that must not be null; a value without it is refused.
    """

    columns: tuple[ParsedColumn, ...]
    event_time: str | None = None
    timestamp_format: str = ISO

    def __post_init__(self) -> None:
        if self.timestamp_format not in TIMESTAMP_FORMATS:
            raise OptionError(
                f"unknown timestamp format {self.timestamp_format!r}",
                hint=f"Use one of: {', '.join(TIMESTAMP_FORMATS)}.",
            )
        names = [column.name for column in self.columns]
        if self.event_time is not None and self.event_time not in names:
            same = [name for name in names if name.lower() == self.event_time.lower()]
            if len(same) != 1:
                raise SchemaError(
                    f"the event time {self.event_time} is not a column of the schema",
                    hint=f"Its columns are {', '.join(names) or 'none'}.",
                )
            object.__setattr__(self, "event_time", same[0])

    @property
    def arrow(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        return pa.schema([(column.name, column.arrow) for column in self.columns])
