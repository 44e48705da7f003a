"""WriteTxnMarkers: an admin client ends a transaction that hangs (KIP-98, KIP-664).

Brokers of a cluster send it to each other. Here it comes from operators only. Translates only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.errors import TidemillError
from tidemill.log.format.markers import Marker
from tidemill.log.names import TopicPartition
from tidemill.net.work import PART_ITEMS
from tidemill.protocols.kafka.apis import RequestContext, Tree, handles
from tidemill.protocols.kafka.error_codes import error_code

WRITE_MARKERS = 27


@handles(WRITE_MARKERS)
async def handle_write_txn_markers(ctx: RequestContext, request: Any) -> Tree:
    """Write markers to partitions with an open transaction."""
    markers = await ctx.turns.collect(
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
    )

    async def write(
        requested: tuple[Marker, Sequence[TopicPartition]],
    ) -> list[TidemillError | None]:
        marker, partitions = requested

        async def write_part(part: Sequence[TopicPartition]) -> list[TidemillError | None]:
            (result,) = await ctx.door.transactions.write_markers([(marker, part)])
            return result

        return await ctx.turns.in_parts(write_part, partitions)

    outcomes: list[list[TidemillError | None]]
    try:
        if sum(len(partitions) for _, partitions in markers) <= PART_ITEMS:
            outcomes = await ctx.door.transactions.write_markers(markers)
        else:
            outcomes = await ctx.turns.each(write, markers)
    except TidemillError as error:
        outcomes = [[error] * len(partitions) for _, partitions in markers]
    # One answer per producer: clients look it up by the producer's id.
    codes: dict[int, dict[str, dict[int, int]]] = {}
    for (marker, partitions), errors in zip(markers, outcomes, strict=True):
        topics = codes.setdefault(marker.producer_id, {})
        for tp, failed in zip(partitions, errors, strict=True):
            topics.setdefault(tp.topic, {})[tp.partition] = error_code(failed)
        await ctx.turns.pause_if_due()
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
