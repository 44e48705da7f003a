"""Move a projection along a store: rows and position in one transaction.

A projection whose version differs from that of its tables is built again beside them, and shown
when it has caught up. Must not know: a database by name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

from tidemill.eventstore.app.codec import Codec
from tidemill.eventstore.app.errors import (
    DeclarationError,
    ProjectionAheadError,
    ProjectionFailedError,
    ProjectionFencedError,
)
from tidemill.eventstore.app.handlers import handlers, taking
from tidemill.eventstore.app.projections.contract import (
    POSITIONS,
    Database,
    GenerationRows,
    Progress,
    Projection,
    Statements,
    check,
    table_name,
)
from tidemill.eventstore.events import Events, Query, StoredEvent, some

BATCH = 500
"""The most events of one transaction."""
_log = logging.getLogger("tidemill.eventstore")

_CREATE = f"""CREATE TABLE IF NOT EXISTS {POSITIONS} (
    name TEXT NOT NULL, generation BIGINT NOT NULL, version BIGINT NOT NULL,
    position BIGINT NOT NULL, live BIGINT NOT NULL, tables TEXT NOT NULL,
    PRIMARY KEY (name, generation))"""


class ProjectionRunner:
    """Runs one projection over one store. One thread uses it.

    Several processes can run the same one: the database lets one move it at a time, and each event
    is in the tables once.

    Args:
        store: where the events are.
        codec: their classes.
        projection: what they become (``Projection``).
        database: where the rows are.
        category: only events of these streams; by default of all.
    """

    def __init__(
        self,
        store: Events,
        codec: Codec,
        projection: Projection,
        database: Database,
        *,
        category: str | None = None,
    ) -> None:
        check(projection)
        self._store = store
        self._codec = codec
        self._projection = projection
        self._database = database
        self._category = category
        self._handlers = {
            event: taking(method) for event, method in handlers(type(projection), "on_").items()
        }
        self._queries = (Query(types=codec.names(self._handlers)),)
        with database.transaction() as db:
            db.lock(POSITIONS)
            db.run(_CREATE)

    # --- what users call -------------------------------------------------------------------------

    def catch_up(self) -> int:
        """Bring the tables up to the end that the log has now. Return the position.

        If the version of the code differs from that of the tables, they are built again.

        Raises:
            ProjectionFailedError: an event can't be handled.
            ProjectionAheadError: the tables have seen more events than the store has.
        """
        return self._move(is_rebuild=False)

    def _move(self, *, is_rebuild: bool) -> int:
        while True:
            try:
                return self._catch_up(is_rebuild=is_rebuild)
            except ProjectionFencedError:
                _log.info("projection %s was moved by another runner", self._projection.name)

    def run(self, stop: Callable[[], bool] | threading.Event, *, wait_s: float = 0.25) -> None:
        """Follow the store until ``stop`` says so.

        Args:
            wait_s: how long a stop can take, and how often the position moves without events.
        """
        stopped = stop.is_set if isinstance(stop, threading.Event) else stop
        while not stopped():
            position = self.catch_up()
            followed = self._store.follow(
                after=position, queries=self._queries, category=self._category, wait_s=wait_s
            )
            next(followed, None)

    def rebuild(self) -> int:
        """Fill new tables beside the live ones from the first event on, then show these.

        Return the position. The live tables can be read and moved meanwhile.
        """
        with self._database.transaction() as db:
            db.lock(self._projection.name)
            for each in self._progress(db):
                if not each.is_live:
                    self._drop(db, each)
            self._create(db)
        return self._move(is_rebuild=True)

    def progress(self) -> list[Progress]:
        """Return the generations that exist: the live one and one that is being built."""
        with self._database.transaction() as db:
            return self._progress(db)

    # --- generations -----------------------------------------------------------------------------

    def _catch_up(self, *, is_rebuild: bool) -> int:
        generation = self._generation(is_rebuild=is_rebuild)
        # In this order: another runner, whose store has read more, can have moved it.
        for _ in self._store.read_all(limit=1, backwards=True, fresh=True):
            pass
        end = self._store.position()
        if generation.position > end:
            raise ProjectionAheadError(
                f"projection {self._projection.name!r} is at position {generation.position}, the "
                f"store at {end}",
                hint="The store was restored or replaced: build the projection again (rebuild).",
            )
        position = generation.position
        for batch in self._batches(position, end):
            position = self._apply(generation.generation, position, batch, batch[-1].position)
        if position < end:
            position = self._apply(generation.generation, position, [], end)
        if not generation.is_live:
            self._show(generation.generation, position)
        return position

    def _batches(self, after: int, end: int) -> Iterator[list[StoredEvent]]:
        events = self._store.read_all(
            after=after, to=end, queries=self._queries, category=self._category
        )
        while batch := some(events, BATCH):
            yield batch

    def _generation(self, *, is_rebuild: bool) -> Progress:
        """Return the generation to move: with a rebuild the one that is built, else the live one.

        Raises:
            ProjectionAheadError: a newer version of the code has taken over.
        """
        name, version = self._projection.name, self._projection.version
        with self._database.transaction() as db:
            db.lock(name)
            found = self._progress(db)
            live = next((each for each in found if each.is_live), None)
            building = next((each for each in found if not each.is_live), None)
            if live is not None and live.version > version:
                raise ProjectionAheadError(
                    f"projection {name!r} has tables of version {live.version}, this code is "
                    f"version {version}",
                    hint="Update this program.",
                )
            if live is not None and live.version == version and not (is_rebuild and building):
                return live
            if building is not None and building.version >= version:
                if building.version == version:
                    return building
                # A newer program builds its tables; this one has nothing left to do.
                raise ProjectionAheadError(
                    f"version {building.version} of projection {name!r} is being built, this "
                    f"code is version {version}",
                    hint="Update this program.",
                )
            if building is not None:
                self._drop(db, building)
            return self._create(db)

    def _create(self, db: Statements) -> Progress:
        name, version = self._projection.name, self._projection.version
        found = self._progress(db)
        generation = 1 + max((each.generation for each in found), default=0)
        tables = self._projection.tables
        self._check_others(db)
        for table, columns in tables.items():
            db.run(f"CREATE TABLE {table_name(table, generation)} ({columns})")
        row = (name, generation, version, " ".join(tables))
        db.run(f"INSERT INTO {POSITIONS} VALUES (?, ?, ?, 0, 0, ?)", row)
        return Progress(generation, version, 0, is_live=False, tables=tuple(tables))

    def _check_others(self, db: Statements) -> None:
        """Check that no table is another projection's: its view would be replaced.

        Raises:
            DeclarationError: one is.
        """
        others = db.run(
            f"SELECT name, tables FROM {POSITIONS} WHERE name <> ?", (self._projection.name,)
        )
        for name, tables in others:
            if common := set(tables.split()) & set(self._projection.tables):
                raise DeclarationError(
                    f"table {common.pop()!r} is that of projection {name!r}",
                    hint="Give the tables of a database names of their own.",
                )

    def _show(self, generation: int, position: int) -> None:
        """Let the views show a generation, and drop the one before."""
        name = self._projection.name
        with self._database.transaction() as db:
            db.lock(name)
            found = {each.generation: each for each in self._progress(db)}
            if generation not in found or found[generation].position != position:
                raise ProjectionFencedError(f"projection {name!r} was moved by another runner")
            before = [each for each in found.values() if each.generation < generation]
            for table in {table for each in before if each.is_live for table in each.tables}:
                db.run(f"DROP VIEW {table}")
            for table in self._projection.tables:
                db.run(f"CREATE VIEW {table} AS SELECT * FROM {table_name(table, generation)}")
            for each in before:
                self._drop(db, each)
            db.run(
                f"UPDATE {POSITIONS} SET live = 1 WHERE name = ? AND generation = ?",
                (name, generation),
            )
        _log.info("projection %s: generation %d is live", name, generation)

    def _drop(self, db: Statements, progress: Progress) -> None:
        for table in progress.tables:
            db.run(f"DROP TABLE {table_name(table, progress.generation)}")
        db.run(
            f"DELETE FROM {POSITIONS} WHERE name = ? AND generation = ?",
            (self._projection.name, progress.generation),
        )

    def _progress(self, db: Statements) -> list[Progress]:
        rows = db.run(
            f"SELECT generation, version, position, live, tables FROM {POSITIONS} WHERE name = ?"
            " ORDER BY generation",
            (self._projection.name,),
        )
        return [
            Progress(generation, version, position, bool(live), tuple(tables.split()))
            for generation, version, position, live, tables in rows
        ]

    # --- events ----------------------------------------------------------------------------------

    def _apply(self, generation: int, before: int, batch: list[StoredEvent], after: int) -> int:
        """Store the rows of a batch with its position, if no other runner was faster."""
        name = self._projection.name
        with self._database.transaction() as db:
            db.lock(name)
            moved = db.run(
                f"UPDATE {POSITIONS} SET position = ? WHERE name = ? AND generation = ?"
                " AND version = ? AND position = ? RETURNING position",
                (after, name, generation, self._projection.version, before),
            )
            if not moved:
                raise ProjectionFencedError(f"projection {name!r} was moved by another runner")
            rows = GenerationRows(db, self._projection.tables, generation)
            for stored in batch:
                self._handle(stored, rows)
        return after

    def _handle(self, stored: StoredEvent, rows: GenerationRows) -> None:
        try:
            event = self._codec.decode(stored)
            self._handlers[type(event)](self._projection, event, stored, rows)
        except Exception as error:
            raise ProjectionFailedError(
                f"projection {self._projection.name!r} can't handle {stored.type!r} at position "
                f"{stored.position}: {error!r}",
                hint="Correct the projection, raise its version, and run it again.",
            ) from error
