"""The captured tables: what the publication and the patterns select, and how to read them.

Must not know: the stream, Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tidemill.connect.cdc.contract import Capture, Row, Table
from tidemill.connect.cdc.errors import SetupError
from tidemill.connect.cdc.postgres import publication
from tidemill.connect.cdc.postgres.catalog import (
    Catalog,
    CatalogTable,
    Published,
    captured_part,
    described,
)
from tidemill.connect.cdc.postgres.decoding.messages import Relation
from tidemill.connect.cdc.postgres.errors import translating
from tidemill.connect.cdc.postgres.reading.chunks import Reader


class Tables:
    """The tables of one source.

    Args:
        catalog: Returns the catalog: its connection can be replaced.
        capture: The patterns.
        name: The name of the publication.
    """

    def __init__(self, catalog: Callable[[], Catalog], capture: Capture, name: str) -> None:
        self._catalog = catalog
        self._capture = capture
        self._name = name
        self._published: dict[int, Published] | None = None

    def selects(self, relation: Relation | CatalogTable) -> bool:
        """Return whether changes of a table are delivered."""
        return self._capture.selects(relation.schema, relation.name)

    def refresh(self) -> None:
        """Read the publication again before the next use."""
        self._published = None

    def in_catalog(self, only: Collection[int] | None = None) -> list[CatalogTable]:
        """Return the captured tables as the catalog has them, with the columns to capture.

        Args:
            only: OIDs of the tables to look at; None: all.
        """
        catalog = self._catalog()
        if only is None:
            published = catalog.published(self._name)
            if published is None:
                return [
                    captured_part(each, None) for each in publication.wanted(catalog, self._capture)
                ]
            self._published = {each.oid: each for each in published}
        here = self._published or {}
        oids = here.keys() if only is None else here.keys() & only
        return [
            captured_part(each, here[each.oid])
            for each in catalog.tables_by_oid(list(oids))
            if self.selects(each) and publication.is_usable(each, self._capture)
        ]

    def captured(self) -> list[Table]:
        """Return the captured tables. Before the publication exists, those that it will have."""
        catalog = self._catalog()
        database = catalog.connection.info.dbname
        return [described(each, database, catalog.types) for each in self.in_catalog()]

    def find(self, schema: str, name: str) -> Table | None:
        """Return a captured table as it is now, or None if it is not there or not published."""
        catalog = self._catalog()
        found = catalog.table(schema, name)
        if found is None or not self.selects(found):
            return None
        self.refresh()  # a publication names each column, also new ones
        published = self._part_of(found)
        if published is None:
            return None
        part = captured_part(found, published)
        return described(part, catalog.connection.info.dbname, catalog.types)

    def part(self, found: CatalogTable) -> CatalogTable:
        """Return a table with the columns that the publication had when it was last read."""
        return captured_part(found, self._part_of(found))

    def published(self) -> set[tuple[int, str]]:
        """Return the OIDs of the published tables, and their memberships."""
        if self._published is None:
            published = self._catalog().published(self._name) or []
            self._published = {each.oid: each for each in published}
        return {(each.oid, each.membership) for each in self._published.values()}

    def _part_of(self, found: CatalogTable) -> Published | None:
        """Return what the publication publishes of a table; None if it does not have it."""
        self.published()
        return (self._published or {}).get(found.oid)

    def refuse_keyless(self) -> None:
        """Raise SetupError if a table without a key is selected, and the definition refuses it."""
        if self._capture.keyless != "refuse":
            return
        catalog = self._catalog()
        for each in publication.candidates(catalog, self._name, self._capture):
            if not each.key:
                raise SetupError(
                    f"table {each.id} has no primary key",
                    hint=f'Add one, exclude the table, or set keyless = "all-columns" and run: '
                    f"ALTER TABLE {each.id} REPLICA IDENTITY FULL;",
                )

    def reader(self, connection: Any, table: Table) -> Reader | None:
        """Return a reader of a table as it is now; None if it does not exist any more.

        Columns that do not exist any more are left out.
        """
        catalog = self._catalog()
        found = catalog.table(table.schema, table.name)
        if found is None:
            return None
        here = {each.name for each in found.columns}
        columns = tuple(each for each in table.columns if each.name in here)
        if not set(table.key) <= here:
            return None
        left = Table(table.database, table.schema, table.name, columns, table.key)
        return Reader(connection, found, left, self._part_of(found), catalog.types)

    def by_keys(
        self, connection: Any
    ) -> Callable[[Table, Sequence[Sequence[Any]], Sequence[str]], list[Row]]:
        """Return a function that reads rows by their keys, within the open transaction.

        It raises AlteredError if the table was altered so that it can't. The transaction continues.
        """

        def read(table: Table, keys: Sequence[Sequence[Any]], columns: Sequence[str]) -> list[Row]:
            reader = self.reader(connection, table)
            if reader is None:
                return []
            left = {name for name, *_ in reader.columns}.intersection(columns)
            with translating(f"can't read {table.id}"), connection.transaction():
                return reader.by_keys(keys, sorted(left))

        return read

    def estimate(self, table: Table) -> int:
        """Return the planner's estimate of the number of rows, which needs no ANALYZE."""
        from psycopg import sql

        catalog = self._catalog()
        query = sql.SQL("EXPLAIN (FORMAT JSON) SELECT FROM {}").format(
            sql.Identifier(table.schema, table.name)
        )
        plan = catalog.value(query, doing=f"can't estimate the rows of {table.id}")
        return int(plan[0]["Plan"]["Plan Rows"])
