"""Completes, at a start, the dead letters that a crash has interrupted.

A letter that is in a queue proves that its origin was dropped. Its origin is marked as done, and
queues that lack the letter get it. Knows no clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

import structlog

from tidemill.engine.queues.letters import key_of, origin_of
from tidemill.engine.queues.live.ack_log import AckLog
from tidemill.engine.queues.live.lane import Lane
from tidemill.engine.queues.live.queue import LiveQueue
from tidemill.engine.queues.live.stored import Stored
from tidemill.state.queues.format import MARKS, decode_offset, encode_offset

logger = structlog.get_logger("tidemill.queues")

Origin = tuple[UUID, int, int]
FindLane = Callable[[UUID, int], tuple[LiveQueue, Lane] | None]
"""Returns the live queue and the lane of topic id and partition."""


async def complete_letters(
    ack_log: AckLog,
    find: FindLane,
    resend: Callable[[LiveQueue, Stored, Sequence[Lane]], None],
) -> None:
    """Mark the origins of all letters as done, and send letters that are missing.

    Args:
        resend: called with the origin's queue, a letter, and the lanes that have it.
    """
    found: dict[Origin, tuple[Stored, list[Lane]]] = {}
    targets: list[Lane] = []
    for key, values in ack_log.stored_letters():
        place = find(key.topic_id, key.partition)
        if place is None:
            ack_log.note(key, None)
            continue
        lane = place[1]
        targets.append(lane)
        first = max(decode_offset(values[MARKS]), lane.log.log_start_offset)
        async for _, letter in lane.fetch(first, lane.log.log_end_offset - 1):
            origin = origin_of(letter.headers)
            if origin is not None:
                found.setdefault(origin, (letter, []))[1].append(lane)
    for (topic_id, partition, offset), (letter, lanes) in found.items():
        place = find(topic_id, partition)
        if place is None or not 0 <= offset < place[1].log.log_end_offset:
            continue
        queue, lane = place
        if lane.window.is_done(offset):
            continue
        logger.info("queue.letter_completed", queue=queue.name, offset=offset)
        lane.window.finish(offset)
        lane.sizes.dropped(len(letter.value))
        ack_log.changed(lane)
        resend(queue, letter, lanes)
    for lane in targets:
        value = encode_offset(lane.log.log_end_offset)
        ack_log.after(lane, partial(ack_log.note, key_of(lane), value))
