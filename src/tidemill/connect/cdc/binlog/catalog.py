"""Tables and columns of a server, from ``information_schema``.

Must not know the binary log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pymysql

from tidemill.connect.cdc.contract import Column, Table
from tidemill.connect.cdc.values import Kind

SYSTEM_DATABASES = ("information_schema", "mysql", "performance_schema", "sys")

_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year"), "int"),
    **dict.fromkeys(("float", "double"), "float"),
    "decimal": "decimal",
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), "text"),
    "set": "text",
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob"), "bytes"),
    "longblob": "bytes",
    "date": "date",
    "time": "time",
    "datetime": "timestamp",
    "timestamp": "timestamptz",
    "enum": "enum",
    "uuid": "uuid",
    **dict.fromkeys(("inet4", "inet6"), "other"),
    **dict.fromkeys(
        ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"), "bytes"
    ),
    **dict.fromkeys(("multipolygon", "geometrycollection", "geomcollection"), "bytes"),
    "vector": "bytes",
    "json": "json",
}


@dataclass(frozen=True, slots=True)
class Field:
    """A column as the catalog has it.

    Attributes:
        data_type: the type without its size, e.g. ``varchar``.
        column_type: with its size, e.g. ``varchar(20)``.
        character_set: of text; None for types without one.
        expression: that of a generated column; empty for others.
    """

    name: str
    data_type: str
    column_type: str
    nullable: bool
    character_set: str | None = None
    expression: str = ""

    @property
    def kind(self) -> Kind | None:
        """The neutral kind; None if the type is not supported."""
        if self.data_type == "bit":
            return "bool" if self.column_type == "bit(1)" else "other"
        return _KINDS.get(self.data_type)

    def column(self) -> Column:
        """Return the column of the contract."""
        return Column(self.name, self.column_type, self.kind or "other", self.nullable)


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A base table.

    Attributes:
        is_versioned: MariaDB keeps earlier versions of its rows (WITH SYSTEM VERSIONING).
    """

    database: str
    name: str
    engine: str
    rows: int
    fields: tuple[Field, ...]
    key: tuple[str, ...]
    is_versioned: bool = False

    def table(self) -> Table:
        """Return the table of the contract."""
        columns = tuple(field.column() for field in self.fields)
        return Table(self.database, self.database, self.name, columns, self.key)


def query(connection: pymysql.Connection[Any], statement: str, *args: Any) -> list[Any]:
    """Run a query and return its rows, with all values as text.

    Raises:
        UnicodeDecodeError: a text is not valid UTF-8. The connection is closed.
    """
    with connection.cursor() as cursor:
        try:
            cursor.execute(statement, args or None)
        except UnicodeDecodeError:
            connection._force_close()  # the rest of the result is still to come
            raise
        return list(cursor.fetchall())


def quoted(name: str) -> str:
    """Return a name for a statement without arguments."""
    return "`" + name.replace("`", "``") + "`"


def variable(connection: pymysql.Connection[Any], name: str) -> str:
    """Return a global variable of the server; an empty string if it has none of this name."""
    rows = query(connection, "SHOW GLOBAL VARIABLES LIKE %s", name)
    return str(rows[0][1]) if rows else ""


def character_sets(connection: pymysql.Connection[Any], statement: str) -> dict[int, str]:
    """Return the character set of each collation id."""
    rows = query(connection, statement)
    return {int(number): str(name) for number, name in rows}


def read_tables(
    connection: pymysql.Connection[Any], only: tuple[str, str] | None = None
) -> list[CatalogTable]:
    """Return the base tables that the user can read, without those of the system.

    Args:
        only: database and name of one table.
    """
    where = "t.table_schema = %s AND t.table_name = %s" if only else "t.table_schema NOT IN %s"
    args: tuple[Any, ...] = only or (SYSTEM_DATABASES,)
    tables = query(
        connection,
        "SELECT t.table_schema, t.table_name, t.engine, t.table_rows, t.table_type "
        f"FROM information_schema.tables t WHERE {where} "
        "AND t.table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY 1, 2",
        *args,
    )
    columns = query(
        connection,
        "SELECT t.table_schema, t.table_name, t.column_name, t.data_type, t.column_type, "
        "t.is_nullable, t.character_set_name, COALESCE(t.generation_expression, '') "
        f"FROM information_schema.columns t WHERE {where} "
        "ORDER BY 1, 2, t.ordinal_position",
        *args,
    )
    keys = query(
        connection,
        "SELECT t.table_schema, t.table_name, t.column_name FROM information_schema.statistics t "
        f"WHERE {where} AND t.index_name = 'PRIMARY' ORDER BY 1, 2, t.seq_in_index",
        *args,
    )
    fields = _grouped(columns)
    key_columns = _grouped(keys)
    return [
        CatalogTable(
            database,
            name,
            str(engine or ""),
            int(rows or 0),
            tuple(
                Field(column, data_type.lower(), column_type, nullable == "YES", *more)
                for column, data_type, column_type, nullable, *more in fields.get(
                    (database, name), ()
                )
            ),
            tuple(str(each[0]) for each in key_columns.get((database, name), ())),
            kind == "SYSTEM VERSIONED",
        )
        for database, name, engine, rows, kind in tables
    ]


def _grouped(rows: Iterable[Any]) -> dict[tuple[str, str], list[Any]]:
    groups: dict[tuple[str, str], list[Any]] = {}
    for database, table, *rest in rows:
        groups.setdefault((database, table), []).append(rest)
    return groups
