"""The demo's database in a PostgreSQL server, in a schema of its own.

The schema, the replication slot and the publication are dropped at the end of a run. This module
must not know brokers or events.
"""

from __future__ import annotations

import contextlib
from typing import Any

from tidemill.connect.base.secrets import redact
from tidemill.connect.cdc.contract import Capture
from tidemill.demo.database.tables import DatabaseError, Dialect, Tables
from tidemill.demo.topics import SOURCE
from tidemill.errors import TidemillError
from tidemill.extras import load

SCHEMA = "tidemill_demo"
_DIALECT = Dialect(parameter="%s", whole="INTEGER", time="TIMESTAMPTZ", schema=SCHEMA)
_VARIABLE = "DEMO_DATABASE"


class PostgresDatabase:
    """A database in a server.

    Args:
        url: its address for libpq. It can contain a password, so it is never shown.
    """

    kind = "postgres"
    schema = SCHEMA

    def __init__(self, url: str) -> None:
        self._url = url
        psycopg = _driver()
        try:
            known = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            known = None  # raised below: the text of this error contains the URL
        if known is None:
            raise DatabaseError(
                "the URL of the database is malformed (not shown: it may contain a password)",
                hint="For example --database postgresql://tidemill@localhost/shop",
            )
        server = known.get("host") or known.get("hostaddr") or "the local server"
        self.description = f"PostgreSQL, {known.get('dbname') or 'a database'} at {server}"

    @property
    def options(self) -> dict[str, Any]:
        """The options of the database in the definition of a source."""
        return {"dsn": f"${{env:{_VARIABLE}}}"}

    @property
    def environment(self) -> dict[str, str]:
        """The variables that ``options`` refers to."""
        return {_VARIABLE: self._url}

    def prepare(self, *, reset: bool) -> None:
        """Create the schema. It must not exist; ``reset`` drops that of an earlier run first."""
        if reset:
            self.drop()
        with self._connected() as connection:
            if connection.execute("SELECT to_regnamespace(%s)", (SCHEMA,)).fetchone()[0]:
                raise DatabaseError(
                    f"the database has the schema {SCHEMA} of an earlier run",
                    hint="Run the demo with --reset, which drops it.",
                )
            connection.execute(f"CREATE SCHEMA {SCHEMA}")
        self._check()

    def open(self) -> Tables:
        """Connect. Use the result in one thread."""
        psycopg = _driver()
        try:
            return Tables(psycopg.connect(self._url), _DIALECT)
        except psycopg.Error as error:
            raise _translated(error) from None

    def drop(self) -> None:
        """Drop the replication slot, the publication and the schema, as far as they exist."""
        from tidemill.connect.cdc.postgres import PostgresSource

        try:
            source = PostgresSource(self._capture())
            source.drop()
        finally:
            with self._connected() as connection:
                connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")

    def _check(self) -> None:
        """Check that the server allows capture."""
        from tidemill.connect.cdc.postgres import PostgresSource

        source = PostgresSource(self._capture())
        try:
            errors = [each for each in source.check() if each.severity == "error"]
        finally:
            source.close()
        if errors:
            with contextlib.suppress(TidemillError):
                self.drop()
            raise DatabaseError(
                f"the database can't be captured: {errors[0].text}", hint=errors[0].fix
            )

    def _capture(self) -> Capture:
        return Capture(SOURCE, (f"{SCHEMA}.*",), database={"dsn": self._url})

    @contextlib.contextmanager
    def _connected(self) -> Any:
        psycopg = _driver()
        try:
            with psycopg.connect(self._url, autocommit=True) as connection:
                yield connection
        except psycopg.Error as error:
            raise _translated(error) from None


def _driver() -> Any:
    return load("postgres", DatabaseError)


def _translated(error: Exception) -> DatabaseError:
    lines = redact(str(error)).strip().splitlines() or [type(error).__name__]
    return DatabaseError(f"the database can't be used: {lines[0]}")
