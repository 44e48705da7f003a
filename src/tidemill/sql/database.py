"""A DuckDB for one statement: in memory, closed to files and extensions, and what is asked of it.

Must not know: clients, topics' offsets, commands.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tidemill.errors import lower_first
from tidemill.sql.columns import OF_CHANGES, RECORD, Columns, Shape, column_name
from tidemill.sql.errors import MalformedStatementError, SqlError, StatementRefusedError
from tidemill.sql.statement import LATEST, Node

_KIND = re.compile(r"^(Parser|Binder|Catalog|Permission|Invalid Input) Error: (?=.)")
FOR_LATEST = frozenset({"_key", "_partition", "_offset", "_timestamp", "_value"})
"""Columns of records that decide which one of a key is the latest."""
_MEMORY_HINT = "Read less, or raise the memory limit: --memory, or connect(memory=...)."
_WHOLE = "CASE WHEN {0} = CAST({0} AS BIGINT) THEN CAST({0} AS BIGINT) END"
_INTEGERS = {
    "_offset": _WHOLE,
    "_partition": _WHOLE,
    "_timestamp": "epoch_ms(CAST({0} AS TIMESTAMPTZ))",
}


def open_database(
    memory: str, threads: int | None, files: Path | None = None, at: Path | None = None
) -> duckdb.DuckDBPyConnection:
    """Return a database.

    Args:
        memory: DuckDB's memory limit.
        threads: DuckDB's threads; None for one for each core.
        files: the only folder in which statements can use files; None for none.
        at: the file of the database; None for memory.

    Raises:
        SqlError: a limit is malformed, or the file can't be opened.
    """
    config: dict[str, Any] = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "python_enable_replacements": "false",
        "memory_limit": memory,
        **({} if threads is None else {"threads": str(threads)}),
    }
    with translation():  # a limit of memory or threads
        database = duckdb.connect(str(at or ":memory:"), config=config)
    if files is not None:
        folder = str(files).replace("'", "''")
        ask(database, f"SET allowed_directories = ['{folder}']")
    if at is None:
        ask(database, "SET temp_directory = ''")  # or it spills into the folder of the caller
    ask(database, "SET enable_external_access = false")
    ask(database, "SET TimeZone = 'UTC'")
    ask(database, "SET enable_progress_bar = false")  # it would be on stdout, amid the rows
    return database


def ask(
    database: duckdb.DuckDBPyConnection, statement: str, parameters: Sequence[Any] = ()
) -> list[tuple[Any, ...]]:
    """Run a statement of our own to its end: a result that is not fetched blocks the next one."""
    return list(database.execute(statement, list(parameters) or None).fetchall())


def reader(relation: Any, rows: int) -> pa.RecordBatchReader:
    """Return the result as record batches. DuckDB 2 has another name for it."""
    name = "to_arrow_reader" if hasattr(relation, "to_arrow_reader") else "fetch_record_batch"
    return getattr(relation, name)(rows)


def message(error: Exception) -> str:
    """Return DuckDB's words without the name of the kind: "Parser Error: syntax error ..."."""
    return lower_first(_KIND.sub("", str(error).strip()))


def translated(error: Exception) -> Exception:
    """Return an error of DuckDB or Arrow as ``SqlError``; others as they are.

    A statement that DuckDB understands can be nested too deeply for its tree to be read.
    """
    if isinstance(error, RecursionError):
        hint = "Write a part of it as a common table expression: WITH part AS (...)."
        return StatementRefusedError("the statement is nested too deeply", hint=hint)
    if isinstance(error, duckdb.ParserException):
        return MalformedStatementError(message(error))
    if isinstance(error, (duckdb.Error, pa.ArrowException)):
        is_short = isinstance(error, duckdb.OutOfMemoryException)
        return SqlError(message(error), hint=_MEMORY_HINT if is_short else None)
    return error


@contextlib.contextmanager
def translation() -> Iterator[None]:
    """Translate errors as ``translated`` does."""
    try:
        yield
    except Exception as error:
        if (found := translated(error)) is error:
            raise
        raise found from error


