"""Creates and drops the publication, and decides which tables it should have.

A publication that we create lists its tables one by one. FOR ALL TABLES would make updates and
deletes fail in every table of the database that has no replica identity. An existing publication is
used as it is. Must not know: the replication stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog

from tidemill.connect.cdc.contract import NO_KEY, Capture
from tidemill.connect.cdc.errors import PositionLostError, SetupError
from tidemill.connect.cdc.postgres.catalog import Catalog, CatalogTable
from tidemill.connect.cdc.postgres.errors import translating

log = structlog.get_logger("tidemill.cdc")

_LOCK_TIMEOUT_MS = 1000
_KINDS = ("insert", "update", "delete", "truncate")
_ROWS = {"insert", "update", "delete"}
_ROOTS = 130000
"""The first version with ``publish_via_partition_root``."""


def is_usable(table: CatalogTable, capture: Capture) -> bool:
    """Return whether changes of a table can be captured: they need a key, or the whole old row.

    A table without either must not be published: its updates and deletes would fail.
    """
    if table.delivered == "f":
        return bool(table.key) or capture.keyless == "all-columns"
    return bool(table.key) and table.delivered in "di"


def fails_writes(table: CatalogTable) -> bool:
    """Return whether the server refuses updates and deletes of a table once it is published.

    That is so without a replica identity: a deferrable primary key is none.
    """
    identities = set(table.leaves or table.identity)
    if "d" in identities and (not table.primary or table.is_deferrable):
        return True
    return "n" in identities or (table.identity == "i" and not table.identity_index)


def wanted(catalog: Catalog, capture: Capture) -> list[CatalogTable]:
    """Return the tables that the patterns select and that can be published."""
    return [
        each
        for each in catalog.user_tables()
        if capture.selects(each.schema, each.name)
        and is_usable(each, capture)
        and not fails_writes(each)
    ]


def candidates(catalog: Catalog, name: str, capture: Capture) -> list[CatalogTable]:
    """Return the tables that the patterns select. Of a user's own publication, those it has."""
    published = catalog.published(name)
    here = {each.oid for each in published or []}
    is_theirs = published is not None and not is_own(catalog, name, capture)
    return [
        each
        for each in catalog.user_tables()
        if capture.selects(each.schema, each.name) and (each.oid in here or not is_theirs)
    ]


def left_out(catalog: Catalog, name: str, capture: Capture) -> dict[str, str]:
    """Return why tables that the patterns select are not captured, by their ids."""
    here = {each.oid for each in catalog.published(name) or []}
    return {
        each.id: _why_left_out(each, name, capture)
        for each in catalog.user_tables()
        if capture.selects(each.schema, each.name)
        and not (each.oid in here and is_usable(each, capture))
    }


def _why_left_out(table: CatalogTable, name: str, capture: Capture) -> str:
    if not table.key and capture.keyless != "all-columns":
        return NO_KEY
    if fails_writes(table) or not is_usable(table, capture):
        return "it has no replica identity, so its updates and deletes would fail"
    return f"the publication {name} does not have it"


def comment(capture: Capture) -> str:
    """Return the comment that marks a publication as ours."""
    return f"tidemill source {capture.name}"


def is_own(catalog: Catalog, name: str, capture: Capture) -> bool:
    """Return whether we have created a publication for this source."""
    found = catalog.value(
        "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s",
        (name,),
        doing="can't read the publications",
    )
    return bool(found == comment(capture))


def verify(catalog: Catalog, name: str, capture: Capture) -> None:
    """Check that a publication has been there, with all kinds of changes, since a position.

    Raises:
        PositionLostError: the stream can't have all changes.
    """
    kinds = published_kinds(catalog, name)
    if kinds is None:
        raise PositionLostError(
            f"the publication {name} does not exist any more, so changes are lost",
            hint="Run: tidemill source restart NAME --resnapshot.",
        )
    if set(kinds) >= _ROWS:
        return
    statement = "" if is_own(catalog, name, capture) else f"{publish_all(name)} "
    raise PositionLostError(
        f"{_leaves_out(name, kinds)}, so changes are lost",
        hint=f"Run: {statement}tidemill source restart NAME --resnapshot.",
    )


def complete(catalog: Catalog, name: str, capture: Capture) -> None:
    """Let a publication publish all kinds of changes, for a source that starts from now.

    Raises:
        SetupError: it is the user's own, and leaves out some.
    """
    kinds = published_kinds(catalog, name) or []
    if len(kinds) == len(_KINDS):
        return
    if is_own(catalog, name, capture):
        with translating(f"can't change the publication {name}"):
            catalog.connection.execute(publish_all(name))
    elif not set(kinds) >= _ROWS:
        raise SetupError(_leaves_out(name, kinds), hint=publish_all(name))


def _leaves_out(name: str, kinds: Sequence[str]) -> str:
    listed = ", ".join(kinds) or "none"
    return f"the publication {name} leaves out some kinds of changes (it has only: {listed})"


