"""Check the columns that a join compares, and that the result's columns have unique names.

Must not know: topics, caches, watermarks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.spark.base.ddl import escaped
from tidemill.spark.errors import JoinError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

On = str | Sequence[str] | Mapping[str, str]
"""Columns to compare: names that both sides have, or ``{left column: right column}``."""


def pairs(on: On) -> tuple[tuple[str, str], ...]:
    """Return the columns to compare as pairs (left, right)."""
    if isinstance(on, Mapping):
        found = tuple((str(left), str(right)) for left, right in on.items())
    else:
        names = (on,) if isinstance(on, str) else tuple(on)
        found = tuple((name, name) for name in names)
    if not found:
        raise JoinError("a join needs columns to compare", hint='For example on="id".')
    return found


def column(name: str) -> Column:
    """Return the column of a name, which may have any characters, such as ``max((a * 1.5))``."""
    from pyspark.sql import functions as f

    return f.col(escaped(name))


def check_how(how: str, allowed: Sequence[str]) -> None:
    """Check the kind of a join."""
    if how not in allowed:
        raise JoinError(f"invalid join how={how!r}", hint=f"Use one of {', '.join(allowed)}.")


def check_columns(df: DataFrame, names: Iterable[str], what: str) -> None:
    """Check that a DataFrame has columns.

    Args:
        names: the columns, case-insensitive.
        what: the subject of the error message.
    """
    there = {name.lower() for name in df.columns}
    missing = [name for name in names if name.lower() not in there]
    if missing:
        raise JoinError(
            f"{what} has no column {', '.join(missing)}", hint=f"It has {', '.join(df.columns)}."
        )


def check_distinct(left: Iterable[str], right: Iterable[str], prefix: str) -> None:
    """Check that both sides of a join have different columns.

    Args:
        prefix: the parameter that renames the columns of the right side, for the hint.
    """
    taken = {name.lower() for name in left}
    both = sorted(name for name in right if name.lower() in taken)
    if both:
        raise JoinError(
            f"both sides have a column {', '.join(both)}",
            hint=f'Rename it, or use a prefix for the right side: {prefix}="other_".',
        )
