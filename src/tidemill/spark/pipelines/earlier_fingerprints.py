"""Convert stored fingerprints of earlier formats, so that their checkpoints can be continued.

In format 1, Spark parsed the rows of tables, and the text of its expression was in the fingerprint
of a query that keeps state above ``enrich``. Since format 2, Python workers parse them. Must not
know: Spark, the files of a checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_VALUE = re.compile(r"( *)with (.*) AS __tidemill_value", re.DOTALL)
_PARSED = re.compile(
    r" *with CASE WHEN isnull\(cast\(CASE WHEN \(SPARK_PARTITION_ID\(\) >= 0\) THEN "
    r"__tidemill_value END as string\)\) THEN cast\(null as (struct<.*?>)\) WHEN coalesce\(.*\) "
    r"as \1\) END AS __tidemill_row",
    re.DOTALL,
)
_CHECKED = "where (isnotnull(__tidemill_row) OR isnull(__tidemill_value))"
_INNER = "where isnotnull(__tidemill_value)"
_USED = re.compile(r" *with __tidemill_row\.")


def converted(state: Sequence[str], made_by: str) -> tuple[tuple[str, ...], str]:
    """Return the lines and the version of a fingerprint in the format of today."""
    if not made_by.startswith("1 "):
        return tuple(state), made_by
    lines: list[str] = []
    kept = list(state)
    while kept:
        lines += _without_row(kept, lines[-1] if lines else "") or [kept.pop(0)]
    return tuple(lines), f"2 {made_by.removeprefix('1 ')}"


def _without_row(kept: list[str], above: str) -> list[str] | None:
    """Take the lines about the row of a table from the beginning of others, and return new ones.

    Args:
        kept: the lines of which they are taken.

    Returns:
        None if the first line is not about a row.
    """
    parsed = _PARSED.fullmatch(kept[1]) if len(kept) > 2 else None
    if parsed is None or kept[0].strip() != _CHECKED:
        return None
    inner = kept[2].strip() == _INNER
    value = _VALUE.fullmatch(kept[2 + inner]) if len(kept) > 2 + inner else None
    if value is None:
        return None
    del kept[: 3 + inner]
    indent, made = value.groups()
    # In format 1, a row was parsed for its errors even if no column of it was used.
    if not inner and not _USED.match(above):
        return []
    return [
        *([f"{indent}where isnotnull(__tidemill_row)"] if inner else []),
        f"{indent}with cast(parse_row({made}) as {parsed[1]}) AS __tidemill_row",
    ]