def published_kinds(catalog: Catalog, name: str) -> list[str] | None:
    """Return the kinds of changes that a publication publishes; None if it does not exist."""
    found = catalog.rows(
        "SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication"
        " WHERE pubname = %s",
        (name,),
        doing="can't read the publications",
    )
    if not found:
        return None
    return [kind for kind, is_published in zip(_KINDS, found[0], strict=True) if is_published]


def publish_all(name: str) -> str:
    """Return the statement that lets a publication publish all kinds of changes."""
    doubled = name.replace('"', '""')
    return f"ALTER PUBLICATION \"{doubled}\" SET (publish = '{', '.join(_KINDS)}');"


def reconcile(catalog: Catalog, name: str, capture: Capture) -> bool:
    """Create the publication, or add tables to one that we created, and remove what breaks writes.

    A table is added under a lock that waits for its writers: a transaction that has written to it
    before, and commits after, would be missing in the stream and in a snapshot. If the lock is not
    free soon, or the role does not own the table, it is added later, and stops no other.

    Returns:
        Whether the publication is as it should be: no table is left for later.
    """
    published = catalog.published(name)
    if published is None:
        _create(catalog, name, capture)
        return True
    if not is_own(catalog, name, capture):
        return True
    protect(catalog, name)
    here = {each.oid for each in published}
    # No table is left out because one before it was locked.
    added = [_add(catalog, name, each) for each in wanted(catalog, capture) if each.oid not in here]
    return all(added)


def protect(catalog: Catalog, name: str) -> None:
    """Let a publication that we created have all kinds of changes, and no table that breaks writes.

    Updates and deletes of a table without a replica identity fail while it is published.
    """
    for each in catalog.tables_by_oid(catalog.failing(name)):
        _remove(catalog, name, each)


def _remove(catalog: Catalog, name: str, table: CatalogTable) -> None:
    import psycopg

    connection = catalog.connection
    with translating(f"can't remove {table.id} from the publication {name}"):
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}")
                connection.execute(_statement("ALTER PUBLICATION {} DROP TABLE {}", name, [table]))
        except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
            return
        except psycopg.errors.UndefinedObject:  # another worker was faster
            return
    log.warning(
        "source.table_left_out",
        table=table.id,
        publication=name,
        why="it has no replica identity, so its updates and deletes would fail",
        hint="tidemill source check names the statement that gives it one",
    )


def _add(catalog: Catalog, name: str, table: CatalogTable) -> bool:
    import psycopg

    connection = catalog.connection
    with translating(f"can't add {table.id} to the publication {name}"):
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}")
                connection.execute(_statement("LOCK TABLE {1} IN SHARE MODE", name, [table]))
                connection.execute(_statement("ALTER PUBLICATION {} ADD TABLE {}", name, [table]))
        except (
            psycopg.errors.LockNotAvailable,
            psycopg.errors.UndefinedTable,
            psycopg.errors.InsufficientPrivilege,  # of a table that another role has made
        ):
            return False
    return True


def create_statement(name: str, tables: Sequence[CatalogTable], version: int) -> Any:
    """Return the statement that creates the publication."""
    roots = " WITH (publish_via_partition_root = true)" if version >= _ROOTS else ""
    if not tables:
        return _statement("CREATE PUBLICATION {}" + roots, name, [])
    return _statement("CREATE PUBLICATION {} FOR TABLE {}" + roots, name, tables)


def drop(catalog: Catalog, name: str, capture: Capture) -> None:
    """Drop the publication if we have created it."""
    if is_own(catalog, name, capture):
        _execute(
            catalog,
            _statement("DROP PUBLICATION IF EXISTS {}", name, []),
            f"can't drop the publication {name}",
        )


def _create(catalog: Catalog, name: str, capture: Capture) -> None:
    from psycopg import sql

    tables = wanted(catalog, capture)
    doing = f"can't create the publication {name}"
    statement = create_statement(name, tables, catalog.version)
    try:
        _execute(catalog, statement, doing)
    except SetupError as fault:
        text = statement.as_string(None)
        raise SetupError(
            str(fault), hint=f"A superuser, or the owner of the tables, can run: {text};"
        ) from None
    note = sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(
        sql.Identifier(name), sql.Literal(comment(capture))
    )
    _execute(catalog, note, doing)


def _statement(text: str, name: str, tables: Sequence[CatalogTable]) -> Any:
    from psycopg import sql

    listed = sql.SQL(", ").join(
        sql.SQL("" if each.is_partitioned else "ONLY ") + sql.Identifier(each.schema, each.name)
        for each in tables
    )
    return sql.SQL(text).format(sql.Identifier(name), listed)


def _execute(catalog: Catalog, statement: Any, doing: str) -> None:
    with translating(doing):
        catalog.connection.execute(statement)
