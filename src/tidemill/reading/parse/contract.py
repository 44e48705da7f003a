"""The contract of a parser of values. Must not know: any format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

Reasons = list[tuple[int, str]]
"""Index of each refused value in its array, ascending, and why it was refused."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """The result of parsing an array of values.

    Attributes:
        columns: One array for each column of the schema, in order, with exactly its Arrow type.
            They hold the accepted values only, in order.
        accepted: Whether each value was accepted, one for each value; None if all were.
        reasons: The refused values.
    """

    columns: list[pa.Array]
    accepted: pa.BooleanArray | None
    reasons: Reasons


class Parser(Protocol):
    """Parses values of one format by one schema. It keeps no state between calls."""

    def parse(self, values: pa.Array) -> Parsed:
        """Parse values to columns.

        Args:
            values: Binary, large binary or string values. A null is refused.

        Raises:
            ParseLimitError: The values are too large for Arrow columns in total.
            TypeError: The array has another type.
        """
        ...

    def check(self, values: pa.Array) -> Reasons:
        """Return the values that ``parse`` refuses, without building columns."""
        ...


def require_text(values: pa.Array) -> None:
    """Check that values are of a type that a parser takes."""
    kind = values.type
    if not (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    ):
        raise TypeError(f"values to parse must be binary or text, and are {kind}")
