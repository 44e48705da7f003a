"""What all joins ask: which columns are compared, and that no two of the result have one name.

Must not know: topics, caches, watermarks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.errors import JoinError
from tidemill.spark.ddl import escaped

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

On = str | Sequence[str] | Mapping[str, str]
"""Columns to compare: of one name on both sides, or the left one's name to the right one's."""


def pairs(on: On) -> tuple[tuple[str, str], ...]:
    """Columns to compare, as (left, right).

    Raises:
        JoinError: there are none.
    """
    if isinstance(on, Mapping):
        found = tuple((str(left), str(right)) for left, right in on.items())
    else:
        names = (on,) if isinstance(on, str) else tuple(on)
        found = tuple((name, name) for name in names)
    if not found:
        raise JoinError("a join without columns to compare", hint='For example on="id".')
    return found


def column(name: str) -> Column:
    """A column of any name, as Spark gives one to what has no alias."""
    from pyspark.sql import functions as f

    return f.col(escaped(name))


def check_how(how: str, allowed: Sequence[str]) -> None:
    """Whether there is such a join.

    Raises:
        JoinError: there is none.
    """
    if how not in allowed:
        raise JoinError(f"there is no join {how!r} here", hint=f"One of {', '.join(allowed)}.")


def check_columns(df: DataFrame, names: Iterable[str], what: str) -> None:
    """Whether a DataFrame has columns.

    Raises:
        JoinError: one is missing.
    """
    there = {name.lower() for name in df.columns}
    missing = [name for name in names if name.lower() not in there]
    if missing:
        raise JoinError(
            f"{what} has no column {', '.join(missing)}", hint=f"It has {', '.join(df.columns)}."
        )


def check_distinct(left: Iterable[str], right: Iterable[str], prefix: str) -> None:
    """Whether the result's columns have names of their own.

    Args:
        prefix: the parameter that would rename those of the right side.

    Raises:
        JoinError: a name is on both sides.
    """
    taken = {name.lower() for name in left}
    both = sorted(name for name in right if name.lower() in taken)
    if both:
        raise JoinError(
            f"both sides have a column {', '.join(both)}",
            hint=f'Rename it, or give those of the right side a prefix: {prefix}="other_".',
        )
