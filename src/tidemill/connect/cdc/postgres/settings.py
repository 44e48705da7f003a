"""The ``[database]`` section of a PostgreSQL source. Checks it without connecting.

Must not know: connections, the catalog.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from tidemill.connect.base.secrets import Secret
from tidemill.connect.cdc.contract import Capture
from tidemill.connect.cdc.errors import DefinitionError, SetupError
from tidemill.connect.cdc.postgres.types import SESSION
from tidemill.extras import load

_LONGEST_NAME = 63
_CONNINFO = (
    "host", "hostaddr", "port", "dbname", "user", "password", "passfile", "service",
    "sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "channel_binding",
    "target_session_attrs", "connect_timeout", "gssencmode", "krbsrvname",
)  # fmt: skip
"""Parameters of libpq that can be written as keys of their own."""
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")


@dataclass(frozen=True, slots=True)
class Settings:
    """The address of the database, and what to make there.

    Attributes:
        conninfo: Connection string of libpq. It can contain a password: never show it.
        slot: The name of the replication slot.
        is_own_slot: Whether the slot has the default name, so that an old one can be replaced.
        publication: The name of the publication.
        streaming: Whether the server sends large transactions before their commit (14 and newer).
        failover: Whether the slot is copied to standbys (17 and newer).
        heartbeat_s: How often to write a logical message into the database; 0 for never.
        messages: Whether to capture logical messages of applications (14 and newer).
        spool_dir: Folder for large transactions that are not committed yet; None for the default.
    """

    conninfo: str
    slot: str
    is_own_slot: bool
    publication: str
    streaming: bool = True
    failover: bool = False
    heartbeat_s: float = 0.0
    messages: bool = True
    spool_dir: str | None = None


def driver() -> Any:
    """Import the package psycopg, which is an optional dependency."""
    return load("postgres", SetupError)


def settings_of(capture: Capture) -> Settings:
    """Read the settings of a source."""
    given = dict(capture.database)
    given.pop("kind", None)
    given.pop("type", None)
    default = _default_name(capture.name)
    conninfo = _conninfo(given, capture.name)
    slot = _text(given.pop("slot", default), "slot")
    publication = _text(given.pop("publication", default), "publication")
    if not _SLOT_NAME.fullmatch(slot):
        raise DefinitionError(
            f"invalid slot name {slot!r}",
            hint="Use up to 63 of a-z, 0-9 and _.",
        )
    if not publication or len(publication.encode()) > _LONGEST_NAME:
        raise DefinitionError(f"invalid publication {publication!r}: use 1 to 63 bytes")
    options = {name: _typed(given.pop(name), name) for name in _OPTIONS if name in given}
    if given:
        _refuse_unknown(next(iter(given)))
    return Settings(conninfo, slot, slot == default, publication, **options)


_TYPES: Mapping[str, type] = {
    "streaming": bool, "failover": bool, "messages": bool, "heartbeat_s": float, "spool_dir": str,
}  # fmt: skip
_OPTIONS = [field.name for field in fields(Settings) if field.name in _TYPES]


def _typed(value: Any, name: str) -> Any:
    wanted = _TYPES[name]
    if wanted is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
            raise DefinitionError(f"invalid database.{name} {value!r}: use seconds, or 0 for never")
        return float(value)
    if not isinstance(value, wanted):
        raise DefinitionError(f"invalid database.{name} {value!r}: use a {wanted.__name__}")
    return value


def _default_name(source: str) -> str:
    """Return the name of slot and publication: a slot's name has lower case letters and _ only."""
    plain = re.sub(r"[^a-z0-9_]", "_", source.lower())
    return f"tidemill_{plain}"[:_LONGEST_NAME]


def _conninfo(given: dict[str, Any], name: str) -> str:
    psycopg = driver()
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    dsn = given.pop("dsn", None) or given.pop("url", None) or ""
    separate = {key: _plain(given.pop(key)) for key in _CONNINFO if key in given}
    try:
        known: dict[str, Any] | None = conninfo_to_dict(_plain(_text(dsn, "dsn")), **separate)
    except psycopg.Error:
        known = None  # raised below: the text of this error contains the dsn
    if known is None:
        raise DefinitionError(
            "can't parse the dsn (not shown because it may contain a password)",
            hint='Write "host=db dbname=shop user=tidemill", or postgresql://tidemill@db/shop.',
        )
    fixed = " ".join(f"-c {key}={value}" for key, value in SESSION.items())
    known["options"] = f"{known.get('options') or ''} {fixed}".strip()
    known.setdefault("application_name", f"tidemill {name}"[:_LONGEST_NAME])
    known.setdefault("connect_timeout", "10")
    known.setdefault("keepalives_idle", "30")
    return str(make_conninfo(**known))


def _plain(value: Any) -> str:
    """Return an option as libpq needs it: ``str`` of a secret would be asterisks."""
    return value.reveal() if isinstance(value, Secret) else str(value)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise DefinitionError(f"invalid database.{name}: it must be a string")
    return value


def _refuse_unknown(key: str) -> None:
    near = get_close_matches(key, [*_OPTIONS, *_CONNINFO, "dsn", "slot", "publication"], 1)
    raise DefinitionError(
        f"unknown key database.{key}", hint=f"Did you mean {near[0]}?" if near else ""
    )
