"""The table of recovery in ``docs/operations.md``, and what its tests share.

Each row of the table is a test: it brings the state about, compares what the source prints with the
row, runs the row's command, and compares the topic with the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.connect.conftest import RunningWorker, records_of, table_of
from tests.support.topics import write
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import read_table
from tidemill.connect.cdc.contract import Finding
from tidemill.connect.cdc.definition import Definition
from tidemill.connect.cdc.registry import source_class
from tidemill.connect.cdc.state import KEY
from tidemill.connect.cdc.topics import state_topic
from tidemill.errors import TidemillError

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
NOTHING = "nothing"


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        printed: parts of what the source prints, with "…" for what differs; or ``nothing``.
        command: what recovers; or ``nothing``.
    """

    printed: str
    command: str


def rows_of(section: str) -> dict[str, Row]:
    """Return the rows of a section of the page, by their states."""
    text = PAGE.read_text().partition(f"\n### {section}\n")[2].partition("\n## ")[0]
    text = text.partition("\n### ")[0]
    found = {}
    for line in text.splitlines():
        cells = [each.strip().replace("\\|", "|") for each in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and cells[0] not in ("State", "---"):
            state, printed, command = cells
            found[state] = Row(printed.strip('`"'), command.strip("`"))
    assert found, f"no table of {section}"
    return found


def assert_rows_are_tested(section: str, states: Collection[str]) -> None:
    """Check that the table of a section and its tests have the same states."""
    assert set(rows_of(section)) == set(states)


def says(text: str, wanted: str) -> bool:
    """Return whether a text has the parts of what is wanted, in their order."""
    at = 0
    for part in filter(None, (each.strip() for each in wanted.split("…"))):
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return True


@dataclass
class Recovery:
    """One source, with a table ``a`` that has the columns ``id`` and ``v``.

    Attributes:
        topic: the topic of the table.
        run: runs a statement in the database.
        select: returns the rows of the table, by their ids.
        row: the row of the page.
    """

    kafka: Kafka
    definition: Definition
    topic: str
    run: Callable[[str], object]
    select: Callable[[], dict[int, str]]
    row: Row

    def start(self) -> RunningWorker:
        """Return a worker of the source that is not started."""
        return RunningWorker(self.definition, self.kafka)

    def captured(self) -> None:
        """Make the table, and capture it until the snapshot is in the topic."""
        self.run("CREATE TABLE a (id INTEGER NOT NULL PRIMARY KEY, v VARCHAR(100))")
        self.run("INSERT INTO a VALUES (1, 'one'), (2, 'two'), (3, 'three')")
        with self.start() as running:
            running.wait_for_snapshots()
            running.wait(self.is_equal, "the topic has the rows")

    def change(self) -> None:
        """Change each kind of row, while no worker runs."""
        self.run("UPDATE a SET v = 'changed' WHERE id = 1")
        self.run("DELETE FROM a WHERE id = 2")
        self.run("INSERT INTO a VALUES (4, 'four')")

    def is_equal(self) -> bool:
        """Return whether the topic has the rows of the table."""
        rows = table_of(records_of(self.kafka, self.topic)).values()
        return {each["id"]: each["v"] for each in rows} == self.select()

    def fails(self, running: RunningWorker | None = None) -> TidemillError:
        """Run a worker to its error, and compare it with the row."""
        if running is None:
            with self.start() as running:
                running.wait_for_end()
        running.wait_for_end()
        error = running.error
        assert isinstance(error, TidemillError), error
        assert says(str(error), self.row.printed), str(error)
        if self.row.command != NOTHING:
            assert says(self._named(error.hint), self._named(self.row.command)), error.hint
        return error

    def finds(self) -> Finding:
        """Return the error that ``check`` finds, which is that of the row."""
        source = source_class(self.definition.kind)(self.definition.capture())
        try:
            found = source.check()
        finally:
            source.close()
        errors = [each for each in found if each.severity == "error"]
        assert any(says(each.text, self.row.printed) for each in errors), found
        (one,) = (each for each in errors if says(each.text, self.row.printed))
        assert says(self._named(one.fix), self._named(self.row.command)), one.fix
        return one

    def recovers(self, statement: str = "") -> None:
        """Run the command of the row, and wait until the topic has the rows of the table.

        Args:
            statement: what the source or ``check`` has printed, for a statement of the database.
        """
        command = self.row.command
        running = self.start()
        if "tidemill source restart" in command:
            if "--resnapshot" in command:
                running.orders.again = "again"
        elif command != NOTHING:
            self.run(statement)
        with running:
            running.wait_for_snapshots()
            running.wait(self.is_equal, "the topic has the rows of the table")
            self.run("INSERT INTO a VALUES (9, 'last')")
            running.wait(self.is_equal, "the topic follows")

    def _named(self, text: str) -> str:
        return text.replace(f" {self.definition.name} ", " NAME ")


def state_of(kafka: Kafka, definition: Definition) -> Any:
    """Return the stored state of a source."""
    found = read_table(kafka, "tests", state_topic(definition.name))
    return json.loads(found[KEY])


def store_state(kafka: Kafka, definition: Definition, state: Any) -> None:
    """Replace the stored state of a source."""
    write(kafka.servers, state_topic(definition.name), (KEY, json.dumps(state)))
