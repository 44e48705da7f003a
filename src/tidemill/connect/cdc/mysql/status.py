"""Ask a MySQL server for the end of its binary log, and for its identity.

Changes nothing. Must not know the stream of the binary log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pymysql

from tidemill.connect.cdc.binlog.catalog import query
from tidemill.connect.cdc.errors import SetupError

_SYNTAX = 1064


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The end of the binary log.

    Attributes:
        file: the file that is written.
        end: the place behind its last event.
        do: databases to which the log is limited, separated by commas.
        ignore: databases that are left out.
        executed: the ids of the transactions that are visible.
    """

    file: str
    end: int
    do: str
    ignore: str
    executed: str


def log_status(connection: pymysql.Connection[Any]) -> LogStatus:
    """Return the end of the binary log. It is behind all that a read before could see.

    Raises:
        SetupError: the server has no binary log.
    """
    try:
        rows = query(connection, "SHOW BINARY LOG STATUS")
    except pymysql.err.ProgrammingError as error:
        if error.args[0] != _SYNTAX:
            raise
        rows = query(connection, "SHOW MASTER STATUS")  # before 8.2
    if not rows:
        raise SetupError(
            "the server has no binary log",
            hint="Set log_bin in the server's configuration, and start the server again.",
        )
    file, end, do, ignore, executed = rows[0]
    return LogStatus(str(file), int(end), do or "", ignore or "", str(executed or ""))


def server_uuid(connection: pymysql.Connection[Any]) -> str:
    """Return the identity of the server."""
    ((found,),) = query(connection, "SELECT @@server_uuid")
    return str(found)
