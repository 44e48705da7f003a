"""What can be said of a PostgreSQL table and its dsn before anything connects.

A dsn may hold a password, and a mistyped one holds it anywhere: no text of it is ever told, and
what libpq would tell of in its errors is refused here. Must not know: Spark, Kafka, the rows.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

from tidemill.errors import MissingPackageError, OptionError, SchemaError
from tidemill.spark.options import noted, refuse

LONGEST_NAME = 63
"""Bytes of a name; PostgreSQL cuts what is longer, in silence."""
TOMBSTONES = "__deleted"
"""Ends the name of the table with the keys of deleted rows, as ``upsert_rows`` has it."""

_PORTS = re.compile(r"[0-9]*(,[0-9]*)*")
_HOW = (
    'Write "host=db dbname=flights user=etl", or postgresql://etl@db/flights with %40 for an @ and '
    "%2F for a / in it; keep the password in ~/.pgpass."
)


def driver() -> Any:
    """The package, which is an extra.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        import psycopg
    except ImportError:
        raise noted(
            MissingPackageError(
                "the package psycopg is not installed", hint="pip install 'tidemill[postgres]'"
            )
        ) from None
    return psycopg


def check(dsn: str, table: str) -> None:
    """Whether a sink can be what is meant.

    Raises:
        MissingPackageError: psycopg is not installed.
        OptionError: the dsn can't be read.
        SchemaError: PostgreSQL would cut a name.
    """
    _check_names(table)
    given = _parsed(dsn)
    suspects = [given.get(key, "") for key in ("host", "hostaddr")]
    if "://" in dsn:
        suspects.append(given.get("dbname", ""))
    ports = given.get("port", "")
    if any("@" in each for each in suspects) or not _PORTS.fullmatch(ports):
        raise _unreadable()


def place_of(dsn: str) -> Hashable:
    """What tells a dsn's database from others; not to be shown."""
    try:
        given = _parsed(dsn)
    except (OptionError, MissingPackageError):  # told of elsewhere
        return dsn
    known = {**_defaults(), **given}
    host = known.get("hostaddr") or known.get("host", "")
    database = known.get("dbname") or known.get("user", "")
    return (host.lower(), known.get("port", ""), database, known.get("service", ""))


def _check_names(table: str) -> None:
    *schema, bare = table.split(".")
    longest = LONGEST_NAME - len(TOMBSTONES)
    if len(bare.encode()) > longest or any(len(each.encode()) > LONGEST_NAME for each in schema):
        raise noted(
            SchemaError(
                f"the name of table {table} is too long for PostgreSQL",
                hint=f"At most {longest} bytes: {TOMBSTONES} is added to it for the table of "
                f"deleted keys; a schema's has at most {LONGEST_NAME}.",
            )
        )


def _parsed(dsn: str) -> Mapping[str, str]:
    psycopg = driver()
    from psycopg.conninfo import conninfo_to_dict

    try:
        return {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
    except psycopg.Error:
        pass  # raised outside: what libpq says has the dsn in it
    raise _unreadable()


def _defaults() -> Mapping[str, str]:
    """What libpq takes from the environment."""
    from psycopg import pq

    found = pq.Conninfo.get_defaults()
    return {each.keyword.decode(): each.val.decode() for each in found if each.val is not None}


def _unreadable() -> OptionError:
    return refuse("the dsn for PostgreSQL can't be read (it is not shown: it may be secret)", _HOW)
