"""Tests of projections that hold in each database. Each database's test subclasses it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.eventstore.app.bank import Balances, Bank, Deposited, Opened, Withdrawn
from tests.eventstore.app.bank import events as codec
from tidemill.eventstore.app import ProjectionRunner, Rows
from tidemill.eventstore.app.errors import (
    DeclarationError,
    ProjectionAheadError,
    ProjectionFailedError,
)
from tidemill.eventstore.app.projections.contract import Database
from tidemill.eventstore.memory_store import MemoryStore


class Failing(Balances):
    """Fails at an amount, behind the rows of events before."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_moved(self, event: Deposited | Withdrawn, stored: Any, db: Rows) -> None:
        super().on_moved(event, stored, db)
        if event.cents == self.at:
            raise ValueError("it can't be 13")


class Doubled(Balances):
    """The next version of the code."""

    version = 2

    def on_moved(self, event: Deposited | Withdrawn, stored: Any, db: Rows) -> None:
        super().on_moved(Deposited(event.cents * 2), stored, db)


class ProjectionContract:
    """Tests of projections in a database."""

    @pytest.fixture
    def connect(self) -> Callable[[], Database]:
        """Return a function that opens the same, empty database again and again."""
        raise NotImplementedError

    @pytest.fixture
    def bank(self) -> Bank:
        return Bank.over(MemoryStore())

    def runner(
        self, bank: Bank, database: Database, projection: Balances | None = None
    ) -> ProjectionRunner:
        return ProjectionRunner(bank.store, codec, projection or Balances(), database)

    def rows(self, database: Database) -> list[tuple[Any, ...]]:
        with database.transaction() as db:
            return db.run("SELECT account, cents, moves FROM balance ORDER BY account")

    def expected(self, bank: Bank, *accounts: str) -> list[tuple[Any, ...]]:
        loaded = {name: bank.accounts.load(name).state for name in accounts}
        return [(f"account-{name}", it.cents, len(it.history)) for name, it in loaded.items()]

    def test_rows_and_position_move_together(
        self, connect: Callable[[], Database], bank: Bank
    ) -> None:
        database = connect()
        runner = self.runner(bank, database)
        assert runner.catch_up() == 0
        assert self.rows(database) == []
        for cents in (1, 2, 3):
            bank.fund("ada", cents)
            bank.fund("eve", cents)
        assert runner.catch_up() == bank.store.position()
        assert self.rows(database) == self.expected(bank, "ada", "eve")
        # Nothing is counted twice, by another runner neither.
        runner.catch_up()
        self.runner(bank, database).catch_up()
        assert self.rows(database) == self.expected(bank, "ada", "eve")
        database.close()

    def test_an_event_that_fails_leaves_nothing_of_its_batch(
        self, connect: Callable[[], Database], bank: Bank
    ) -> None:
        database = connect()
        runner = self.runner(bank, database, Failing(at=13))
        bank.fund("ada", 1)
        before = runner.catch_up()
        for cents in (7, 13, 8):
            bank.fund("ada", cents)
        for _ in range(2):
            with pytest.raises(ProjectionFailedError, match=r"position 4: .*can't be 13"):
                runner.catch_up()
        assert [each.position for each in runner.progress()] == [before]
        assert self.rows(database) == [("account-ada", 1, 1)]
        self.runner(bank, database).catch_up()
        assert self.rows(database) == self.expected(bank, "ada")
        database.close()

    def test_a_rebuild_is_shown_when_it_is_complete(
        self, connect: Callable[[], Database], bank: Bank
    ) -> None:
        database = connect()
        bank.fund("ada", 5)
        runner = self.runner(bank, database)
        runner.catch_up()
        with database.transaction() as db:
            db.run("UPDATE balance__g1 SET cents = 999")
        assert self.rows(database) == [("account-ada", 999, 1)]
        bank.fund("ada", 6)
        assert runner.rebuild() == bank.store.position()
        assert self.rows(database) == self.expected(bank, "ada")
        (live,) = runner.progress()
        assert (live.generation, live.is_live) == (2, True)
        bank.fund("ada", 7)
        runner.catch_up()
        assert self.rows(database) == self.expected(bank, "ada")
        database.close()

    def test_another_version_of_the_code_builds_its_tables_beside_the_live_ones(
        self, connect: Callable[[], Database], bank: Bank
    ) -> None:
        database = connect()
        bank.fund("ada", 5)
        old = self.runner(bank, database)
        old.catch_up()
        failing: Any = Failing(at=5)
        failing.version = 2
        with pytest.raises(ProjectionFailedError):
            self.runner(bank, database, failing).catch_up()
        # The live tables are still there.
        assert self.rows(database) == [("account-ada", 5, 1)]
        bank.fund("ada", 1)
        old.catch_up()
        assert self.rows(database) == [("account-ada", 6, 2)]
        new = self.runner(bank, database, Doubled())
        new.catch_up()
        assert self.rows(database) == [("account-ada", 12, 2)]
        with pytest.raises(ProjectionAheadError, match="version 2"):
            old.catch_up()
        (only,) = new.progress()
        assert (only.version, only.is_live) == (2, True)
        database.close()

    def test_another_version_can_have_other_tables(
        self, connect: Callable[[], Database], bank: Bank
    ) -> None:
        database = connect()
        bank.fund("ada", 5)
        self.runner(bank, database).catch_up()
        other: Any = Doubled()
        other.tables = {"balance": Balances.tables["balance"], "more": "a TEXT"}
        self.runner(bank, database, other).catch_up()
        assert self.rows(database) == [("account-ada", 10, 1)]
        without: Any = Doubled()
        without.version = 3
        self.runner(bank, database, without).catch_up()
        with pytest.raises(Exception, match="more"), database.transaction() as db:
            db.run("SELECT * FROM more")
        database.close()

    def test_a_table_of_another_projection_is_not_taken(
        self, connect: Callable[[], Database], bank: Bank
    ) -> None:
        database = connect()
        bank.fund("ada", 5)
        self.runner(bank, database).catch_up()
        other: Any = Balances()
        other.name = "other"
        with pytest.raises(DeclarationError, match="that of projection 'balances'"):
            self.runner(bank, database, other).catch_up()
        assert self.rows(database) == [("account-ada", 5, 1)]
        database.close()

    def test_a_store_that_lost_events_is_noticed(
        self, connect: Callable[[], Database], bank: Bank
    ) -> None:
        database = connect()
        bank.fund("ada", 5)
        self.runner(bank, database).catch_up()
        with pytest.raises(ProjectionAheadError, match="position 2, the store at 0"):
            self.runner(Bank.over(MemoryStore()), database).catch_up()
        database.close()

    def test_runners_and_a_rebuild_at_the_same_time_agree_with_the_events(
        self, connect: Callable[[], Database], bank: Bank
    ) -> None:
        names = ["ada", "bob", "eve"]
        stop = threading.Event()
        failures: list[BaseException] = []

        def run(rebuilds: int) -> None:
            try:
                database = connect()
                runner = self.runner(bank, database)
                if rebuilds:
                    for _ in range(rebuilds):
                        runner.rebuild()
                else:
                    runner.run(stop, wait_s=0.01)
                database.close()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(count,)) for count in self.runners]
        chance = random.Random(1)
        bank.fund("ada", 1)
        with_tables = connect()
        self.runner(bank, with_tables).catch_up()
        with_tables.close()
        for thread in threads:
            thread.start()
        for _ in range(100):
            bank.fund(chance.choice(names), chance.randint(1, 9))
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == [], failures
        database = connect()
        self.runner(bank, database).catch_up()
        assert self.rows(database) == self.expected(bank, *names)
        database.close()

    runners: tuple[int, ...] = (0, 0, 3)
    """Threads: how often each builds the projection again; with 0 it follows the store."""

    def test_names_and_tables_are_checked(
        self, connect: Callable[[], Database], bank: Bank
    ) -> None:
        class Unknown(Balances):
            def on_moved(self, event: Opened, stored: Any, db: Rows) -> None:  # type: ignore[override]
                db.execute("DELETE FROM {accounts}")

        database = connect()
        for wrong in ("", "A", "x" * 42, "a; DROP TABLE b", "1a"):
            projection: Any = Balances()
            projection.tables = {wrong: "a TEXT"}
            with pytest.raises(DeclarationError):
                self.runner(bank, database, projection)
        empty: Any = Balances()
        empty.tables = {}
        with pytest.raises(DeclarationError, match="no tables"):
            self.runner(bank, database, empty)
        bank.fund("ada", 0)
        with pytest.raises(ProjectionFailedError, match=r"unknown table \{accounts\}"):
            self.runner(bank, database, Unknown()).catch_up()
        database.close()
