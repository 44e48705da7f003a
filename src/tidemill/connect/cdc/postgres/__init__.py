"""The PostgreSQL source (version 12 and newer), through logical decoding with pgoutput.

``source`` puts the parts together. ``connection`` reads the stream. ``stream`` turns messages
into committed changes, with ``shapes`` and ``rows``. ``chunks`` and ``visibility`` read
rows beside it. ``slot`` and ``publication`` are what capture makes on the server.

Must not know: Kafka, the worker.
"""

from __future__ import annotations

from tidemill.connect.cdc.postgres.source import PostgresSource

__all__ = ["PostgresSource"]
