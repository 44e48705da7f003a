"""WriteTxnMarkers: an admin client ends a transaction that hangs (KIP-98, KIP-664).

Brokers of a cluster send it to each other. Here it comes from operators only. Translates only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

from tidemill.errors import TidemillError
from tidemill.log.format.markers import Marker
from tidemill.log.names import TopicPartition
from tidemill.protocols.kafka.apis import RequestContext, Tree, handles, outcome_of_each
from tidemill.protocols.kafka.error_codes import error_code

WRITE_MARKERS = 27

_Wanted: TypeAlias = tuple[Marker, TopicPartition]
_marker = itemgetter(0)


@handles(WRITE_MARKERS)
async def handle_write_txn_markers(ctx: RequestContext, request: Any) -> Tree:
    """Write markers to partitions with an open transaction."""
    wanted = await ctx.turns.collect(_wanted(request.markers))

    async def write(part: Sequence[_Wanted]) -> list[TidemillError | None]:
        markers = [(marker, [tp for _, tp in each]) for marker, each in groupby(part, _marker)]
        outcomes = await ctx.door.transactions.write_markers(markers)
        return [outcome for each in outcomes for outcome in each]

    outcomes = await outcome_of_each(ctx.turns.in_parts(write, wanted), len(wanted))
    # One answer per producer: clients look it up by the producer's id.
    codes: dict[int, dict[str, dict[int, int]]]
    codes = {marker.producer_id: {} for marker in request.markers}
    for (marker, tp), failed in zip(wanted, outcomes, strict=True):
        topics = codes[marker.producer_id]
        topics.setdefault(tp.topic, {})[tp.partition] = error_code(failed)
        if ctx.turns.is_due:
            await ctx.turns.pause()
    return {
        "markers": [
            {"producer_id": producer_id, "topics": _topics(topics)}
            for producer_id, topics in codes.items()
        ]
    }


def _wanted(markers: Iterable[Any]) -> Iterator[_Wanted]:
    for each in markers:
        numbers = each.producer_id, each.producer_epoch
        marker = Marker(*numbers, each.transaction_result, each.coordinator_epoch)
        for topic in each.topics:
            for index in topic.partition_indexes:
                yield marker, TopicPartition(topic.name, index)


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
