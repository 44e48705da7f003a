"""Transactions between a producer and its coordinator: what is in one, and how it ends.

AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn (KIP-98, KIP-447, KIP-890).
Translates only: which producer may do what is decided by the coordinator in ``state``. The version
of a request tells which of the two protocols the producer speaks (``TransactionVersion``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from tidemill.broker.api import (
    CommitRequest,
    OffsetToCommit,
    ProducerIdentity,
    TransactionVersion,
    TxnOffsetCommit,
)
from tidemill.errors import TidemillError
from tidemill.kafka.apis import RequestContext, Tree, field, handles, outcome
from tidemill.kafka.errors import transaction_code

ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28

BATCHED_SINCE = 4
"""AddPartitionsToTxn holds several transactions from here on; only brokers send that."""
END_BUMPS_SINCE = 5
"""EndTxn: the producer takes its next epoch from the answer (TransactionVersion V2)."""
COMMIT_ADDS_SINCE = 5
"""TxnOffsetCommit: it adds the group to the transaction by itself (V2)."""


def producer_of(request: Any) -> ProducerIdentity:
    """The producer id and epoch of any request that has them."""
    return ProducerIdentity(request.producer_id, request.producer_epoch)


def _version(ctx: RequestContext, second_since: int) -> TransactionVersion:
    return TransactionVersion.V2 if ctx.api_version >= second_since else TransactionVersion.V1


# --- AddPartitionsToTxn --------------------------------------------------------------------------


@handles(ADD_PARTITIONS)
async def handle_add_partitions_to_txn(ctx: RequestContext, request: Any) -> Tree:
    """Add partitions to the open transaction, or (v4 and later) ask whether they are in it."""
    if ctx.api_version < BATCHED_SINCE:
        results = await _add_partitions(
            ctx,
            request.v3_and_below_transactional_id,
            ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            request.v3_and_below_topics,
        )
        return {"results_by_topic_v3_and_below": results}
    return {
        "results_by_transaction": [
            {
                "transactional_id": transaction.transactional_id,
                "topic_results": await _add_partitions(
                    ctx,
                    transaction.transactional_id,
                    producer_of(transaction),
                    transaction.topics,
                    verify_only=transaction.verify_only,
                ),
            }
            for transaction in request.transactions
        ]
    }


async def _add_partitions(
    ctx: RequestContext,
    transactional_id: str,
    producer: ProducerIdentity,
    topics: Sequence[Any],
    *,
    verify_only: bool = False,
) -> list[Tree]:
    broker = ctx.broker
    partitions = [(topic.name, index) for topic in topics for index in topic.partitions]
    ask = broker.verify_partitions if verify_only else broker.add_partitions
    outcomes: Sequence[TidemillError | None]
    try:
        outcomes = await ask(transactional_id, producer, partitions)
    except TidemillError as error:
        outcomes = [error] * len(partitions)
    following = iter(outcomes)
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {
                    "partition_index": index,
                    "partition_error_code": transaction_code(
                        next(following), ADD_PARTITIONS, ctx.api_version
                    ),
                }
                for index in topic.partitions
            ],
        }
        for topic in topics
    ]


# --- offsets in a transaction --------------------------------------------------------------------


@handles(ADD_OFFSETS)
async def handle_add_offsets_to_txn(ctx: RequestContext, request: Any) -> Tree:
    """Announce that the transaction will hold committed offsets of a group."""
    error = await outcome(
        ctx.broker.add_offsets(request.transactional_id, producer_of(request), request.group_id)
    )
    return {"error_code": transaction_code(error, ADD_OFFSETS, ctx.api_version)}


@handles(TXN_OFFSET_COMMIT)
async def handle_txn_offset_commit(ctx: RequestContext, request: Any) -> Tree:
    """Offsets that are committed with the transaction, or not at all."""
    commit = TxnOffsetCommit(
        transactional_id=request.transactional_id,
        producer=producer_of(request),
        commit=CommitRequest(
            group_id=request.group_id,
            generation=field(request, "generation_id", -1),
            member_id=field(request, "member_id", ""),
            instance_id=field(request, "group_instance_id", None),
            offsets=tuple(_offsets(request.topics)),
        ),
        version=_version(ctx, COMMIT_ADDS_SINCE),
    )
    outcomes: Sequence[TidemillError | None]
    try:
        outcomes = await ctx.broker.commit_transaction_offsets(commit)
    except TidemillError as error:
        # The response has no error of its own: each partition carries it.
        outcomes = [error] * len(commit.commit.offsets)
    code = partial(transaction_code, api_key=TXN_OFFSET_COMMIT, version=ctx.api_version)
    following = iter(outcomes)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "error_code": code(next(following)),
                    }
                    for partition in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


def _offsets(topics: Iterable[Any]) -> Iterable[OffsetToCommit]:
    for topic in topics:
        for partition in topic.partitions:
            yield OffsetToCommit(
                topic=topic.name,
                partition=partition.partition_index,
                offset=partition.committed_offset,
                leader_epoch=field(partition, "committed_leader_epoch", -1),
                metadata=partition.committed_metadata,
            )


# --- EndTxn --------------------------------------------------------------------------------------


@handles(END_TXN)
async def handle_end_txn(ctx: RequestContext, request: Any) -> Tree:
    """Commit or abort; from v5 on the answer holds the producer's identity for its next one."""
    try:
        producer = await ctx.broker.end_transaction(
            request.transactional_id,
            producer_of(request),
            request.committed,
            _version(ctx, END_BUMPS_SINCE),
        )
    except TidemillError as error:
        return {"error_code": transaction_code(error, END_TXN, ctx.api_version)}
    return {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
