"""InitProducerId and DescribeProducers: idempotent producers (KIP-98, KIP-664).

Translates only. Transactional producers come with transactions; the broker refuses them.
"""

from __future__ import annotations

from typing import Any

from tidemill.errors import InvalidRequestError, TidemillError
from tidemill.kafka.apis import RequestContext, Tree, handles
from tidemill.kafka.errors import error_code, error_message


@handles(22)
async def handle_init_producer_id(ctx: RequestContext, request: Any) -> Tree:
    """A fresh producer id and epoch."""
    try:
        if request.transactional_id == "":
            raise InvalidRequestError("an empty transactional id")
        producer_id, epoch = await ctx.broker.init_producer_id(request.transactional_id)
    except TidemillError as error:
        return {"error_code": error_code(error), "producer_id": -1, "producer_epoch": -1}
    return {"producer_id": producer_id, "producer_epoch": epoch}


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
