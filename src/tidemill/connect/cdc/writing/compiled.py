"""The compiled encoders of a source's tables: from packed rows to records of their topics.

Must not know: a database.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from tidemill.connect.cdc.contract import Table
from tidemill.connect.cdc.envelope import Encoder
from tidemill.connect.cdc.packed import ColumnRule
from tidemill.kafka_client.producing.transactional import TransactionalProducer
from tidemill.native import extension


class CompiledEncoders:
    """Gives the encoders of tables, and keeps them (``Encoders``).

    Args:
        producer: takes the records.
        envelope: knows what the envelopes of a table have in common.
        create: creates a topic if it is missing.
    """

    def __init__(
        self, producer: TransactionalProducer, envelope: Encoder, create: Callable[[str], None]
    ) -> None:
        self._producer = producer
        self._envelope = envelope
        self._create = create
        self._known: dict[tuple[int, tuple[ColumnRule, ...]], tuple[Table, Any]] = {}

    def begin(self) -> None:
        """Begin a transaction if none is open. Call it before an encoder is used."""
        self._producer.begin()

    def of(self, table: Table, columns: tuple[ColumnRule, ...]) -> Any:
        """Return the encoder of a table whose rows have these columns."""
        found = self._known.get((id(table), columns))
        if found is None:
            found = (table, self._make(table, columns))
            self._known[id(table), columns] = found  # it keeps the table: the id is not reused
        return found[1]

    def _make(self, table: Table, columns: tuple[ColumnRule, ...]) -> Any:
        known = self._envelope.prepared(table)
        self._create(known.topic)
        names = [name for name, _, _, _ in columns]
        return extension.ChangeEncoder(
            self._producer.encoder(known.topic),
            tuple(
                (orjson.dumps(name) + b":", rule, convert, is_key)
                for name, rule, convert, is_key in columns
            ),
            tuple(names.index(name) for name in known.key),
            known.source[:-1],
            self._envelope.is_plain,
            orjson.dumps,
        )