def quoted(name: str) -> str:
    """Return a name in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def tree_of(database: duckdb.DuckDBPyConnection, statement: str) -> Node:
    """Return DuckDB's tree of a query.

    Raises:
        MalformedStatementError: it is not valid SQL.
        StatementRefusedError: it is not one query.
    """
    with translation():
        found = duckdb.extract_statements(statement)
    if len(found) != 1:
        raise StatementRefusedError(f"there are {len(found)} statements, and one can be run")
    if found[0].type.name == "MULTI":
        hint = "Name the values: PIVOT t ON c IN (1, 2) USING sum(n)."
        raise StatementRefusedError("PIVOT without its values can't be run", hint=hint)
    if found[0].type.name != "SELECT":
        raise StatementRefusedError(f"a statement of kind {found[0].type.name} is not a query")
    ((text,),) = ask(database, "SELECT json_serialize_sql(?::VARCHAR)", [found[0].query])
    tree: Node = json.loads(text)
    if tree.get("error"):
        raise StatementRefusedError(f"this statement can't be run: {tree.get('error_message')}")
    return tree


def text_of(database: duckdb.DuckDBPyConnection, node: Node) -> str:
    """Return the text of an expression.

    Raises:
        duckdb.Error: it is not an expression.
    """
    ((one,),) = ask(database, "SELECT json_serialize_sql('SELECT 1')")
    tree = json.loads(one)
    tree["statements"][0]["node"]["select_list"] = [node]
    ((text,),) = ask(database, "SELECT json_deserialize_sql(?::JSON)", [json.dumps(tree)])
    return str(text).removeprefix("SELECT ")


def value_of(database: duckdb.DuckDBPyConnection, node: Node, column: str) -> int | None:
    """Return the value of an expression without columns; None if it is not an integer."""
    try:
        ((found,),) = ask(
            database, f"SELECT {_INTEGERS[column].format(f'({text_of(database, node)})')}"
        )
    except duckdb.Error:
        return None
    return None if found is None else int(found)


def views(topic: str, scan: str, columns: Columns) -> Iterator[str]:
    """Yield the statements that make the tables of a topic: ``$latest`` needs ``FOR_LATEST``."""
    if columns.shape.captured:
        fields = [
            f"CASE WHEN op = 'd' THEN before.{quoted(f.name)} ELSE after.{quoted(f.name)} END "
            f"AS {quoted(column_name(f.name, RECORD + OF_CHANGES))}"
            for f in columns.shape.fields["after"]
        ]
        more = "op AS _op, (op IS NULL OR op = 'd') AS _deleted"
        record = ", ".join(columns.record)
        body = f"SELECT {', '.join(fields)}, {more}, {record} FROM {scan}"
        there = "NOT _deleted"
    else:
        body = f"SELECT * FROM {scan}"
        there = "_value IS NOT NULL"
    yield f"CREATE OR REPLACE TEMP VIEW {quoted(topic)} AS {body}"
    if not FOR_LATEST.issubset(columns.record):
        return
    # In a partition the last record counts, as in compaction. A key is in several partitions only
    # if the topic got more of them, or a producer chose them: then the time decides.
    last = (
        f"SELECT * FROM {quoted(topic)} WHERE _key IS NOT NULL "
        "QUALIFY row_number() OVER (PARTITION BY _key, _partition ORDER BY _offset DESC) = 1"
    )
    yield (
        f"CREATE OR REPLACE TEMP VIEW {quoted(topic + LATEST)} AS SELECT * FROM ({last}) "
        f"QUALIFY {there} AND row_number() "
        "OVER (PARTITION BY _key ORDER BY _timestamp DESC, _partition) = 1"
    )


def declared(text: str) -> Shape:
    """Return the columns that a user has declared, in DuckDB's types."""
    with open_database("100MB", 1) as database:
        try:
            ask(database, f"CREATE TABLE t ({text})")
            found = reader(database.sql("SELECT * FROM t"), 1).schema
        except duckdb.Error as error:
            raise MalformedStatementError(f"invalid columns {text!r}: {error}") from error
    return Shape({each.name: each.type for each in found})
