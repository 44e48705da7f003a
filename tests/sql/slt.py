"""Files in the style of sqllogictest: blocks, separated by empty lines.

query [follow] [view]       rows of a statement; also if it is followed, and as a view
SELECT ...
[duckdb                     the statement for DuckDB, where it is another one
SELECT ...]
----
one row in each line

table NAME COLUMNS          an empty topic
write ROWS                  a statement that writes so many rows
error PATTERN               a statement that fails
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Block:
    """A block of a file.

    Attributes:
        kind: the first word.
        given: the rest of the first line.
        statement: the statement on topics.
        oracle: the statement for DuckDB.
        rows: the result, as lines.
    """

    kind: str
    given: str
    statement: str
    oracle: str
    rows: tuple[str, ...]

    def __str__(self) -> str:
        return self.statement[:60] or self.given[:60]


def blocks(name: str) -> Iterator[Block]:
    """Yield the blocks of a file of this folder."""
    text = (Path(__file__).parent / f"{name}.slt").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for part in "\n".join(lines).split("\n\n"):
        if not part.strip():
            continue
        head, _, rest = part.strip("\n").partition("\n")
        kind, _, given = head.partition(" ")
        body, _, rows = rest.partition("\n----")
        statement, _, oracle = body.partition("\nduckdb\n")
        yield Block(kind, given, statement, oracle or statement, tuple(rows.split("\n")[1:]))


def queries(*names: str, way: str = "") -> list[Block]:
    """Return the queries of files; with ``way`` only those that can be run so."""
    found = [block for name in names for block in blocks(name) if block.kind == "query"]
    return [block for block in found if not way or way in block.given.split()]


def lines_of(rows: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """Return rows as the files have them."""
    return tuple("  ".join(map(str, row)) for row in rows)
