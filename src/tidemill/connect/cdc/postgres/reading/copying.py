"""Reads the lines of a COPY in the format text.

Source: PostgreSQL's documentation, "COPY", File Formats. Must not know: tables, the stream.
"""

from __future__ import annotations

import re
from typing import Any

from tidemill.connect.cdc.postgres.errors import ProtocolError, translated

_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_BYTES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def copied(connection: Any, query: Any, doing: str) -> list[bytes]:
    """Run a COPY to the client, and return its lines.

    Args:
        connection: A psycopg connection.
        query: The statement.
        doing: What is done, for errors: "can't <what>".

    Raises:
        CaptureError: The server refuses it, or the connection is broken.
    """
    import psycopg
    from psycopg import pq
    from psycopg.errors import error_from_result

    pg = connection.pgconn
    lines: list[bytes] = []
    get, add = pg.get_copy_data, lines.append
    try:
        result = pg.exec_(query.as_bytes(connection))
        if result.status == pq.ExecStatus.COPY_OUT:
            while True:
                length, data = get(0)
                if length < 0:
                    break
                add(bytes(data))
            result = pg.get_result()
            while pg.get_result() is not None:
                pass
    except psycopg.Error as fault:
        raise translated(fault, doing) from None
    if result is None or result.status != pq.ExecStatus.COMMAND_OK:
        if result is None:
            raise ProtocolError(f"{doing}: the server did not end a COPY")
        raise translated(error_from_result(result), doing)
    return lines


def copy_fields(line: bytes) -> list[bytes | None]:
    """Return the values of a line; None is NULL.

    Raises:
        ProtocolError: The line does not end.
    """
    if line[-1:] != b"\n":
        raise ProtocolError(f"a line of COPY with {len(line)} bytes does not end")
    fields = line[:-1].split(b"\t")
    if b"\\" not in line:
        return list(fields)
    return [None if each == b"\\N" else _ESCAPE.sub(_resolved, each) for each in fields]


def _resolved(found: re.Match[bytes]) -> bytes:
    return _BYTES.get(found[1], found[1])
