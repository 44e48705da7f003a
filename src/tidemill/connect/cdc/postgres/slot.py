"""The replication slot: creating, verifying and dropping it, and starting its stream.

Must not know: tables, changes, Kafka.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from tidemill.connect.cdc.errors import PositionLostError, SetupError, SourceUnavailableError
from tidemill.connect.cdc.postgres.catalog import Catalog
from tidemill.connect.cdc.postgres.connection import ReplicationConnection
from tidemill.connect.cdc.postgres.lsn import Origin, Place, parse, show
from tidemill.connect.cdc.postgres.settings import Settings

_STREAMING, _MESSAGES, _FAILOVER = 140000, 140000, 170000
"""The first server versions with these features."""
_FREE_S, _LOOK_S = 3.0, 0.02
_RESNAPSHOT = "Run: tidemill source restart NAME --resnapshot."


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot as ``pg_replication_slots`` shows it.

    Attributes:
        is_lost: Whether the server has removed log that the slot needs.
        confirmed: The place that was confirmed; the stream starts there at the earliest.
        reason: Why the slot can't be used any more, as the server says it, or an empty string.
    """

    plugin: str
    database: str
    is_active: bool
    is_lost: bool
    confirmed: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Server:
    """The identity of the server behind a replication connection."""

    system: str
    timeline: int
    database: str


def identify(replication: ReplicationConnection) -> Server:
    """Return the identity of the server (IDENTIFY_SYSTEM)."""
    row = replication.command("IDENTIFY_SYSTEM", "can't identify the server")[0]
    return Server(row[0] or "", int(row[1] or 0), row[3] or "")


def find(catalog: Catalog, name: str) -> Slot | None:
    """Return a slot, or None if it does not exist."""
    lost = "coalesce(wal_status = 'lost', false)" if catalog.version >= 130000 else "false"
    reason = "coalesce(invalidation_reason, '')" if catalog.version >= 170000 else "''"
    found = catalog.rows(
        f"SELECT coalesce(plugin, ''), coalesce(database, ''), active, {lost},"
        f" coalesce(confirmed_flush_lsn, '0/0')::text, {reason}"
        " FROM pg_replication_slots WHERE slot_name = %s",
        (name,),
        doing="can't read the replication slots",
    )
    if not found:
        return None
    plugin, database, active, is_lost, confirmed, why = found[0]
    return Slot(plugin, database, active, is_lost, parse(confirmed), why)


def when_free(catalog: Catalog, name: str) -> Slot | None:
    """Return a slot as soon as no session reads it, or as it is after some seconds.

    The server notices a moment later that the session of an earlier worker has ended.
    """
    deadline = time.monotonic() + _FREE_S
    while True:
        found = find(catalog, name)
        if found is None or not found.is_active or time.monotonic() > deadline:
            return found
        time.sleep(_LOOK_S)


def create(
    replication: ReplicationConnection, catalog: Catalog, settings: Settings
) -> tuple[int, str]:
    """Create the slot and return the place where it starts, and the name of its snapshot.

    The snapshot is valid until the next command on this connection.
    """
    existing = when_free(catalog, settings.slot)
    if existing is not None:
        _replace(existing, replication, settings)
    options = ["SNAPSHOT 'export'"]
    if settings.failover and catalog.version >= _FAILOVER:
        options.append("FAILOVER true")
    how = f"({', '.join(options)})" if catalog.version >= 150000 else "EXPORT_SNAPSHOT"
    row = replication.command(
        f'CREATE_REPLICATION_SLOT "{settings.slot}" LOGICAL pgoutput {how}',
        f"can't create the replication slot {settings.slot}",
    )[0]
    return parse(row[1] or ""), row[2] or ""


def _replace(existing: Slot, replication: ReplicationConnection, settings: Settings) -> None:
    if existing.is_active:
        raise SourceUnavailableError(
            f"another program reads the replication slot {settings.slot}",
            hint="Choose another name with database.slot. Or end its session, run: "
            f"{_end_session(settings.slot)}",
        )
    if not settings.is_own_slot:
        raise SetupError(
            f"the replication slot {settings.slot} exists, but there is no position for it",
            hint=f"Choose another name with database.slot, or drop it: "
            f"SELECT pg_drop_replication_slot('{settings.slot}').",
        )
    drop(replication, settings.slot)


def _end_session(name: str) -> str:
    """Return the statement that ends the session which reads a slot."""
    return (
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
        f"WHERE slot_name = '{name}';"
    )


