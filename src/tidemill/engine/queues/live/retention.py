"""Deletes the segments of a queue whose messages are all done. Knows one lane and its policy."""

from __future__ import annotations

import itertools

import structlog

from tidemill.engine.queues.live.lane import Lane
from tidemill.errors import TidemillError
from tidemill.state.routing.arguments import Policy

logger = structlog.get_logger("tidemill.queues")


def delete_done(lane: Lane, end: int, policy: Policy, now_ms: int) -> None:
    """Delete the closed segments below a low-water mark.

    ``x-retain`` keeps them for a time after their latest message, or forever.

    Args:
        end: everything below it is done.
    """
    log = lane.log
    if policy.retain_ms < 0 or log.failure is not None or policy.is_stream:
        return
    keep_from = log.log_start_offset
    segments = log.segments
    for segment, following in itertools.pairwise(segments):
        if following.base_offset > end:
            break
        if policy.retain_ms and now_ms - segment.max_timestamp < policy.retain_ms:
            break
        keep_from = following.base_offset
    if keep_from <= log.log_start_offset:
        return
    try:
        log.delete_records_before(keep_from)
    except TidemillError as error:
        logger.error("queue.not_deleted", partition=str(log.tp), error=str(error), hint=error.hint)
