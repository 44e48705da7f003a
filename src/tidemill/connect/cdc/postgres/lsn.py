"""Positions in the write-ahead log, as integers and as text: log sequence numbers (LSNs).

Must not know: connections, changes, Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

POSTGRES_EPOCH_US = 946_684_800_000_000
"""Microseconds from 1970 to 2000, where PostgreSQL's clock starts."""
_PAGE = 8192
_PAGE_HEADERS = (24, 40)
"""Sizes of the header of a page and of the first page of a segment (``XLogPageHeaderData``)."""


def parse(text: str | bytes) -> int:
    """Return an LSN such as ``16/B374D848`` as an integer.

    Raises:
        ValueError: The text is not an LSN.
    """
    plain = text.decode("ascii") if isinstance(text, bytes) else text
    high, slash, low = plain.partition("/")
    if not slash:
        raise ValueError(f"invalid LSN {plain!r}: it must look like 16/B374D848")
    return (int(high, 16) << 32) | int(low, 16)


def show(lsn: int) -> str:
    """Return an integer LSN as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def end_of_records(lsn: int) -> int:
    """Return an insert position without the page header that lies behind the last record.

    ``pg_current_wal_insert_lsn`` names the place of the *next* record. If the last record ends
    exactly at the end of a page, that place is behind the next page's header, which the walsender
    reports only after something more was written.
    """
    within = lsn % _PAGE
    return lsn - within if within in _PAGE_HEADERS else lsn


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place in the stream of committed changes.

    Attributes:
        lsn: All transactions that end at or below it are complete.
        commit: The commit LSN of a transaction of which some changes were delivered, or 0.
        change: The LSN of the last delivered change of that transaction.
        count: How many changes with this LSN were delivered: one WAL record can hold several.
    """

    lsn: int
    commit: int = 0
    change: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """The identity of the server and of the slot that a position belongs to.

    Attributes:
        system: The system identifier of the cluster.
        timeline: The timeline on which the position was read.
        database: The name of the database, because a slot belongs to one.
        slot: The name of the slot.
        created: The LSN at which the slot became consistent, so that a slot that was dropped and
            created again differs.
    """

    system: str
    timeline: int
    database: str
    slot: str
    created: int


def to_json(place: Place, origin: Origin, horizon: int = 0) -> dict[str, int | str]:
    """Return the position as the JSON object that the worker stores.

    Args:
        place: Where the stream continues.
        origin: The server and the slot.
        horizon: Number of a transaction. Tables that only older ones changed are known; 0 if that
            is not known.
    """
    found: dict[str, int | str] = {
        "lsn": show(place.lsn),
        "system": origin.system,
        "timeline": origin.timeline,
        "database": origin.database,
        "slot": origin.slot,
        "created": show(origin.created),
    }
    if horizon:
        found["horizon"] = horizon
    if place.commit:
        found |= {
            "commit": show(place.commit),
            "change": show(place.change),
            "count": place.count,
        }
    return found


def place_of(position: dict[str, Any]) -> Place:
    """Return the place that a stored position names.

    Raises:
        ValueError: The position is not one of a PostgreSQL source.
    """
    try:
        lsn = parse(position["lsn"])
        if "commit" not in position:
            return Place(lsn)
        commit, change = parse(position["commit"]), parse(position["change"])
        return Place(lsn, commit, change, int(position["count"]))
    except (KeyError, TypeError, AttributeError) as fault:
        raise ValueError(f"invalid position {position!r}: {fault!r}") from None


def origin_of(position: dict[str, Any]) -> Origin:
    """Return the identity that a stored position is bound to.

    Raises:
        ValueError: The position is not one of a PostgreSQL source.
    """
    try:
        return Origin(
            str(position["system"]),
            int(position["timeline"]),
            str(position["database"]),
            str(position["slot"]),
            parse(position["created"]),
        )
    except (KeyError, TypeError, AttributeError) as fault:
        raise ValueError(f"invalid position {position!r}: {fault!r}") from None
