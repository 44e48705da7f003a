"""Statements that are ended from another thread, at each moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import duckdb
import pytest

from tests.interop.common import wait_for
from tidemill.sql.errors import QueryEndedError
from tidemill.sql.running import Running

ENDLESS = "SELECT count(*) FROM range(100000000) a, range(100000000) b"


@pytest.fixture
def running() -> Iterator[Running]:
    found = Running(duckdb.connect(), None)
    yield found
    found.close()


def execute(running: Running, statement: str, before: Callable[[], object]) -> None:
    """Execute a statement after something has happened."""
    with running.guarded():
        before()
        running.database.execute(statement)


def test_a_statement_is_cancelled_just_before_duckdb_executes_it(running: Running) -> None:
    with pytest.raises(QueryEndedError):
        execute(running, ENDLESS, running.cancel)
    with pytest.raises(QueryEndedError):
        execute(running, "SELECT 1", lambda: None)


def test_a_time_limit_that_passes_before_duckdb_executes_ends_the_statement() -> None:
    running = Running(duckdb.connect(), 0.01)
    with pytest.raises(QueryEndedError):
        execute(running, ENDLESS, running.cancelled.wait)
    running.close()


def test_a_statement_can_be_closed_while_another_thread_fetches_its_rows(running: Running) -> None:
    errors: list[Exception] = []
    running.prepare(ENDLESS, [])

    def fetch() -> None:
        try:
            with running.guarded():
                running.rows.fetchall()
        except QueryEndedError as error:
            errors.append(error)

    fetching = threading.Thread(target=fetch, daemon=True)
    fetching.start()
    wait_for(lambda: running._has_begun, "it runs")
    running.close()
    fetching.join(60)
    assert len(errors) == 1
    with pytest.raises(duckdb.ConnectionException):
        running.database.execute("SELECT 1")
