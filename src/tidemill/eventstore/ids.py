"""Makes ids of events: UUIDs of version 7 (RFC 9562), which begin with the time.

Ids that are made one after the other are neighbours in the index. Random ones are all over it, and
each costs a page of its own: at 600,000 events, the index took almost twice the time to write. Must
not know: stores.
"""

from __future__ import annotations

import os
import time
import uuid

_VERSION = 0x7 << 76
_VARIANT = 0x2 << 62


def new_id() -> uuid.UUID:
    """Return a new id: 48 bits of milliseconds since 1970, and 74 random bits."""
    chance = int.from_bytes(os.urandom(10))
    stamp = (time.time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF) << 80
    high, low = (chance >> 62 & 0xFFF) << 64, chance & 0x3FFF_FFFF_FFFF_FFFF
    return uuid.UUID(int=stamp | _VERSION | high | _VARIANT | low)