def drop(replication: ReplicationConnection, name: str) -> None:
    """Drop a slot."""
    replication.command(
        f'DROP_REPLICATION_SLOT "{name}"', f"can't drop the replication slot {name}"
    )


def verify(
    replication: ReplicationConnection, catalog: Catalog, name: str, place: Place, origin: Origin
) -> Origin:
    """Check that the slot still has everything after a place, and return its identity now."""
    here = identify(replication)
    if here.system != origin.system or here.database != origin.database:
        raise PositionLostError(
            f"the stored position is of another server: system {origin.system}, database "
            f"{origin.database}; here: system {here.system}, database {here.database}",
            hint=f"Check the dsn. After an upgrade or a restored dump, a snapshot is needed: "
            f"{_RESNAPSHOT}",
        )
    if origin.slot != name:
        raise PositionLostError(
            f"the stored position is of the slot {origin.slot}, and not of {name}",
            hint=f"Set database.slot back to {origin.slot}. Or: {_RESNAPSHOT}",
        )
    if here.timeline != origin.timeline:
        _check_timeline(replication, place, origin, here)
    slot = when_free(catalog, name)
    _check_slot(slot, name, place, here)
    return Origin(here.system, here.timeline, here.database, name, origin.created)


def _check_slot(slot: Slot | None, name: str, place: Place, here: Server) -> None:
    if slot is None:
        raise PositionLostError(
            f"the replication slot {name} does not exist any more, so changes after "
            f"{show(place.lsn)} are lost",
            hint=f"{_RESNAPSHOT} After a failover, see failover slots in the guide.",
        )
    if slot.plugin != "pgoutput" or slot.database != here.database:
        raise PositionLostError(
            f"the replication slot {name} is not ours: plugin {slot.plugin}, "
            f"database {slot.database}",
            hint="Choose another name with database.slot.",
        )
    if slot.is_lost or slot.reason:
        # 17 and newer name the reason, this one as wal_removed.
        is_size = slot.reason in ("", "wal_removed")
        why = "its log was larger than max_slot_wal_keep_size" if is_size else slot.reason
        raise PositionLostError(
            f"the server has invalidated the replication slot {name}: {why}",
            hint=f"Raise max_slot_wal_keep_size. {_RESNAPSHOT}",
        )
    if slot.confirmed > place.lsn:
        raise PositionLostError(
            f"the replication slot {name} starts at {show(slot.confirmed)}, after the stored "
            f"position {show(place.lsn)}: it was created again, or another program has read it",
            hint=_RESNAPSHOT,
        )
    if slot.is_active:
        raise SourceUnavailableError(
            f"another program reads the replication slot {name}",
            hint="If it is an earlier worker, the server notices its end within "
            f"wal_sender_timeout. To end its session, run: {_end_session(name)}",
        )


def _check_timeline(
    replication: ReplicationConnection, place: Place, origin: Origin, here: Server
) -> None:
    """Raise PositionLostError unless the position is part of the history of this timeline."""
    history: str | None = None
    if here.timeline > 1:  # the first one has no history
        history = replication.command(
            f"TIMELINE_HISTORY {here.timeline:d}", "can't read the history of the timeline"
        )[0][1]
    for line in (history or "").splitlines():
        fields = line.split()
        if fields and fields[0] == str(origin.timeline):
            if place.lsn <= parse(fields[1]):
                return
            raise PositionLostError(
                f"the stored position {show(place.lsn)} of timeline {origin.timeline} is after "
                f"{fields[1]}, where the server left it: it lost changes in a failover that Kafka "
                "has already",
                hint=_RESNAPSHOT,
            )
    raise PositionLostError(
        f"timeline {here.timeline} of the server does not descend from {origin.timeline}",
        hint=_RESNAPSHOT,
    )


def start_streaming(
    replication: ReplicationConnection, version: int, settings: Settings, lsn: int
) -> None:
    """Start the stream at a place."""
    quoted = settings.publication.replace('"', '""').replace("'", "''")
    options = {"proto_version": "1", "publication_names": f'"{quoted}"'}
    if settings.streaming and version >= _STREAMING:
        options |= {"proto_version": "2", "streaming": "on"}
    if settings.messages and version >= _MESSAGES:
        options["messages"] = "true"
    listed = ", ".join(f"{name} '{value}'" for name, value in options.items())
    try:
        replication.command(
            f'START_REPLICATION SLOT "{settings.slot}" LOGICAL {show(lsn)} ({listed})',
            f"can't read the replication slot {settings.slot}",
        )
    except SetupError as fault:  # the slot was verified, so it was invalidated since
        raise PositionLostError(str(fault), hint=_RESNAPSHOT) from None
