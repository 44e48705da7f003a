"""Checks the addresses that clients get from the broker: this machine tries to connect to them.

A wrong one makes clients wait until their timeouts, and they do not say why. Clients elsewhere can
reach an address that this machine can't (containers, address translation), so it is a warning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from tidemill.kafka_client.named import why_unreachable
from tidemill.kafka_client.settings import Address

log = structlog.get_logger("tidemill.server")

TIMEOUT_S = 3.0
"""How long an address can take to accept a connection."""
PAUSES_S = (0.0, 5.0, 25.0)
"""Pauses before the tries: a name of a container is known only a while after its start."""
HINT = (
    "If clients elsewhere can reach it, it is right (containers, address translation). Otherwise "
    "set advertised_host and advertised_port of the listener to an address that they can reach."
)


async def check(
    listeners: Sequence[tuple[str, Address]], pauses_s: Sequence[float] = PAUSES_S
) -> None:
    """Warn of addresses that can't be reached at any of several tries.

    Args:
        listeners: the name of each listener, and the address that its clients get.
    """
    left = dict(listeners)
    reasons: dict[str, str] = {}
    for pause in pauses_s:
        await asyncio.sleep(pause)
        for name, address in list(left.items()):
            reasons[name] = await asyncio.to_thread(why_unreachable, address, TIMEOUT_S)
            if not reasons[name]:
                del left[name]
        if not left:
            return
    for name, address in left.items():
        log.warning(
            "advertised.unreachable",
            listener=name,
            address=str(address),
            error=reasons[name],
            why="clients connect to this address after their first question, and this machine "
            "can't",
            hint=HINT,
        )
