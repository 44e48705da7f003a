"""Checks the name of a PostgreSQL table and its dsn before anything connects.

A dsn may contain a password, and in a mistyped dsn it may be anywhere. So no part of a dsn is ever
shown, and a dsn that libpq would quote in its errors is rejected here. Must not know: Spark, Kafka,
rows.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

from tidemill.extras import load
from tidemill.spark.errors import MissingPackageError, OptionError, SchemaError

LONGEST_NAME = 63
"""Most bytes of a name. PostgreSQL silently cuts a longer one."""
TOMBSTONES = "__deleted"
"""Suffix of the name of the table with the keys of deleted rows, as in ``rows``."""

_PORTS = re.compile(r"[0-9]*(,[0-9]*)*")
_HOW = (
    'Write "host=db dbname=flights user=etl", or postgresql://etl@db/flights with %40 for an @ and '
    "%2F for a / in it; keep the password in ~/.pgpass."
)


def driver() -> Any:
    """Import the package psycopg, which is an optional dependency."""
    return load("postgres", MissingPackageError)


def check(dsn: str, table: str) -> None:
    """Check the declaration of a sink without connecting.

    Raises:
        MissingPackageError: The package psycopg is not installed.
        OptionError: The dsn can't be parsed.
        SchemaError: A name is longer than PostgreSQL allows.
    """
    _check_names(table)
    given = _parsed(dsn)
    suspects = [given.get(key, "") for key in ("host", "hostaddr")]
    if "://" in dsn:
        suspects.append(given.get("dbname", ""))
    ports = given.get("port", "")
    if any("@" in each for each in suspects) or not _PORTS.fullmatch(ports):
        raise _unparsable()


def place_of(dsn: str) -> Hashable:
    """Return a value that is equal for two dsns of the same database. It must not be shown."""
    try:
        given = _parsed(dsn)
    except (OptionError, MissingPackageError):  # ``check`` reports it
        return dsn
    known = {**_defaults(), **given}
    host = known.get("hostaddr") or known.get("host", "")
    database = known.get("dbname") or known.get("user", "")
    return (host.lower(), known.get("port", ""), database, known.get("service", ""))


def _check_names(table: str) -> None:
    *schema, bare = table.split(".")
    longest = LONGEST_NAME - len(TOMBSTONES)
    if len(bare.encode()) > longest or any(len(each.encode()) > LONGEST_NAME for each in schema):
        raise SchemaError(
            f"the name of table {table} is too long for PostgreSQL",
            hint=f"Use at most {longest} bytes, because the table of deleted keys adds "
            f"{TOMBSTONES}. The name of a schema may have {LONGEST_NAME}.",
        )


def _parsed(dsn: str) -> Mapping[str, str]:
    psycopg = driver()
    from psycopg.conninfo import conninfo_to_dict

    try:
        return {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
    except psycopg.Error:
        pass  # raised below, outside of this handler: the text of this error contains the dsn
    raise _unparsable()


def _defaults() -> Mapping[str, str]:
    """Return the defaults that libpq takes from the environment."""
    from psycopg import pq

    found = pq.Conninfo.get_defaults()
    return {each.keyword.decode(): each.val.decode() for each in found if each.val is not None}


def _unparsable() -> OptionError:
    return OptionError(
        "can't parse the dsn for PostgreSQL (not shown because it may contain a password)",
        hint=_HOW,
    )
