"""SQL on topics, without a JVM: ``tidemill.sql.connect().execute("SELECT * FROM orders").df()``.

DuckDB computes; our native reader feeds it with Arrow, through a Kafka client only. The package
duckdb is the extra ``sql``. Must not know: the broker's inside, Spark, commands.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.errors import TidemillError
from tidemill.extras import problem_of
from tidemill.sql.errors import QueryEndedError as OperationalError
from tidemill.sql.errors import SqlError as DatabaseError
from tidemill.sql.errors import SqlError as Error
from tidemill.sql.errors import StatementRefusedError as NotSupportedError
from tidemill.sql.errors import UnknownTableError as ProgrammingError

if TYPE_CHECKING:
    from tidemill.sql.session import Connection

__all__ = [
    "DatabaseError",
    "Error",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]

apilevel, threadsafety, paramstyle = "2.0", 1, "qmark"
"""As in PEP 249."""


@functools.cache
def _problem() -> tuple[str, str] | None:
    """Return what is wrong with the packages. To look takes tens of ms."""
    return problem_of("sql")


def connect(
    bootstrap_servers: str | None = None,
    *,
    properties: Mapping[str, str] | None = None,
    memory: str = "1GB",
    threads: int | None = None,
    timeout_s: float | None = None,
    max_bytes: int | None = None,
    schemas: Mapping[str, str] | None = None,
    files: str | Path | None = None,
    read_only: bool = False,
    views: bool = True,
) -> Connection:
    """Return a connection on which statements can be run.

    Args:
        bootstrap_servers: the brokers; by default the variable TIDEMILL_BOOTSTRAP_SERVERS, or
            localhost:9092.
        properties: librdkafka's properties, e.g. for TLS and SASL.
        memory: the memory limit of DuckDB.
        threads: the threads of DuckDB; by default one for each core.
        timeout_s: the time limit of a statement, from its start to its last row.
        max_bytes: the most that a statement can read.
        schemas: columns of topics in DuckDB's types; a topic without them is sampled.
        files: the only folder in which statements can use files: ``COPY t TO 'x.parquet'``. Without
            it, none can.
        read_only: whether only queries run, and not INSERT and COPY.
        views: whether statements can read the materialized views of this machine.

    Raises:
        TidemillError: the packages of the extra are not installed.
        SqlError: a schema is malformed.
    """
    if (problem := _problem()) is not None:
        raise TidemillError(problem[0], hint=problem[1])
    from tidemill.confluent.clients import Kafka
    from tidemill.frames import BOOTSTRAP_VARIABLE, DEFAULT_SERVERS
    from tidemill.sql.session import Connection

    servers = bootstrap_servers or os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_SERVERS
    return Connection(
        Kafka(servers, dict(properties or {}), prefix="properties: "),
        memory=memory,
        threads=threads,
        timeout_s=timeout_s,
        max_bytes=max_bytes,
        schemas=schemas,
        files=files,
        read_only=read_only,
        views=views,
    )
