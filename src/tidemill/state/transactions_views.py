"""Transactional ids as ``list_transactions`` and ``describe_transactions`` show them.

Looks at stored values; changes nothing.

Source: KIP-664, KIP-994 (duration filter), KIP-1152 (pattern).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from tidemill.errors import InvalidRegularExpressionError
from tidemill.state.transactions_format import NO_TIME, TransactionValue
from tidemill.state.transactions_table import IDLE
from tidemill.state.types import TransactionDescription, TransactionListing


def listing(
    values: Mapping[str, TransactionValue],
    states: Collection[str],
    producer_ids: Collection[int],
    duration_ms: int,
    id_pattern: str | None,
    now_ms: int,
) -> list[TransactionListing]:
    """Those that pass all filters: see ``Transactions.list``.

    Raises:
        InvalidRegularExpressionError: the pattern is no regular expression.
    """
    try:
        pattern = None if id_pattern is None else re.compile(id_pattern)
    except re.error as error:
        raise InvalidRegularExpressionError(
            f"{id_pattern!r} is no regular expression: {error}"
        ) from error
    return [
        TransactionListing(transactional_id, value.producer.producer_id, value.state)
        for transactional_id, value in values.items()
        if (not states or value.state in states)
        and (not producer_ids or value.producer.producer_id in producer_ids)
        and (duration_ms < 0 or _is_open_longer(value, now_ms - duration_ms))
        and (pattern is None or pattern.fullmatch(transactional_id))
    ]


def _is_open_longer(value: TransactionValue, since_ms: int) -> bool:
    return value.state not in IDLE and value.start_ms < since_ms


def description(transactional_id: str, value: TransactionValue) -> TransactionDescription:
    """The id with its transaction; a start only of one that is open or being ended."""
    return TransactionDescription(
        transactional_id,
        value.state,
        value.producer,
        value.timeout_ms,
        NO_TIME if value.state in IDLE else value.start_ms,
        tuple(sorted(value.partitions)),
    )
