"""InitProducerId and DescribeProducers: who writes (KIP-98, KIP-360, KIP-664).

Translates only; who is fenced by whom is decided by the transaction coordinator in ``state``.
"""

from __future__ import annotations

from typing import Any

from tidemill.broker.api import NO_PRODUCER, InitProducer, ProducerIdentity
from tidemill.errors import InvalidRequestError, TidemillError
from tidemill.kafka.apis import RequestContext, Tree, field, handles, millis
from tidemill.kafka.errors import error_code, error_message, transaction_code

INIT_PRODUCER_ID = 22


@handles(INIT_PRODUCER_ID)
async def handle_init_producer_id(ctx: RequestContext, request: Any) -> Tree:
    """A fresh producer id and epoch, or the identity that belongs to a transactional id."""
    try:
        producer_id, epoch = await _init(ctx, request)
    except TidemillError as error:
        code = transaction_code(error, INIT_PRODUCER_ID, ctx.api_version)
        return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
    return {"producer_id": producer_id, "producer_epoch": epoch}


async def _init(ctx: RequestContext, request: Any) -> tuple[int, int]:
    transactional_id = request.transactional_id
    if transactional_id == "":
        raise InvalidRequestError("an empty transactional id")
    current = ProducerIdentity(
        field(request, "producer_id", NO_PRODUCER.producer_id),
        field(request, "producer_epoch", NO_PRODUCER.epoch),
    )
    if (current.producer_id == NO_PRODUCER.producer_id) != (current.epoch == NO_PRODUCER.epoch):
        raise InvalidRequestError(f"half of a producer's identity: {current}")
    if transactional_id is None:
        return await ctx.broker.init_producer_id(None)
    return await ctx.broker.init_transactional_producer(
        InitProducer(transactional_id, millis(request.transaction_timeout), current)
    )


@handles(61)
def handle_describe_producers(ctx: RequestContext, request: Any) -> Tree:
    """The producers that partitions remember."""
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _producers(ctx, topic.name, index) for index in topic.partition_indexes
                ],
            }
            for topic in request.topics
        ]
    }


def _producers(ctx: RequestContext, topic: str, partition: int) -> Tree:
    tree: Tree = {"partition_index": partition}
    try:
        producers = ctx.broker.producers(topic, partition)
    except TidemillError as error:
        return tree | {"error_code": error_code(error), "error_message": error_message(error)}
    return tree | {
        "active_producers": [
            {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.producer_epoch,
                "last_sequence": producer.last_sequence,
                "last_timestamp": producer.last_timestamp_ms,
                "coordinator_epoch": producer.coordinator_epoch,
                "current_txn_start_offset": producer.current_txn_start_offset,
            }
            for producer in producers
        ]
    }
