"""Requests about transactions, with errors that name flags and commands. It must not print."""

from __future__ import annotations

from typing import Any

from tidemill.cli.output import UsageError
from tidemill.errors import RequestTimedOutError
from tidemill.kafka_client.admin import transactions
from tidemill.kafka_client.admin.requests import BrokerRequests
from tidemill.kafka_client.admin.transactions import Description, FilterNotSupportedError, Listing
from tidemill.kafka_client.errors import RefusedError, RequestNotSupportedError
from tidemill.state.errors import ConcurrentTransactionsError, TransactionalIdNotFoundError

_OPTIONS = {"open_longer_than_ms": "--open-longer-than", "id_pattern": "--id-pattern"}


def list_ids(requests: BrokerRequests, **filters: Any) -> list[Listing]:
    """Return transactional ids. For the filters see ``list_transactions``."""
    try:
        return transactions.list_transactions(requests, **filters)
    except FilterNotSupportedError as error:
        raise RequestNotSupportedError(
            f"the broker at {error.broker} does not support {_OPTIONS[error.filter]}",
            hint="Apache Kafka supports --open-longer-than since 3.8, --id-pattern since 4.1.",
        ) from error
    except RefusedError as error:
        if error.code != transactions.INVALID_REGULAR_EXPRESSION:
            raise
        raise _invalid_pattern(filters["id_pattern"]) from error


def _invalid_pattern(pattern: str) -> UsageError:
    """Return the error for a pattern that the broker rejected.

    The broker's answer has no text. So this evaluates the pattern as the broker does, to get a
    reason and a hint.
    """
    from tidemill.state.errors import InvalidRegularExpressionError
    from tidemill.state.patterns import id_matcher

    try:
        id_matcher(pattern)
    except InvalidRegularExpressionError as error:
        return UsageError(f"--id-pattern: {error}", hint=error.hint)
    return UsageError(
        f"--id-pattern: the broker does not support the regular expression {pattern!r}",
        hint="Without google-re2, a broker supports only literals and '.*'.",
    )


def describe_id(requests: BrokerRequests, transactional_id: str) -> Description:
    """Return one transactional id.

    Raises:
        TransactionalIdNotFoundError: it does not exist.
    """
    found = transactions.describe_transaction(requests, transactional_id)
    if found is None:
        raise TransactionalIdNotFoundError(
            f"transactional id {transactional_id} does not exist",
            hint="List the ids: tidemill transaction list",
        )
    return found


def fence(requests: BrokerRequests, transactional_id: str, timeout_ms: int) -> None:
    """Abort the open transaction of an id, and fence its producer.

    Raises:
        ConcurrentTransactionsError: the abort still waits for partitions.
    """
    try:
        transactions.fence(requests, transactional_id, timeout_ms)
    except RequestTimedOutError as error:
        raise ConcurrentTransactionsError(
            str(error),
            hint="The abort is decided, and waits for its partitions. Show them: "
            f"tidemill transaction describe {transactional_id}",
        ) from error
