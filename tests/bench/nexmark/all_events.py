"""Events of Nexmark as one table for each kind."""

from __future__ import annotations

import pyarrow as pa
from bench.nexmark.generator import Events, events


def all_events(count: int, seed: int = 1) -> Events:
    """Return all events of a run, with the closing records."""
    chunks = list(events(count, seed))
    return Events(
        pa.concat_tables([each.persons for each in chunks]),
        pa.concat_tables([each.auctions for each in chunks]),
        pa.concat_tables([each.bids for each in chunks]),
    )
