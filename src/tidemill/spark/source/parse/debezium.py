"""Parses the envelopes of captured tables to Arrow columns.

Each envelope becomes a JSON object with the columns of a stream of changes (``captured.schema``),
which the parser of JSON turns into columns. A null value, which follows a delete, is not an event:
it is left out. Must not know: topics, Kafka clients.
"""

from __future__ import annotations

import orjson
import pyarrow as pa

from tidemill.reading.parse.contract import Parsed, Parser, Reasons, require_text
from tidemill.reading.parse.schema import ParseSchema
from tidemill.spark.base.ddl import columns
from tidemill.spark.source.captured.envelope import MESSAGE, EnvelopeError, Envelopes, Event
from tidemill.spark.source.captured.positions import source_text
from tidemill.spark.source.captured.values import iso_time

_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME


class DebeziumParser:
    """The parser of Debezium's envelopes.

    Args:
        schema: The columns of the events; ``before`` and ``after`` have those of the table.
        inner: The parser of JSON objects with this schema.
    """

    def __init__(self, schema: ParseSchema, inner: Parser) -> None:
        rows = (c.type for c in schema.columns if c.name in ("after", "before"))
        row = next((kind for kind in rows if kind.startswith("STRUCT<")), None)
        made = () if row is None else columns(row.removeprefix("STRUCT<").removesuffix(">"))
        self._envelopes = Envelopes([(c.name, c.type) for c in made], schema.timestamp_format)
        self._inner = inner

    def parse(self, values: pa.Array) -> Parsed:
        """Parse values to columns. See ``Parser``."""
        texts, places, refused = self._events(values)
        parsed = self._inner.parse(pa.array(texts, pa.binary()))
        refused = _merged(refused, parsed.reasons, places)
        if len(texts) == len(values) and not refused:
            return parsed
        bad = {index for index, _ in refused}
        kept = [False] * len(values)
        for place in places:
            kept[place] = place not in bad
        return Parsed(parsed.columns, pa.array(kept, pa.bool_()), refused)

    def check(self, values: pa.Array) -> Reasons:
        """Return the values that ``parse`` refuses. See ``Parser``."""
        texts, places, refused = self._events(values)
        return _merged(refused, self._inner.check(pa.array(texts, pa.binary())), places)

    def _events(self, values: pa.Array) -> tuple[list[bytes], list[int], Reasons]:
        """Return events as JSON, the index of the value of each, and the values that are none."""
        require_text(values)
        texts: list[bytes] = []
        places: list[int] = []
        refused: Reasons = []
        for place, value in enumerate(values.to_pylist()):
            if value is None:
                continue
            try:
                event = self._envelopes.event(value if isinstance(value, bytes) else value.encode())
                if event.op == MESSAGE:
                    continue
                text = _text(event)
            except EnvelopeError as error:
                refused.append((place, str(error)))
                continue
            texts.append(text)
            places.append(place)
        return texts, places, refused


def _text(event: Event) -> bytes:
    try:
        at = None if event.commit_us is None else iso_time(event.commit_us)
    except OverflowError:
        raise EnvelopeError(f"the commit time {event.commit_us} us is out of range") from None
    fields = {
        "op": event.op,
        "before": event.before,
        "after": event.after,
        "commit_time": at,
        "_version": None if event.position is None else event.position.number,
        "source": source_text(event.source),
        "transaction_id": event.transaction,
    }
    return orjson.dumps(fields, option=_OPTIONS)


def _merged(refused: Reasons, inner: Reasons, places: list[int]) -> Reasons:
    return sorted([*refused, *((places[index], reason) for index, reason in inner)])
