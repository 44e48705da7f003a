"""Follow a query: yield its rows as records come, and those of windows when they are complete.

Must not know: commands, HTTP.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Self

import duckdb
import pyarrow as pa

from tidemill.sql.columns import Misfits, Shape
from tidemill.sql.database import ask, quoted, reader, translated
from tidemill.sql.errors import QueryEndedError, StatementRefusedError
from tidemill.sql.feed import Feed
from tidemill.sql.incremental import END, Plan, merge
from tidemill.sql.running import Calls
from tidemill.sql.statement import LATEST

_POLL_S = 0.2
_STATE = "__state"
_ROWS = 10_000


class Follower:
    """A query that is followed. Iterate over it for rows as tuples, or over ``batches``.

    Args:
        feed: the records, in ``database``.
        watermark: how long the rows of a window are waited for.
        ends: by partition, where to stop; None for never.

    Attributes:
        description: the columns, as in PEP 249.
        late: how many rows came after their windows were complete, and were left out.
    """

    def __init__(
        self,
        database: duckdb.DuckDBPyConnection,
        plan: Plan,
        feed: Feed,
        parameters: Sequence[Any],
        *,
        watermark: timedelta,
        ends: Mapping[int, int] | None,
        misfits: Misfits,
        cancelled: threading.Event,
    ) -> None:
        self._database, self._plan, self._feed = database, plan, feed
        self._parameters = list(parameters)
        self._delay, self._ends = watermark, ends
        self._misfits, self._cancelled = misfits, cancelled
        self._calls = Calls(database, cancelled)
        self._highest: dict[int, datetime] = {}
        self._watermark: datetime | None = None
        self._left = plan.limit
        self.late = 0
        if plan.result:
            merge(database, plan, _STATE, self._parameters)
        rows = plan.result.format(_STATE) if plan.result else plan.batch
        given = None if plan.result else self._parameters or None
        self.description = list(database.sql(rows, params=given).description)

    def batches(self) -> Iterator[pa.Table]:
        """Yield rows as they come, as tables of Arrow.

        Raises:
            SqlError: an expression fails.
            DataLossError: records were removed before they were read.
            UnreachableError: no broker answers.
        """
        while not self._cancelled.is_set() and self._left != 0:
            try:
                with self._calls.call():
                    found = self._feed.read()
                    rows = self._step() if found else None
            except QueryEndedError:
                return
            except (duckdb.Error, pa.ArrowException) as error:
                if self._cancelled.is_set():
                    return
                raise translated(error) from error
            if rows is not None and rows.num_rows:
                if self._left is not None:
                    rows = rows.slice(0, self._left)
                    self._left -= rows.num_rows
                yield rows
            if not found:
                if self._ends is not None and self._is_at(self._ends):
                    return
                self._cancelled.wait(_POLL_S)

    @property
    def warnings(self) -> list[str]:
        """Warnings about what was followed so far: values that did not fit, rows that were late."""
        found = []
        if self._misfits.count:
            found.append(self._misfits.warning())
        if self.late:
            what = "1 row" if self.late == 1 else f"{self.late} rows"
            found.append(f"{what} came after the end of their windows, and were left out")
        return found

    def cancel(self) -> None:
        """End it, from another thread."""
        self._calls.cancel()

    def close(self) -> None:
        """Free everything."""
        self._calls.close()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in self.batches():
            yield from rows_of(batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_at(self, ends: Mapping[int, int]) -> bool:
        positions = self._feed.source.positions
        return all(positions.get(number, 0) >= end for number, end in ends.items())

    def _step(self) -> pa.Table:
        """Return the rows that a batch adds to the result."""
        if not self._plan.result:
            relation = self._database.sql(self._plan.batch, params=self._parameters or None)
            return reader(relation, _ROWS).read_all()
        self.late += merge(self._database, self._plan, _STATE, self._parameters, self._watermark)
        self._advance()
        complete = f"(FROM {_STATE} WHERE {END} <= ? ORDER BY ALL)"
        asked = self._plan.result.format(complete)
        rows = reader(self._database.sql(asked, params=[self._watermark]), _ROWS).read_all()
        ask(self._database, f"DELETE FROM {_STATE} WHERE {END} <= ?", [self._watermark])
        return rows

    def _advance(self) -> None:
        """Move the watermark: the highest time that was read, less the delay.

        Of partitions with records that are not read yet, the one that is behind most counts, so
        that a backlog is not late because it is read in pieces.
        """
        source = quoted(self._plan.source)
        asked = f"SELECT _partition, max({self._plan.time}) FROM {source} GROUP BY 1"
        for number, time in ask(self._database, asked):
            if time is not None:
                self._highest[number] = max(time, self._highest.get(number, time))
        tail = self._feed.source
        behind = [n for n, end in tail.ends().items() if tail.positions.get(n, 0) < end]
        if any(number not in self._highest for number in behind) or not self._highest:
            return
        times = [self._highest[number] for number in behind]
        newest = min(times) if times else max(self._highest.values())
        found = newest - self._delay if newest - datetime.min > self._delay else datetime.min
        self._watermark = found if self._watermark is None else max(found, self._watermark)


def rows_of(batch: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a batch. A time that Python does not have is text, as DuckDB returns it."""
    yield from zip(*map(_values, batch.columns), strict=True)


