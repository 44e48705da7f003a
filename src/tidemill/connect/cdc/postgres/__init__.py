"""The PostgreSQL source (version 12 and newer), through logical decoding with pgoutput.

``source`` puts the parts together. ``connection`` reads the stream, ``decoding`` turns its messages
into committed changes, and ``reading`` reads rows beside it. ``slot`` and ``publication`` are what
capture makes on the server, and ``check`` finds what the server lacks.

Must not know: Kafka, the worker.
"""

from __future__ import annotations

from tidemill.connect.cdc.postgres.source import PostgresSource

__all__ = ["PostgresSource"]
