"""One query in a process of its own, which can be killed: ``python -m tidemill.sql.process``.

It reads an order from stdin as JSON, and writes one line of JSON for the columns, one for each row,
and one for the end. A login is in the order, and so in no list of processes. Must not know: HTTP.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tidemill.errors import TidemillError
from tidemill.sql.plain import plain

_CPU_MARGIN_S = 5
"""Seconds of processor time besides those that the time limit allows on all cores."""


@dataclass(frozen=True)
class Order:
    """A query and its limits.

    Attributes:
        properties: librdkafka's.
        token: what OAUTHBEARER sends; empty for other logins.
        most_rows: rows after which the result is cut.
        most_bytes: bytes of the result after which it is cut.
        max_bytes: the most that the query can read.
        hidden: patterns of topics that it must not read.
    """

    servers: str
    statement: str
    parameters: list[Any] = field(default_factory=list)
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    token: str = field(default="", repr=False)
    memory: str = "512MB"
    timeout_s: float = 30.0
    most_rows: int = 10_000
    most_bytes: int = 16 << 20
    max_bytes: int = 1 << 30
    hidden: Sequence[str] = ()

    def encode(self) -> bytes:
        """Return what the process reads."""
        return json.dumps(asdict(self)).encode()


def run(order: Order) -> None:
    """Run a query, and write its result to stdout."""
    from tidemill import sql

    properties: dict[str, Any] = dict(order.properties)
    if order.token:
        properties["oauth_cb"] = lambda _: (order.token, time.time() + 3600)
    connection = sql.connect(
        order.servers,
        properties=properties,
        memory=order.memory,
        threads=2,
        timeout_s=order.timeout_s,
        max_bytes=order.max_bytes,
        read_only=True,
        views=False,
    )
    connection.hidden = order.hidden
    with connection.execute(order.statement, order.parameters) as cursor:
        columns = [
            {"name": str(each[0]), "type": str(each[1])} for each in cursor.description or ()
        ]
        _write({"columns": columns})
        count, size, truncated = 0, 0, False
        for row in cursor:
            line = json.dumps([plain(value) for value in row])
            if count == order.most_rows or size + len(line) > order.most_bytes:
                truncated = True
                break
            count, size = count + 1, size + len(line)
            sys.stdout.write(line + "\n")
        end = {"rows": count, "truncated": truncated}
        _write({**end, "notes": cursor.notes, "warnings": cursor.warnings})


def main() -> None:
    """Read an order, run it, and write the result or an error."""
    order = Order(**json.load(sys.stdin))
    limits = {
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: int(2 * order.timeout_s) + _CPU_MARGIN_S,
    }
    for name, value in limits.items():
        resource.setrlimit(name, (value, value))
    try:
        run(order)
    except TidemillError as error:
        kinds = [each.__name__ for each in type(error).__mro__]
        _write({"error": str(error), "hint": error.hint, "kinds": kinds})


def _write(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


if __name__ == "__main__":
    main()