def _values(column: pa.ChunkedArray) -> list[Any]:
    try:
        found: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        found = column.cast(pa.string()).to_pylist()
    return found


def refused(
    error: StatementRefusedError, statement: str, shapes: Mapping[str, Shape]
) -> StatementRefusedError:
    """Return the error of a query that can't be followed, with the pipeline that says it.

    Args:
        shapes: the columns of its topics.
    """
    names = {topic: re.sub(r"\W", "_", topic) for topic in shapes}
    text = statement.strip()
    for topic, name in sorted(names.items(), key=lambda each: -len(each[0])):
        escaped = re.escape(topic)
        text = re.sub(rf'"{escaped}(\$latest)?"|(?<!\w){escaped}(\$latest)?(?![\w$])', name, text)
    lines = ["from tidemill.spark import Pipeline, TopicSink", "", 'pipeline = Pipeline("query")']
    for topic, shape in shapes.items():
        schema = ", ".join(f"{_name(name)} {_ddl(kind)}" for name, kind in shape.fields.items())
        what = "table" if f"{topic}{LATEST}" in statement else "stream"
        key = f", key={next(iter(shape.fields), 'id')!r}" if what == "table" else ""
        lines.append(f"pipeline.{what}({names[topic]!r}, topic={topic!r}{key}, schema={schema!r})")
    whole = repr(text) if "\\" in text or '"' in text else f'"""{text}"""'
    lines += [f'pipeline.sql("query", {whole}, sink=TopicSink("query.result"))']
    hint = "A pipeline can. Save this, and run it with 'tidemill pipeline run FILE':\n\n"
    return StatementRefusedError(str(error), hint=hint + "\n".join(lines))


def _name(name: str) -> str:
    """Return a name of a column as CREATE TABLE of Spark has it."""
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else f"`{name.replace('`', '``')}`"


def _ddl(kind: pa.DataType) -> str:
    """Return a type as CREATE TABLE of Spark has it."""
    types = pa.types
    if types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{_name(each.name)}: {_ddl(each.type)}' for each in kind)}>"
    if types.is_list(kind):
        return f"ARRAY<{_ddl(kind.value_type)}>"
    known = {pa.bool_(): "BOOLEAN", pa.float64(): "DOUBLE", pa.int32(): "INT", pa.date32(): "DATE"}
    if types.is_timestamp(kind):
        return "TIMESTAMP"
    if types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return known.get(kind, "BIGINT" if types.is_integer(kind) else "STRING")
