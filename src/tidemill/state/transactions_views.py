"""Transactional ids as ``list_transactions`` and ``describe_transactions`` show them.

Looks at stored values; changes nothing.

Source: KIP-664, KIP-994 (duration filter), KIP-1152 (pattern).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tidemill.errors import InvalidRegularExpressionError
from tidemill.state.transactions_format import NO_TIME, TransactionValue
from tidemill.state.transactions_table import IDLE
from tidemill.state.types import TransactionDescription, TransactionListing

_PATTERN_BYTES = 1 << 20
"""Most memory of a compiled pattern."""


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
    matches = _matcher(id_pattern)
    return [
        TransactionListing(transactional_id, value.producer.producer_id, value.state)
        for transactional_id, value in values.items()
        if (not states or value.state in states)
        and (not producer_ids or value.producer.producer_id in producer_ids)
        and (duration_ms < 0 or _is_open_longer(value, now_ms - duration_ms))
        and matches(transactional_id)
    ]


def _matcher(pattern: str | None) -> Callable[[str], object]:
    """Whether an id matches. In linear time, as in Kafka: the pattern is a client's, and with
    Python's own ``re`` one of six characters could hold up all others for minutes."""
    if pattern is None:
        return lambda _: True
    import re2

    options = re2.Options()
    options.log_errors = False  # on stderr, by itself
    options.max_mem = _PATTERN_BYTES
    try:
        compiled = re2.compile(pattern, options=options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidRegularExpressionError(
            f"{pattern!r} is no regular expression: {text}",
            hint="The syntax is RE2's: https://github.com/google/re2/wiki/Syntax",
        ) from error
    return lambda transactional_id: compiled.fullmatch(transactional_id)


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
