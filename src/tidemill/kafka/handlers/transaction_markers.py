"""WriteTxnMarkers: how admin clients end a transaction that hangs (KIP-98, KIP-664).

Brokers of a cluster send it to each other; here it comes from operators only. Translates only.
"""

from __future__ import annotations

from typing import Any

from tidemill.errors import TidemillError
from tidemill.kafka.apis import RequestContext, Tree, handles
from tidemill.kafka.errors import error_code
from tidemill.log.names import TopicPartition
from tidemill.log.transactions import Marker

WRITE_MARKERS = 27


@handles(WRITE_MARKERS)
async def handle_write_txn_markers(ctx: RequestContext, request: Any) -> Tree:
    """Write markers where a transaction is open: how admin clients abort one that hangs."""
    markers = [
        (
            Marker(
                marker.producer_id,
                marker.producer_epoch,
                marker.transaction_result,
                marker.coordinator_epoch,
            ),
            [
                TopicPartition(topic.name, index)
                for topic in marker.topics
                for index in topic.partition_indexes
            ],
        )
        for marker in request.markers
    ]
    outcomes: list[list[TidemillError | None]]
    try:
        outcomes = await ctx.broker.write_markers(markers)
    except TidemillError as error:
        outcomes = [[error] * len(partitions) for _, partitions in markers]
    # Once per producer: clients look the answer up by its id.
    codes: dict[int, dict[str, dict[int, int]]] = {}
    for (marker, partitions), errors in zip(markers, outcomes, strict=True):
        topics = codes.setdefault(marker.producer_id, {})
        for tp, failed in zip(partitions, errors, strict=True):
            topics.setdefault(tp.topic, {})[tp.partition] = error_code(failed)
    return {
        "markers": [
            {"producer_id": producer_id, "topics": _topics(topics)}
            for producer_id, topics in codes.items()
        ]
    }


def _topics(codes: dict[str, dict[int, int]]) -> list[Tree]:
    return [
        {
            "name": topic,
            "partitions": [
                {"partition_index": index, "error_code": code} for index, code in partitions.items()
            ],
        }
        for topic, partitions in codes.items()
    ]
