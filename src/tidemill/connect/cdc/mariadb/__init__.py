"""The source for MariaDB: snapshots by SELECT, changes from the binary log.

``binlog`` decodes the log, ``groups`` makes changes of its transactions, ``snapshot`` reads rows,
``check`` says what the server lacks, ``source`` implements the contract. Must not know: Kafka.
"""

from __future__ import annotations

from tidemill.connect.cdc.mariadb.source import MariaDbSource

__all__ = ["MariaDbSource"]
