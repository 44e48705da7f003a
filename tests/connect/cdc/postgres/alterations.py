"""Random DDL, partitions and changes of keys, on tables whose topics must equal them in the end."""

from __future__ import annotations

import random
import threading
from typing import Any

import psycopg

TABLES = ("parts", "swaps", "shapes", "labels", "spelled")
PARTS = 5
_KEYS = 12
CREATE = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE parts (id int, day int, v text, m mood, PRIMARY KEY (id, day))
  PARTITION BY RANGE (day);
CREATE TABLE swaps (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text);
ALTER TABLE swaps REPLICA IDENTITY FULL;
CREATE TABLE labels (m mood, k int, v text, PRIMARY KEY (m, k));
CREATE TABLE spelled (id numeric PRIMARY KEY, v text);
"""
SHAPES = "CREATE TABLE shapes (id int PRIMARY KEY, alt int NOT NULL UNIQUE, n int, v text, m mood)"
EXPECTED = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.CheckViolation,  # no partition for a row
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedObject,
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateColumn,
    psycopg.errors.DuplicateObject,
    psycopg.errors.InvalidTableDefinition,
    psycopg.errors.InvalidObjectDefinition,
    psycopg.errors.ObjectNotInPrerequisiteState,
    psycopg.errors.WrongObjectType,
    psycopg.errors.InvalidParameterValue,
    psycopg.errors.DatatypeMismatch,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.InvalidTextRepresentation,
    psycopg.errors.NumericValueOutOfRange,
    psycopg.errors.InternalError_,  # "tuple concurrently updated": two DDL statements
)
"""Refusals of statements that another one came before."""


def create(connection: psycopg.Connection[Any]) -> None:
    """Create the tables, with some rows."""
    connection.execute(CREATE)
    connection.execute(SHAPES.encode())
    for number in range(PARTS):
        connection.execute(_partition(number).encode())
    keys = f"generate_series(1, {_KEYS}) i"
    connection.execute(f"INSERT INTO parts SELECT i, 10 * (i % 5), 'x', 'ok' FROM {keys}".encode())
    connection.execute(f"INSERT INTO swaps SELECT i, 'x' || i FROM {keys}".encode())
    connection.execute(f"INSERT INTO shapes SELECT i, 100 + i, i, 'x', 'sad' FROM {keys}".encode())
    connection.execute(f"INSERT INTO labels SELECT 'ok', i, 'x' FROM {keys}".encode())
    connection.execute(f"INSERT INTO spelled SELECT i, 'x' FROM {keys}".encode())


def _range(number: int) -> str:
    return f"FOR VALUES FROM ({10 * number}) TO ({10 * number + 10})"


def _partition(number: int) -> str:
    return f"CREATE TABLE p{number} PARTITION OF parts {_range(number)}"


class Alterer(threading.Thread):
    """Commits random transactions until ``stop`` is set.

    Attributes:
        done: The number of transactions that were committed.
    """

    def __init__(self, dsn: str, seed: int) -> None:
        super().__init__(name=f"alterer {seed}", daemon=True)
        self._dsn = dsn
        self._random = random.Random(seed)
        self._number = seed % 1000 * 1000
        self.stop = threading.Event()
        self.done = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                connection.execute("SET lock_timeout = '1s'")
                while not self.stop.is_set():
                    self._transaction(connection)
                    self.stop.wait(self._random.random() * 0.03)
        except BaseException as error:
            self.error = error

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        chance = self._random
        statements = [self._write() for _ in range(chance.choice((1, 2, 4)))]
        if chance.random() < 0.25:
            at = chance.randrange(len(statements) + 1)
            statements[at:at] = self._ddl()
        try:
            if chance.random() < 0.05:
                name = chance.randrange(PARTS)
                connection.execute(
                    f"ALTER TABLE parts DETACH PARTITION p{name} CONCURRENTLY".encode()
                )
            with connection.transaction(force_rollback=chance.random() < 0.1):
                for statement in statements:
                    if chance.random() < 0.2:
                        with connection.transaction(force_rollback=chance.random() < 0.3):
                            connection.execute(statement.encode())
                    else:
                        connection.execute(statement.encode())
        except EXPECTED:
            return
        self.done += 1

    def _write(self) -> str:
        chance = self._random
        self._number += 1
        key, other, value = chance.randrange(_KEYS), chance.randrange(_KEYS), f"'w{self._number}'"
        day, label = chance.randrange(10 * PARTS), chance.choice(("sad", "ok", "happy"))
        spelled = chance.choice((f"{key}", f"{key}.0", f"{key}.00"))
        return chance.choice(
            [
                f"INSERT INTO parts VALUES ({key}, {day}, {value}, '{label}')"
                " ON CONFLICT (id, day) DO UPDATE SET v = excluded.v",
                f"UPDATE parts SET v = {value} WHERE id = {key}",
                f"UPDATE parts SET day = {day} WHERE id = {key} AND day % 3 = 0",
                f"DELETE FROM parts WHERE id = {key}",
                f"UPDATE p{key % PARTS} SET v = {value} WHERE id >= {key}",
                f"UPDATE swaps SET id = {_KEYS} - id WHERE id < {key}",
                f"UPDATE swaps SET id = {key + other} - id WHERE id IN ({key}, {other})",
                f"UPDATE swaps SET v = {value} WHERE id = {key}",
                f"INSERT INTO swaps VALUES ({key}, {value})",
                f"DELETE FROM swaps WHERE id = {key}",
                f"INSERT INTO shapes (id, alt, m) VALUES ({key}, {100 + key}, '{label}')",
                f"UPDATE shapes SET m = '{label}', v = {value} WHERE id >= {key}",
                f"UPDATE shapes SET id = {other}, alt = {100 + other} WHERE id = {key}",
                f"DELETE FROM shapes WHERE id = {key}",
                f"INSERT INTO labels VALUES ('{label}', {key}, {value})",
                f"UPDATE labels SET m = '{label}', v = {value} WHERE k = {key}",
                f"DELETE FROM labels WHERE k = {key} AND m = '{label}'",
                f"INSERT INTO spelled VALUES ({spelled}, {value})"
                " ON CONFLICT (id) DO UPDATE SET v = excluded.v",
                f"UPDATE spelled SET id = {spelled}, v = {value} WHERE id = {key}",
                f"DELETE FROM spelled WHERE id = {spelled}",
            ]
        )

    def _ddl(self) -> list[str]:
        chance = self._random
        self._number += 1
        part = f"p{chance.randrange(PARTS)}"
        detach = f"ALTER TABLE parts DETACH PARTITION {part}"
        attach = f"ALTER TABLE parts ATTACH PARTITION {part} {_range(int(part[1:]))}"
        column = f"c{chance.randrange(3)}"
        default = chance.choice(("", f"DEFAULT {chance.randrange(9)}", "DEFAULT 10 * random()"))
        return chance.choice(
            [
                [detach],
                [detach],
                [attach],
                [attach],
                [detach, f"UPDATE {part} SET v = 'apart{self._number}'", attach],
                [f"UPDATE {part} SET v = 'apart{self._number}'"],
                [f"TRUNCATE {part}"],
                ["TRUNCATE parts"] if chance.random() < 0.3 else [f"TRUNCATE {part}"],
                [f"DROP TABLE {part}", _partition(int(part[1:]))],
                [f"ALTER TABLE shapes ADD COLUMN {column} int {default}"],
                [f"ALTER TABLE shapes ADD COLUMN {column} int {default}",
                 f"ALTER TABLE shapes ALTER {column} DROP DEFAULT"],
                [f"ALTER TABLE shapes DROP COLUMN {column}"],
                [f"ALTER TABLE shapes DROP COLUMN {column}",
                 f"ALTER TABLE shapes ADD COLUMN {column} int {default}"],
                [f"ALTER TABLE shapes RENAME n TO {column}"],
                [f"ALTER TABLE shapes RENAME {column} TO n"],
                ["ALTER TABLE shapes ALTER v TYPE text USING v || '+'"],
                ["ALTER TABLE shapes ALTER n TYPE numeric(8, 1)"],
                ["ALTER TABLE shapes ALTER n TYPE int"],
                ["ALTER TABLE shapes DROP CONSTRAINT shapes_pkey, ADD PRIMARY KEY (alt)"],
                ["ALTER TABLE shapes DROP CONSTRAINT shapes_pkey, ADD PRIMARY KEY (id)"],
                ["ALTER TABLE shapes REPLICA IDENTITY FULL"],
                ["ALTER TABLE shapes REPLICA IDENTITY DEFAULT"],
                ["ALTER TABLE shapes REPLICA IDENTITY USING INDEX shapes_alt_key"],
                ["TRUNCATE shapes"],
                ["DROP TABLE shapes", SHAPES, "INSERT INTO shapes VALUES (1, 101, 1, 'x', 'ok')"],
                ["ALTER TYPE mood RENAME VALUE 'ok' TO 'x'", "ALTER TYPE mood RENAME VALUE 'sad' TO"
                 " 'ok'", "ALTER TYPE mood RENAME VALUE 'x' TO 'sad'"],
                [f"ALTER TYPE mood ADD VALUE IF NOT EXISTS 'm{chance.randrange(4)}' BEFORE 'ok'"],
            ]
        )  # fmt: skip
