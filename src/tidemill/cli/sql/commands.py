"""``tidemill sql``: one statement, a file of statements, or a shell."""

from __future__ import annotations

import contextlib
import enum
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tidemill.cli import output
from tidemill.cli.options import LOCAL, Brokers, Json, Yes, is_given
from tidemill.errors import TidemillError
from tidemill.sql.errors import SqlError
from tidemill.sql.plain import plain

if TYPE_CHECKING:
    from tidemill.sql.commands import Splitter
    from tidemill.sql.following import Follower
    from tidemill.sql.session import Connection, Cursor

T = TypeVar("T")

_LIMIT = 1 << 30
"""Bytes above which a statement asks before it reads."""
_PROMPT, _MORE = "sql> ", "...> "
_CANCEL_S = 5.0
"""How long Ctrl-C waits for the end of a statement."""
_SHOWN = 1000
_WIDTH, _LEAST_WIDTH = 60, 19


_Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--columns", metavar="TOPIC=COLUMNS", help="Columns of a topic: 'orders=id BIGINT'."
    ),
]
_Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0.001, help="The time limit of a query."),
]
_Memory = Annotated[str, typer.Option("--memory", metavar="SIZE", help="DuckDB's memory limit.")]
_MaxBytes = Annotated[
    int, typer.Option("--max-bytes", metavar="N", min=0, help="Ask before reading more.")
]
_Files = Annotated[
    Path | None,
    typer.Option(
        "--files", metavar="DIR", help="Folder whose files COPY writes and queries can read."
    ),
]
_Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Print rows as records come, until Ctrl-C.")
]


class _Start(enum.StrEnum):
    """The places where a query that is followed can begin."""

    BEGINNING = "beginning"
    END = "end"


_From = Annotated[
    _Start, typer.Option("--from", help="Where --follow begins, without a condition that says it.")
]
_Watermark = Annotated[
    str,
    typer.Option("--watermark", metavar="TIME", help="How long windows of --follow are kept open."),
]
_UntilEnd = Annotated[
    bool, typer.Option("--until-end", help="Stop --follow at the end that the topic has now.")
]


def sql(
    context: typer.Context,
    statement: Annotated[
        str | None,
        typer.Argument(metavar="STATEMENT", help="A statement; without it, a shell or stdin."),
    ] = None,
    brokers: Brokers = LOCAL,
    columns: _Columns = None,
    timeout: _Timeout = None,
    memory: _Memory = "1GB",
    max_bytes: _MaxBytes = _LIMIT,
    files: _Files = None,
    follow: _Follow = False,
    from_: _From = _Start.END,
    watermark: _Watermark = "10 seconds",
    until_end: _UntilEnd = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Json = False,
    yes: Yes = False,
) -> None:
    """Query topics with SQL, without a JVM (DuckDB).

    Topics are tables. 'orders$latest' has the last record of each key. EXPLAIN before a query says
    what it would read.
    """
    from tidemill import sql as topics_sql
    from tidemill.cli.client import Cluster
    from tidemill.extras import require_extra

    require_extra("sql")
    _check_options(context)
    cluster = Cluster.at(brokers)
    declared = dict(_declared(each) for each in columns or ())
    connection = topics_sql.connect(
        cluster.servers,
        properties=cluster.properties,
        memory=memory,
        timeout_s=timeout,
        schemas=declared,
        files=files,
    )
    show = _csv if as_csv else _json_lines if as_json else _table
    if follow:
        if statement is None:
            raise output.UsageError("--follow needs a statement")
        more: Any = {"start": from_.value, "watermark": watermark, "until_end": until_end}
        _follow(connection.follow(statement, **more), _lined if show is _table else show)
        return
    if statement is not None:
        _run(connection, statement, show, max_bytes, yes=yes)
        return
    _run_all(connection, show, max_bytes, yes=yes)


def _run_all(connection: Connection, show: Any, max_bytes: int, *, yes: bool) -> None:
    """Run the statements of stdin. The first error ends them, but not a shell."""
    interactive = sys.stdin is not None and sys.stdin.isatty()
    for each in _statements(interactive):
        try:
            _run(connection, each, show, max_bytes, yes=yes)
        except TidemillError as error:
            if not interactive:
                raise
            output.error(str(error), error.hint)
            if isinstance(error, output.NoAnswerError):
                return  # Ctrl-D ends the shell also there
        except KeyboardInterrupt:
            if not interactive:
                raise
            sys.stderr.write("\n")


_OF_FOLLOW = {"from_": "--from", "watermark": "--watermark", "until_end": "--until-end"}
_NOT_OF_FOLLOW = {"timeout": "--timeout", "max_bytes": "--max-bytes"}


def _check_options(context: typer.Context) -> None:
    """Check that no option is given that would change nothing.

    Raises:
        UsageError: one is.
    """
    follows, way = context.params["follow"], "can't be used with --follow"
    others, why = (_NOT_OF_FOLLOW, way) if follows else (_OF_FOLLOW, "needs --follow")
    for parameter, name in others.items():
        if is_given(context, parameter):
            raise output.UsageError(f"{name} {why}")
    if context.params["as_csv"] and context.params["as_json"]:
        raise output.UsageError("--csv goes without --json")


def _declared(text: str) -> tuple[str, str]:
    topic, sign, columns = text.partition("=")
    if not sign or not topic:
        raise output.UsageError(
            f"invalid columns {text!r}", hint="Write TOPIC=COLUMNS: 'orders=id BIGINT, n INTEGER'."
        )
    return topic, columns


