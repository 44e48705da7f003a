"""Transactions as an operator sees them: ListTransactions, DescribeTransactions (KIP-664).

Translates only; how one that hangs is ended stands in ``transaction_markers``.
"""

from __future__ import annotations

from typing import Any

from tidemill.broker.api import TransactionState
from tidemill.errors import TidemillError
from tidemill.kafka.apis import RequestContext, Tree, field, handles
from tidemill.kafka.errors import error_code

DESCRIBE, LIST = 65, 66


@handles(LIST)
def handle_list_transactions(ctx: RequestContext, request: Any) -> Tree:
    """Transactional ids, filtered by state, producer, duration and pattern (KIP-994, KIP-1152)."""
    known = {state.value for state in TransactionState}
    unknown = [name for name in request.state_filters if name not in known]
    states = [TransactionState(name) for name in request.state_filters if name in known]
    answer: Tree = {"unknown_state_filters": unknown}
    if unknown and not states:
        return answer  # no transaction has a state that does not exist
    try:
        listings = ctx.broker.list_transactions(
            states=states,
            producer_ids=request.producer_id_filters,
            duration_ms=field(request, "duration_filter", -1),
            id_pattern=field(request, "transactional_id_pattern", None) or None,
        )
    except TidemillError as error:
        return {"error_code": error_code(error, group=True)}
    return answer | {
        "transaction_states": [
            {
                "transactional_id": listing.transactional_id,
                "producer_id": listing.producer_id,
                "transaction_state": listing.state.value,
            }
            for listing in listings
        ]
    }


@handles(DESCRIBE)
def handle_describe_transactions(ctx: RequestContext, request: Any) -> Tree:
    """State, producer, age and partitions of the named transactional ids."""
    return {"transaction_states": [_described(ctx, name) for name in request.transactional_ids]}


def _described(ctx: RequestContext, transactional_id: str) -> Tree:
    tree: Tree = {"transactional_id": transactional_id}
    try:
        found = ctx.broker.describe_transaction(transactional_id)
    except TidemillError as error:
        code = error_code(error, group=True)
        return tree | {"error_code": code, "transaction_start_time": 0}
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(found.partitions):
        topics.setdefault(topic, []).append(partition)
    return tree | {
        "transaction_state": found.state.value,
        "transaction_timeout": found.timeout_ms,
        "transaction_start_time": found.start_time_ms,
        "producer_id": found.producer.producer_id,
        "producer_epoch": found.producer.epoch,
        "topics": [
            {"topic": topic, "partitions": partitions} for topic, partitions in topics.items()
        ],
    }
