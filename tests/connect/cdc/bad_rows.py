"""Dead letters of tests, and what the tests of each database check of large rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from tests.connect.conftest import RunningWorker, records_of, table_of
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import Follower, end_offsets
from tidemill.connect.cdc.definition import Definition
from tidemill.connect.cdc.errors import RowError

Letter = tuple[Any, Any, dict[str, str]]


def letters_of(kafka: Kafka, topic: str) -> list[Letter]:
    """Return (key, value, headers) of the committed dead letters."""
    ends = end_offsets(kafka, "tests", topic)
    follower = Follower.of(kafka, "tests", [(topic, 0)], "read_committed")
    found = []
    try:
        while follower.behind(ends):
            for message in follower.poll(0.1):
                given: Any = message.headers() or ()
                headers = {name: value.decode() for name, value in given}
                key = json.loads(message.key() or b"null")
                found.append((key, json.loads(message.value() or b"null"), headers))
    finally:
        follower.close()
    return found


def row_error_of(running: RunningWorker) -> RowError:
    """Wait until a worker has stopped at a row, and return its error."""
    running.wait_for_end()
    assert isinstance(running.error, RowError), running.error
    return running.error


def check_large_rows(
    kafka: Kafka,
    definition: Definition,
    schema: str,
    transact: Callable[[Sequence[str]], None],
    text: str,
) -> None:
    """Check that rows of 20 MB become dead letters, in a snapshot and in the stream.

    Args:
        definition: a source of the table ``a`` of the schema, with the policy dead-letter.
        transact: runs statements in one transaction.
        text: the type of a column for 10 MB of text.
    """
    large = "repeat('x', 10485760), repeat('y', 10485760)"
    transact([f"CREATE TABLE a (id INT PRIMARY KEY, v {text}, w {text})"])
    transact(["INSERT INTO a VALUES (1, 'one', 'one')", f"INSERT INTO a VALUES (2, {large})"])
    topic = f"{definition.name}.{schema}.a"
    with RunningWorker(definition, kafka) as running:
        running.wait_for_snapshots()
        transact(
            [
                "INSERT INTO a VALUES (3, 'three', '')",
                "UPDATE a SET v = repeat('x', 10485760), w = repeat('y', 10485760) WHERE id = 1",
                "INSERT INTO a VALUES (4, 'four', '')",
            ]
        )
        running.wait(lambda: '{"id": 4}' in table_of(records_of(kafka, topic)), "the last row")
        assert set(table_of(records_of(kafka, topic))) == {'{"id": 3}', '{"id": 4}'}
        transact(["UPDATE a SET v = 'small', w = '' WHERE id IN (1, 2)"])
        running.wait(lambda: len(table_of(records_of(kafka, topic))) == 4, "the rows come back")
    found = letters_of(kafka, f"{definition.name}.dlq")
    assert [(key, value["op"]) for key, value, _ in found] == [({"id": 2}, "r"), ({"id": 1}, "u")]
    assert {headers["omitted.columns"] for _, _, headers in found} == {"v,w"}
    assert json.loads(found[1][2]["source.position"])
