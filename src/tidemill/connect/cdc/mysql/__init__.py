"""The source for MySQL: snapshots by SELECT, changes from the binary log.

``binlog`` beside this package does the work. ``position`` knows MySQL's transaction ids,
``dialect`` reads rows as of one, ``check`` says what the server lacks. Must not know: Kafka.
"""

from __future__ import annotations

from tidemill.connect.cdc.binlog.source import BinlogSource
from tidemill.connect.cdc.contract import Capture
from tidemill.connect.cdc.mysql.dialect import MySql

__all__ = ["MySqlSource"]


class MySqlSource(BinlogSource):
    """Captures tables of a MySQL server."""

    def __init__(self, capture: Capture) -> None:
        super().__init__(capture, MySql())
