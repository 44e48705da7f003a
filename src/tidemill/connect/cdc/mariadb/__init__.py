"""The source for MariaDB: snapshots by SELECT, changes from the binary log.

``binlog`` beside this package does the work. ``dialect`` knows MariaDB's transaction ids and
reads rows as of one, ``check`` says what the server lacks. Must not know: Kafka.
"""

from __future__ import annotations

from tidemill.connect.cdc.binlog.source import BinlogSource
from tidemill.connect.cdc.contract import Capture
from tidemill.connect.cdc.mariadb.dialect import MariaDb

__all__ = ["MariaDbSource"]


class MariaDbSource(BinlogSource):
    """Captures tables of a MariaDB server."""

    def __init__(self, capture: Capture) -> None:
        super().__init__(capture, MariaDb())
