"""Transactions for operators: ListTransactions, DescribeTransactions (KIP-664).

Translates only. ``transaction_markers`` ends a transaction that hangs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tidemill.engine.api import TransactionState
from tidemill.errors import TidemillError
from tidemill.protocols.kafka.apis import Each, RequestContext, Tree, field, grouped, handles
from tidemill.protocols.kafka.error_codes import error_code

DESCRIBE, LIST = 65, 66


@handles(LIST, refused=lambda error: {"error_code": error_code(error, group=True)})
def handle_list_transactions(ctx: RequestContext, request: Any) -> Tree:
    """Answer with transactional ids, filtered (KIP-994 durations, KIP-1152 patterns)."""
    known = {state.value for state in TransactionState}
    unknown = [name for name in request.state_filters if name not in known]
    named = dict.fromkeys(request.state_filters)
    states = [TransactionState(name) for name in named if name in known]
    duration_ms = field(request, "duration_filter", -1)
    answer: Tree = {"unknown_state_filters": unknown}
    if unknown and not states:
        return answer  # no transaction has a state that does not exist
    listings = ctx.door.transactions.listings(
        states=states,
        producer_ids=request.producer_id_filters,
        min_duration_ms=None if duration_ms < 0 else duration_ms,
        id_pattern=field(request, "transactional_id_pattern", None) or None,
    )
    return answer | {
        "transaction_states": Each(
            lambda listing: {
                "transactional_id": listing.transactional_id,
                "producer_id": listing.producer_id,
                "transaction_state": listing.state.value,
            },
            listings,
        )
    }


@handles(DESCRIBE)
def handle_describe_transactions(ctx: RequestContext, request: Any) -> Tree:
    """Answer with state, producer, age and partitions of the named transactional ids."""
    return {"transaction_states": Each(partial(_described, ctx), request.transactional_ids)}


def _described(ctx: RequestContext, transactional_id: str) -> Tree:
    tree: Tree = {"transactional_id": transactional_id}
    try:
        found = ctx.door.transactions.describe(transactional_id)
    except TidemillError as error:
        code = error_code(error, group=True)
        return tree | {"error_code": code, "transaction_start_time": 0}
    return tree | {
        "transaction_state": found.state.value,
        "transaction_timeout": found.timeout_ms,
        "transaction_start_time": found.start_time_ms,
        "producer_id": found.producer.producer_id,
        "producer_epoch": found.producer.epoch,
        "topics": [
            {"topic": topic, "partitions": partitions}
            for topic, partitions in grouped(sorted(found.partitions)).items()
        ],
    }
