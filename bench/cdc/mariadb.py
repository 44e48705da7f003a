"""MariaDB as a database of the section ``cdc``.

A row of ``changes`` is inserted by a statement of its own, as an application does it, so it has
three events in the binary log. Must not know: Kafka.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.mariadb import PASSWORD, USER, MariaDb, mariadb
from tests.support.processes import NotInstalledError

from bench.cdc.databases import COLUMNS, PER_TRANSACTION, Database, write_rows
from tidemill.connect.cdc.binlog.dump import BinlogStream
from tidemill.connect.cdc.binlog.settings import Settings
from tidemill.connect.cdc.contract import Capture
from tidemill.connect.cdc.mariadb.dialect import GtidPosition, parse_gtid
from tidemill.connect.cdc.mariadb.dialect import MariaDb as Dialect

_SCHEMA = "bench"
_OPTIONS = ("--innodb-buffer-pool-size=128M", "--innodb-log-file-size=256M")


class Mariadb(Database):
    """MariaDB without syncs, with a larger memory."""

    name, kind, schema = "mariadb", "mariadb", _SCHEMA

    def __init__(self, server: MariaDb, connection: Any, secret: Path) -> None:
        self._server = server
        self._connection = connection
        self._ids = itertools.count()
        self._gtid = ""
        secret.write_text(PASSWORD)
        self.definition = (
            f'unix_socket = "{server.socket}"\nuser = "{USER}"\npassword = "${{file:{secret}}}"'
        )
        self._run(f"CREATE DATABASE {_SCHEMA}", f"USE {_SCHEMA}")
        for table in ("changes", "rows"):
            self._run(
                f"CREATE TABLE `{table}` (id int PRIMARY KEY, name varchar(100), "
                "price decimal(10,2), at timestamp(6), n bigint, ok bool) CHARACTER SET utf8mb4"
            )

    def insert(self, count: int) -> None:
        start = next(self._ids) * PER_TRANSACTION
        self._run(
            f"BEGIN NOT ATOMIC DECLARE i INT DEFAULT {start}; START TRANSACTION; "
            f"WHILE i < {start + count} DO INSERT INTO changes VALUES (i, concat('name ', i), "
            "i * 0.01, now(6), i, i % 2); SET i = i + 1; END WHILE; COMMIT; END"
        )

    def mark(self) -> None:
        self._gtid = self._value("SELECT @@global.gtid_binlog_pos")

    def read_away(self, count: int) -> float:
        end = int(self._value("SHOW MASTER STATUS", 1))
        capture = Capture(
            "away",
            database={"unix_socket": self._server.socket, "user": USER, "password": PASSWORD},
        )
        settings = Settings.parse(capture.database, capture.name)
        position = GtidPosition(parse_gtid(self._gtid))
        stream = BinlogStream(
            settings.connect,
            lambda opened: Dialect().request(opened, position, settings.server_id),
        )
        try:
            began, place = time.perf_counter(), 0
            while place < end:
                # The packets only: the events are not decoded. A header has the event's end.
                data = stream._connection._read_packet().get_all_data()
                place = max(place, struct.unpack_from("<I", data, 14)[0])
            return time.perf_counter() - began
        finally:
            stream.close()

    def fill(self, count: int) -> None:
        self._run(
            "INSERT INTO `rows` SELECT seq, concat('name ', seq), seq * 0.01, now(6), seq, seq % 2"
            f" FROM seq_1_to_{count}",
            "ANALYZE TABLE `rows`",
        )

    def export(self, path: Path) -> float:
        import pymysql.cursors

        began = time.perf_counter()
        with (
            self._server.connect(
                database=_SCHEMA, cursorclass=pymysql.cursors.SSCursor
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(f"SELECT {COLUMNS} FROM `rows`")
            write_rows(path, cursor)
        return time.perf_counter() - began

    def _run(self, *statements: str) -> None:
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def _value(self, statement: str, column: int = 0) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone()[column]


@contextlib.contextmanager
def mariadb_database(folder: Path) -> Iterator[Database | None]:
    """Start a server; None if it is not installed."""
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(mariadb(folder / "log", _OPTIONS))
        except NotInstalledError:
            yield None
            return
        connection = stack.enter_context(server.connect(autocommit=True))
        yield Mariadb(server, connection, folder / "password")
