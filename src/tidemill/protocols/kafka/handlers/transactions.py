"""Transactions of a producer: AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn.

Translates only: the coordinator decides what a producer can do. The version of a request says which
of the two transaction protocols the producer uses (``TransactionVersion``).

Source: KIP-98, KIP-447, KIP-890.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tidemill.engine.api import (
    CommitRequest,
    OffsetToCommit,
    ProducerIdentity,
    TransactionVersion,
    TxnOffsetCommit,
)
from tidemill.engine.errors import OperationNotAttemptedError
from tidemill.errors import TidemillError
from tidemill.protocols.kafka.apis import (
    Each,
    RequestContext,
    Tree,
    each_partition,
    field,
    handles,
    outcome,
    outcome_of_each,
    partition_codes,
)
from tidemill.protocols.kafka.error_codes import transaction_code
from tidemill.protocols.kafka.handlers.group_members.offsets import offset_to_commit

ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28

BATCHED_SINCE = 4
"""From this version on AddPartitionsToTxn has several transactions. Only brokers send that."""
END_BUMPS_SINCE = 5
"""EndTxn: the answer has the producer's next epoch (TransactionVersion V2)."""
_NOT_ATTEMPTED = OperationNotAttemptedError("another partition can't be added")
COMMIT_ADDS_SINCE = 5
"""TxnOffsetCommit: the request itself adds the group to the transaction (V2)."""


def producer_of(request: Any) -> ProducerIdentity:
    """Return the producer id and epoch of a request."""
    return ProducerIdentity(request.producer_id, request.producer_epoch)


def _version(ctx: RequestContext, second_since: int) -> TransactionVersion:
    return TransactionVersion.V2 if ctx.api_version >= second_since else TransactionVersion.V1


# --- AddPartitionsToTxn --------------------------------------------------------------------------


@handles(ADD_PARTITIONS)
async def handle_add_partitions_to_txn(ctx: RequestContext, request: Any) -> Tree:
    """Add partitions to the open transaction, or (from v4 on) check that they are part of it."""
    if ctx.api_version < BATCHED_SINCE:
        results = await _add_partitions(
            ctx,
            request.v3_and_below_transactional_id,
            ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            request.v3_and_below_topics,
        )
        return {"results_by_topic_v3_and_below": results}

    async def one_transaction(transaction: Any) -> Tree:
        results = await _add_partitions(
            ctx,
            transaction.transactional_id,
            producer_of(transaction),
            transaction.topics,
            verify_only=transaction.verify_only,
        )
        return {"transactional_id": transaction.transactional_id, "topic_results": results}

    return {"results_by_transaction": await ctx.turns.each(one_transaction, request.transactions)}


async def _add_partitions(
    ctx: RequestContext,
    transactional_id: str,
    producer: ProducerIdentity,
    topics: Sequence[Any],
    *,
    verify_only: bool = False,
) -> Each[Any, Tree]:
    transactions = ctx.door.transactions
    partitions = await ctx.turns.collect(
        (topic.name, index) for topic in topics for index in topic.partitions
    )
    ask = transactions.verify_partitions if verify_only else transactions.add_partitions
    work = ctx.turns.in_parts(lambda part: ask(transactional_id, producer, part), partitions)
    outcomes = await outcome_of_each(work, len(partitions))
    if any(outcomes) and not verify_only:
        # All or none: what an earlier part has added is of no use to the producer either.
        outcomes = [error or _NOT_ATTEMPTED for error in outcomes]
    following = iter(outcomes)

    def answer(_: str, index: int) -> Tree:
        error = transaction_code(next(following), ADD_PARTITIONS, ctx.api_version)
        return {"partition_index": index, "partition_error_code": error}

    return each_partition(topics, answer, answers="results_by_partition")


# --- offsets in a transaction --------------------------------------------------------------------


@handles(ADD_OFFSETS)
async def handle_add_offsets_to_txn(ctx: RequestContext, request: Any) -> Tree:
    """Make a group's committed offsets part of the transaction."""
    error = await outcome(
        ctx.door.transactions.add_group(
            request.transactional_id, producer_of(request), request.group_id
        )
    )
    return {"error_code": transaction_code(error, ADD_OFFSETS, ctx.api_version)}


@handles(TXN_OFFSET_COMMIT)
async def handle_txn_offset_commit(ctx: RequestContext, request: Any) -> Tree:
    """Commit offsets together with the transaction."""

    async def commit(offsets: Sequence[OffsetToCommit]) -> Sequence[TidemillError | None]:
        request_of_part = TxnOffsetCommit(
            transactional_id=request.transactional_id,
            producer=producer_of(request),
            commit=CommitRequest(
                group_id=request.group_id,
                generation=field(request, "generation_id", -1),
                member_id=field(request, "member_id", ""),
                instance_id=field(request, "group_instance_id", None),
                offsets=tuple(offsets),
            ),
            version=_version(ctx, COMMIT_ADDS_SINCE),
        )
        work = ctx.door.transactions.commit_offsets(request_of_part)
        return await outcome_of_each(work, len(offsets))

    offsets = await ctx.turns.collect(
        offset_to_commit(topic.name, partition)
        for topic in request.topics
        for partition in topic.partitions
    )
    outcomes = await ctx.turns.in_parts(commit, offsets)
    code = partial(transaction_code, api_key=TXN_OFFSET_COMMIT, version=ctx.api_version)
    return {"topics": partition_codes(request.topics, map(code, outcomes))}


# --- EndTxn --------------------------------------------------------------------------------------


@handles(END_TXN)
async def handle_end_txn(ctx: RequestContext, request: Any) -> Tree:
    """Commit or abort. From v5 on the answer has the identity for the next transaction."""
    try:
        producer = await ctx.door.transactions.end(
            request.transactional_id,
            producer_of(request),
            request.committed,
            _version(ctx, END_BUMPS_SINCE),
        )
    except TidemillError as error:
        return {"error_code": transaction_code(error, END_TXN, ctx.api_version)}
    return {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