def _run(connection: Connection, statement: str, show: Any, max_bytes: int, *, yes: bool) -> None:
    from tidemill.sql.errors import TooMuchToReadError

    connection.max_bytes = max_bytes
    with connection.cursor() as cursor:

        def run() -> None:
            _until_interrupted(lambda: cursor.execute(statement), cursor.cancel)
            show(_Rows(cursor))

        try:
            run()
        except TooMuchToReadError as error:
            output.confirm(f"This reads about {output.size_text(error.bytes)}. Continue?", yes=yes)
            connection.max_bytes = None
            run()
        for note in cursor.notes:
            output.note(note)
        for warning in cursor.warnings:
            output.warn(warning)


def _until_interrupted(work: Callable[[], T], cancel: Callable[[], None]) -> T:
    """Do something in a thread. Ctrl-C cancels it: amid a query, DuckDB looks at no signal.

    Nothing is printed there: a write that waits for the reader of a pipe can't be cancelled, but
    Ctrl-C ends it in the main thread.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # raised again below
            errors.append(error)
        done.set()

    threading.Thread(target=run, name="statement", daemon=True).start()
    try:
        done.wait()
    except KeyboardInterrupt:
        cancel()
        done.wait(_CANCEL_S)
        raise
    if errors:
        raise errors[0]
    return results[0]


class _Rows:
    """The rows of a cursor, which are fetched until Ctrl-C."""

    def __init__(self, cursor: Cursor) -> None:
        self.description = cursor.description or ()
        self._cursor = cursor

    def fetchmany(self, count: int) -> list[tuple[Any, ...]]:
        return _until_interrupted(lambda: self._cursor.fetchmany(count), self._cursor.cancel)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while rows := self.fetchmany(_SHOWN):
            yield from rows


def _follow(follower: Follower, show: Any) -> None:
    """Print the rows of a query that is followed, each batch when it comes."""
    with follower:
        try:
            show(_Flushed(follower))
        except KeyboardInterrupt:
            output.flush_in_time()
    for warning in follower.warnings:
        output.warn(warning)


class _Flushed:
    """The rows of a follower, each batch of which is flushed."""

    def __init__(self, follower: Follower) -> None:
        self.description = follower.description
        self._follower = follower

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        from tidemill.sql.following import rows_of

        batches, cancel = self._follower.batches(), self._follower.cancel
        while (batch := _until_interrupted(lambda: next(batches, None), cancel)) is not None:
            yield from rows_of(batch)
            sys.stdout.flush()


def _lined(rows: _Flushed) -> None:
    """Print rows as lines of columns. Their widths are those of the names, or wider."""
    from tidemill.frames import shown

    names = [output.cell(each[0]) for each in rows.description]
    widths = [max(len(name), _LEAST_WIDTH) for name in names]

    def line(cells: Iterable[str]) -> str:
        return "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip()

    print(line(names))
    for row in rows:
        print(line(shown(_text(value), _WIDTH) for value in row))


def _statements(interactive: bool) -> Iterator[str]:
    """Yield the statements of stdin: each ends with ``;``, the last one also with the input."""
    from tidemill.sql.commands import LONGEST, Splitter

    splitter = Splitter()
    if interactive:
        yield from _typed(splitter)
    elif sys.stdin is not None:
        for line in iter(lambda: sys.stdin.buffer.readline(LONGEST + 1), b""):
            yield from splitter.add(line)
    if splitter.rest:
        yield splitter.rest


def _typed(splitter: Splitter) -> Iterator[str]:
    """Yield the statements that are typed, until the end of the input or ``exit``."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (lines can be edited)
    while True:
        try:
            line = input(_MORE if splitter.has_begun else _PROMPT)
            if not splitter.has_begun and _is_exit(line):
                return
            found = splitter.add(f"{line}\n".encode("utf-8", "surrogateescape"))
        except EOFError:
            return
        except KeyboardInterrupt:
            splitter.clear()
            sys.stderr.write("\n")
        except (SqlError, UnicodeDecodeError) as error:
            splitter.clear()
            output.error(str(error))
        else:
            for each in found:
                if _is_exit(each):
                    splitter.clear()
                    return
                yield each


def _is_exit(text: str) -> bool:
    return text.strip().rstrip("; ").lower() in ("exit", "quit", ".quit", "\\q")


def _table(found: _Rows) -> None:
    from tidemill.frames import shown

    names = [str(each[0]) for each in found.description]
    rows = found.fetchmany(_SHOWN + 1)
    cells = ([shown(_text(value), _WIDTH) for value in row] for row in rows[:_SHOWN])
    output.emit_table(names, cells)
    if len(rows) > _SHOWN:
        output.warn(f"these are the first {_SHOWN} rows; --csv and --json print all")


def _json_lines(found: _Rows) -> None:
    names = _distinct([str(each[0]) for each in found.description])
    for row in found:
        output.emit_json({n: plain(v) for n, v in zip(names, row, strict=True)})


def _distinct(names: list[str]) -> list[str]:
    """Return names of columns with a number behind those that occur again: an object has one."""
    found: dict[str, None] = {}
    for name in names:
        number, own = 0, name
        while own in found:
            number += 1
            own = f"{name}_{number}"
        found[own] = None
    return [*found]


def _csv(found: _Rows) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([each[0] for each in found.description])
    writer.writerows([_text(value) for value in row] for row in found)


def _text(value: Any) -> str:
    found = plain(value)
    if isinstance(found, (dict, list)):
        import json

        return json.dumps(found, ensure_ascii=False)
    if isinstance(value, (datetime, timedelta)):
        return str(value)
    return "" if found is None else str(found)
