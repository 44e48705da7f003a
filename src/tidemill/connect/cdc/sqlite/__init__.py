"""SQLite as a source of changes: triggers write each change into a change log of the same database.

``schema`` reads tables, ``triggers`` writes the SQL of the triggers, ``changelog`` owns the tables
that we add to the database, ``source`` implements the contract. Must not know: Kafka.
"""

from __future__ import annotations

from tidemill.connect.cdc.sqlite.source import SqliteSource

__all__ = ["SqliteSource"]
