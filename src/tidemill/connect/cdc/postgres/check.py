"""Finds what a server lacks for capture, with the statement that gives it. It changes nothing.

Must not know: the stream, Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.connect.cdc.contract import Capture, Finding
from tidemill.connect.cdc.postgres import publication, slot
from tidemill.connect.cdc.postgres.catalog import Catalog, CatalogTable
from tidemill.connect.cdc.postgres.settings import Settings

_OLDEST, _STREAMING, _FAILOVER = 120000, 140000, 170000
_ALL_KINDS = 4
_RESTART = "and restart the server"


def findings(catalog: Catalog, capture: Capture, settings: Settings) -> list[Finding]:
    """Return everything that prevents or endangers capture, the worst first."""
    if catalog.version < _OLDEST:
        text = f"the server is PostgreSQL {catalog.version // 10000}; 12 is the oldest version"
        return [Finding("error", text, "Upgrade the server.")]
    found = [
        *_server(catalog, settings),
        *_role(catalog),
        *_slot(catalog, capture, settings),
        *_publication(catalog, capture, settings),
        *_tables(catalog, capture, settings),
    ]
    return sorted(found, key=lambda each: ("error", "warning", "note").index(each.severity))


def _setting(catalog: Catalog, name: str) -> str:
    found = catalog.value(
        "SELECT current_setting(%s, true)", (name,), doing=f"can't read the setting {name}"
    )
    return str(found or "")


def _server(catalog: Catalog, settings: Settings) -> Iterator[Finding]:
    level = _setting(catalog, "wal_level")
    if level != "logical":
        yield Finding(
            "error",
            f"wal_level is {level}, so the log has no row changes",
            f"ALTER SYSTEM SET wal_level = 'logical'; {_RESTART}",
        )
    if catalog.value("SELECT pg_is_in_recovery()", doing="can't read the server's state"):
        yield Finding("error", "the server is a standby", "Connect to the primary server.")
    if settings.failover and catalog.version < _FAILOVER:
        yield Finding(
            "error",
            "database.failover needs PostgreSQL 17",
            "Set failover = false. After a failover the source needs a snapshot.",
        )
    keep = _setting(catalog, "max_slot_wal_keep_size")
    if keep == "-1":
        yield Finding(
            "warning",
            "max_slot_wal_keep_size is not limited: a stopped worker can fill the server's disk",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();",
        )
    standbys = _setting(catalog, "synchronous_standby_names")
    if "*" in standbys:
        yield Finding(
            "warning",
            f"synchronous_standby_names = '{standbys}' counts the worker as a standby, so commits "
            "can wait for it",
            "Name the standbys in synchronous_standby_names.",
        )
    if _setting(catalog, "server_encoding") == "SQL_ASCII":
        yield Finding(
            "warning",
            "the database has the encoding SQL_ASCII: bytes that are not UTF-8 become \\xNN",
            "Create the database again with the encoding UTF8.",
        )
    if settings.streaming and catalog.version < _STREAMING:
        yield Finding(
            "note",
            "before PostgreSQL 14, large transactions come after their commit only",
        )


def _role(catalog: Catalog) -> Iterator[Finding]:
    name, is_super, can_replicate = catalog.rows(
        "SELECT rolname, rolsuper, rolreplication FROM pg_roles WHERE rolname = current_user",
        doing="can't read the role",
    )[0]
    if is_super or can_replicate:
        return
    hosted = catalog.value(
        "SELECT pg_has_role(current_user, oid, 'member') FROM pg_roles"
        " WHERE rolname = 'rds_replication'",
        doing="can't read the roles",
    )
    if not hosted:
        yield Finding(
            "error",
            f"the role {name} is not allowed to replicate",
            f"ALTER ROLE {_quoted(name)} REPLICATION;",
        )


def _slot(catalog: Catalog, capture: Capture, settings: Settings) -> Iterator[Finding]:
    existing = slot.find(catalog, settings.slot)
    if existing is not None:
        if existing.is_lost or existing.reason:
            yield Finding(
                "error",
                f"the server has invalidated the slot {settings.slot}, so changes are lost",
                f"tidemill source restart {capture.name} --resnapshot",
            )
        elif existing.is_active:
            yield Finding("note", f"the slot {settings.slot} is being read")
    else:
        used = catalog.value(
            "SELECT count(*) FROM pg_replication_slots", doing="can't read the replication slots"
        )
        limit = int(_setting(catalog, "max_replication_slots"))
        if used >= limit:
            yield Finding(
                "error",
                f"all {limit} replication slots are in use",
                f"ALTER SYSTEM SET max_replication_slots = {limit + 5}; {_RESTART}. "
                "Or drop one that is not needed: SELECT pg_drop_replication_slot('NAME');",
            )
    senders = catalog.value(
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'",
        doing="can't read the sessions",
    )
    most = int(_setting(catalog, "max_wal_senders"))
    if senders >= most and not (existing and existing.is_active):
        yield Finding(
            "error",
            f"all {most} WAL senders are in use",
            f"ALTER SYSTEM SET max_wal_senders = {most + 5}; {_RESTART}",
        )


def _publication(catalog: Catalog, capture: Capture, settings: Settings) -> Iterator[Finding]:
    name = settings.publication
    kinds = publication.published_kinds(catalog, name)
    if kinds is not None:
        if len(kinds) < _ALL_KINDS:
            yield Finding(
                "error",
                f"the publication {name} leaves out some kinds of changes (it has only: "
                f"{', '.join(kinds) or 'none'})",
                f"{publication.publish_all(name)} If the source has run: tidemill source restart "
                f"{capture.name} --resnapshot",
            )
        if publication.is_own(catalog, name, capture):
            yield from _not_owned(catalog, capture, name)
        else:
            yield from _unpublished(catalog, capture, name)
        return
    if slot.find(catalog, settings.slot) is not None:
        yield Finding(
            "error",
            f"the publication {name} does not exist any more, so changes are lost",
            f"tidemill source restart {capture.name} --resnapshot",
        )
    wanted = publication.wanted(catalog, capture)
    missing = [each for each in wanted if not _owns(catalog, each)]
    can_create = catalog.value(
        "SELECT has_database_privilege(current_database(), 'CREATE')",
        doing="can't read the privileges",
    )
    if missing or not can_create:
        statement = publication.create_statement(name, wanted, catalog.version)
        why = (
            f"the role does not own {missing[0].id}"
            if missing
            else "the role has no privilege CREATE on the database"
        )
        yield Finding(
            "error",
            f"the publication {name} does not exist, and {why}",
            statement.as_string(None) + ";",
        )


def _not_owned(catalog: Catalog, capture: Capture, name: str) -> Iterator[Finding]:
    here = {each.oid for each in catalog.published(name) or []}
    for each in publication.wanted(catalog, capture):
        if each.oid not in here and not _owns(catalog, each):
            yield Finding(
                "warning",
                f"the role does not own {each.id}, so it can't be added to the publication {name}, "
                "and is not captured",
                f"ALTER TABLE {_of(each)} OWNER TO {_quoted(catalog.connection.info.user)};",
            )


def _unpublished(catalog: Catalog, capture: Capture, name: str) -> Iterator[Finding]:
    here = {each.oid for each in catalog.published(name) or []}
    for each in publication.wanted(catalog, capture):
        if each.oid not in here:
            yield Finding(
                "note",
                f"the publication {name} does not have {each.id}, so it is not captured",
                f"ALTER PUBLICATION {_quoted(name)} ADD TABLE {_of(each)};",
            )


def _tables(catalog: Catalog, capture: Capture, settings: Settings) -> Iterator[Finding]:
    selected = publication.candidates(catalog, settings.publication, capture)
    if not selected:
        yield Finding("warning", "the patterns select no table", "Change include and exclude.")
    for each in selected:
        yield from _identity(each, capture)
        if each.leaves:
            yield from _partitions(catalog, each)
        readable = catalog.value(
            "SELECT has_table_privilege(%s::oid, 'SELECT') AND has_schema_privilege(%s, 'USAGE')",
            (each.oid, each.schema),
            doing="can't read the privileges",
        )
        if not readable and publication.is_usable(each, capture):
            yield Finding(
                "error",
                f"the role is not allowed to read {each.id}, which a snapshot needs",
                f"GRANT USAGE ON SCHEMA {_quoted(each.schema)} TO CURRENT_ROLE_NAME; "
                f"GRANT SELECT ON {_of(each)} TO CURRENT_ROLE_NAME;".replace(
                    "CURRENT_ROLE_NAME", _quoted(catalog.connection.info.user)
                ),
            )


def _identity(table: CatalogTable, capture: Capture) -> Iterator[Finding]:
    full = f"ALTER TABLE {_of(table)} REPLICA IDENTITY FULL;"
    if table.identity == "i" and not table.identity_index and not table.leaves:
        yield Finding(
            "error",
            f"{table.id} has REPLICA IDENTITY USING INDEX, and the index was dropped: its updates "
            "and deletes fail once it is published",
            f"ALTER TABLE {_of(table)} REPLICA IDENTITY DEFAULT;",
        )
        return
    if not table.key:
        if capture.keyless == "skip":
            yield Finding("note", f"{table.id} has no primary key and is skipped")
        elif capture.keyless == "refuse":
            yield Finding(
                "error",
                f"{table.id} has no primary key",
                f"ALTER TABLE {_of(table)} ADD PRIMARY KEY (...); or exclude it; or set "
                f'keyless = "all-columns" and run: {full}',
            )
        elif table.identity != "f":
            yield Finding(
                "error",
                f"{table.id} has no primary key, and its replica identity is not FULL",
                full,
            )
        return
    if table.leaves:  # theirs counts
        return
    if table.identity == "n":
        yield Finding(
            "error",
            f"{table.id} has REPLICA IDENTITY NOTHING: its updates and deletes can't be captured",
            f"ALTER TABLE {_of(table)} REPLICA IDENTITY DEFAULT;",
        )
    elif table.identity == "d" and table.is_deferrable:
        yield Finding(
            "error",
            f"{table.id} has a deferrable primary key, which is not a replica identity: its "
            "updates and deletes can't be captured",
            full,
        )
    elif table.identity == "d" and any(
        each.storage != "p" and each.name not in table.key for each in table.columns
    ):
        yield Finding(
            "note",
            f"{table.id} can have values out of line, which an update that leaves them alone does "
            "not deliver: they are read from the table, and can be newer than the change",
            full,
        )


def _partitions(catalog: Catalog, table: CatalogTable) -> Iterator[Finding]:
    """Find partitions whose changes are not in the stream, or would fail."""
    for schema, name, identity, kind, persistence in catalog.partitions(table.oid):
        quoted = f"{_quoted(schema)}.{_quoted(name)}"
        if identity in "ni" and not (table.identity == identity == "i"):
            yield Finding(
                "error",
                f"{schema}.{name}, a partition of {table.id}, has the REPLICA IDENTITY "
                f"{'NOTHING' if identity == 'n' else 'USING INDEX'}: its updates and deletes fail, "
                "or do not deliver the key",
                f"ALTER TABLE {quoted} REPLICA IDENTITY DEFAULT;",
            )
        elif identity == "d" and table.is_deferrable:
            yield Finding(
                "error",
                f"{schema}.{name}, a partition of {table.id}, has a deferrable primary key, which "
                "is not a replica identity: its updates and deletes can't be captured",
                f"ALTER TABLE {quoted} REPLICA IDENTITY FULL;",
            )
        if kind == "f" or persistence == "u":
            yield Finding(
                "warning",
                f"{schema}.{name}, a partition of {table.id}, is "
                f"{'a foreign table' if kind == 'f' else 'unlogged'}: its rows are read by "
                "snapshots, but its changes are not in the stream",
                "Detach it, or leave the table out.",
            )


def _owns(catalog: Catalog, table: CatalogTable) -> bool:
    return bool(
        catalog.value(
            "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = %s",
            (table.oid,),
            doing="can't read the owners",
        )
    )


def _of(table: CatalogTable) -> str:
    return f"{_quoted(table.schema)}.{_quoted(table.name)}"


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
