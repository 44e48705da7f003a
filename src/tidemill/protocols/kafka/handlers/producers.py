"""Producers: InitProducerId and DescribeProducers (KIP-98, KIP-360, KIP-664).

Translates only: the transaction coordinator decides which producer is fenced.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tidemill.engine.api import NO_PRODUCER, InitProducer, ProducerIdentity
from tidemill.errors import TidemillError
from tidemill.protocols.kafka.apis import Each, RequestContext, Tree, each_partition, field, handles
from tidemill.protocols.kafka.error_codes import error_fields, transaction_code
from tidemill.state.errors import InvalidRequestError

INIT_PRODUCER_ID = 22


@handles(INIT_PRODUCER_ID)
async def handle_init_producer_id(ctx: RequestContext, request: Any) -> Tree:
    """Answer with a new producer id and epoch, or with the identity of a transactional id."""
    try:
        producer_id, epoch = await _init(ctx, request)
    except TidemillError as error:
        code = transaction_code(error, INIT_PRODUCER_ID, ctx.api_version)
        return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
    return {"producer_id": producer_id, "producer_epoch": epoch}


async def _init(ctx: RequestContext, request: Any) -> tuple[int, int]:
    transactional_id = request.transactional_id
    if transactional_id == "":
        raise InvalidRequestError("the transactional id is empty")
    current = ProducerIdentity(
        field(request, "producer_id", NO_PRODUCER.producer_id),
        field(request, "producer_epoch", NO_PRODUCER.epoch),
    )
    if (current.producer_id == NO_PRODUCER.producer_id) != (current.epoch == NO_PRODUCER.epoch):
        raise InvalidRequestError(
            f"producer id {current.producer_id} and epoch {current.epoch}: set both or none"
        )
    if transactional_id is None:
        return await ctx.door.transactions.new_producer()
    return await ctx.door.transactions.init(
        InitProducer(transactional_id, request.transaction_timeout, current)
    )


@handles(61)
def handle_describe_producers(ctx: RequestContext, request: Any) -> Tree:
    """Answer with the producers that partitions remember."""
    answer = partial(_producers, ctx)
    return {"topics": each_partition(request.topics, answer, given="partition_indexes")}


def _producers(ctx: RequestContext, topic: str, partition: int) -> Tree:
    tree: Tree = {"partition_index": partition}
    try:
        producers = ctx.door.records.producers(topic, partition)
    except TidemillError as error:
        return tree | error_fields(error)
    return tree | {
        "active_producers": Each(
            lambda producer: {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.producer_epoch,
                "last_sequence": producer.last_sequence,
                "last_timestamp": producer.last_timestamp_ms,
                "coordinator_epoch": _or_unknown(producer.coordinator_epoch),
                "current_txn_start_offset": _or_unknown(producer.transaction_start),
            },
            producers,
        )
    }


def _or_unknown(value: int | None) -> int:
    return -1 if value is None else value
