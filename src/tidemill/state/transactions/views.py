"""Shows transactional ids to admins: ``list_transactions`` and ``describe_transactions``.

Pure functions of stored values. This module must not change them.

Source: KIP-664, KIP-994 (duration filter), KIP-1152 (pattern).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tidemill.state.patterns import id_matcher
from tidemill.state.transactions.format import NO_TIME, TransactionValue
from tidemill.state.transactions.table import IDLE
from tidemill.state.transactions.types import TransactionDescription, TransactionListing


def listing(
    values: Mapping[str, TransactionValue],
    states: Collection[str],
    producer_ids: Collection[int],
    duration_ms: int,
    id_pattern: str | None,
    now_ms: int,
) -> list[TransactionListing]:
    """Return the ids that pass all filters of ``Transactions.list``."""
    producer_ids = frozenset(producer_ids)
    matches = None if id_pattern is None else id_matcher(id_pattern)
    return [
        TransactionListing(transactional_id, value.producer.producer_id, value.state)
        for transactional_id, value in values.items()
        if (not states or value.state in states)
        and (not producer_ids or value.producer.producer_id in producer_ids)
        and (duration_ms < 0 or _is_open_longer(value, now_ms - duration_ms))
        and (matches is None or matches(transactional_id))
    ]


def _is_open_longer(value: TransactionValue, since_ms: int) -> bool:
    return value.state not in IDLE and value.start_ms < since_ms


def description(transactional_id: str, value: TransactionValue) -> TransactionDescription:
    """Return an id with its transaction. Only an open or ending one has a start time."""
    return TransactionDescription(
        transactional_id,
        value.state,
        value.producer,
        value.timeout_ms,
        NO_TIME if value.state in IDLE else value.start_ms,
        tuple(sorted(value.partitions)),
    )
