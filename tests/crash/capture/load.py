"""Random transactions on a SQLite database, and what they have committed.

Each row carries ``ver``, a number that grows with each write in the order of the commits.
"""

from __future__ import annotations

import random
import sqlite3
import threading
from pathlib import Path

TABLES = {
    "plain": "(id INTEGER PRIMARY KEY, ver INT, text TEXT, data BLOB)",
    "pair": "(a TEXT NOT NULL, b INT NOT NULL, ver INT, text TEXT, PRIMARY KEY (a, b)) "
    "WITHOUT ROWID",
    "coded": "(id INTEGER PRIMARY KEY, ver INT, code TEXT UNIQUE, text TEXT)",
    "named": "(name TEXT PRIMARY KEY NOT NULL COLLATE NOCASE, ver INT, text TEXT)",
    "loose": "(id PRIMARY KEY NOT NULL, ver INT, text TEXT)",
}
KEYS = {
    "plain": ("id",),
    "pair": ("a", "b"),
    "coded": ("id",),
    "named": ("name",),
    "loose": ("id",),
}
"""Keys of ``named`` are equal in both cases, those of ``loose`` as integers and as reals."""


class Load:
    """Writes from several connections, until ``stop``.

    Args:
        path: the database.
        seed: of the random choices.
        with_ddl: whether columns are added and tables are created again in between.

    Attributes:
        written: for each table, the versions that inserts and updates have committed.
    """

    def __init__(self, path: Path, seed: int, *, with_ddl: bool) -> None:
        self._path = path
        self._seed = seed
        self._with_ddl = with_ddl
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.written: dict[str, set[int]] = {name: set() for name in TABLES}
        self.errors: list[BaseException] = []
        db = self._connect()
        db.execute("PRAGMA journal_mode = WAL")
        for name in TABLES:
            self._create(db, name)
        db.execute("CREATE TABLE _tidemill_counter (n INT)")  # our sources leave it out
        db.execute("INSERT INTO _tidemill_counter VALUES (0)")
        db.close()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(3)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None, timeout=60)

    @staticmethod
    def _create(db: sqlite3.Connection, name: str) -> None:
        db.execute(f"CREATE TABLE {name} {TABLES[name]}")

    def _run(self, number: int) -> None:
        chance = random.Random(self._seed * 10 + number)
        db = self._connect()
        db.execute(f"PRAGMA recursive_triggers = {chance.choice(['ON', 'OFF'])}")
        try:
            while not self._stop.is_set():
                self._transaction(db, chance)
                self._stop.wait(chance.random() * 0.02)
        except BaseException as error:
            self.errors.append(error)
        finally:
            db.close()

    def _transaction(self, db: sqlite3.Connection, chance: random.Random) -> None:
        db.execute("BEGIN IMMEDIATE")
        wrote: list[tuple[str, int]] = []
        if self._with_ddl and chance.random() < 0.03:
            self._change_schema(db, chance)
        for _ in range(chance.randint(1, 12)):
            if chance.random() < 0.15:
                db.execute("SAVEPOINT s")
                kept = len(wrote)
                self._write(db, chance, wrote)
                if chance.random() < 0.5:
                    db.execute("ROLLBACK TO s")
                    del wrote[kept:]
                db.execute("RELEASE s")
            else:
                self._write(db, chance, wrote)
        if chance.random() < 0.15:
            db.execute("ROLLBACK")
            return
        db.execute("COMMIT")
        with self._lock:
            for table, version in wrote:
                self.written[table].add(version)

    def _change_schema(self, db: sqlite3.Connection, chance: random.Random) -> None:
        name = chance.choice(list(TABLES))
        kind = chance.random()
        if kind < 0.2:  # as programs change what ALTER TABLE can't
            names = [row[1] for row in db.execute(f"PRAGMA table_info({name})").fetchall()]
            db.execute(f"CREATE TABLE fresh {TABLES[name]}")
            here = [row[1] for row in db.execute("PRAGMA table_info(fresh)").fetchall()]
            columns = ", ".join(each for each in here if each in names)
            db.execute(f"INSERT INTO fresh ({columns}) SELECT {columns} FROM {name}")
            db.execute(f"DROP TABLE {name}")
            db.execute(f"ALTER TABLE fresh RENAME TO {name}")
        elif kind < 0.6:
            count = len(db.execute(f"PRAGMA table_info({name})").fetchall())
            if count < 12:
                db.execute(f"ALTER TABLE {name} ADD COLUMN more{count} TEXT DEFAULT 'new'")
        else:
            db.execute(f"DROP TABLE {name}")
            self._create(db, name)

    def _write(
        self, db: sqlite3.Connection, chance: random.Random, wrote: list[tuple[str, int]]
    ) -> None:
        db.execute("UPDATE _tidemill_counter SET n = n + 1")
        version = int(db.execute("SELECT n FROM _tidemill_counter").fetchone()[0])
        table = chance.choice(list(TABLES))
        key = chance.randint(1, 60)
        text = "x" * chance.choice([3, 30, 300, 50_000])
        spelled = chance.choice((f"n{key}", f"N{key}"))
        number = chance.choice((key, float(key)))
        where, values = {
            "pair": ("a = ? AND b = ?", (f"k{key % 4}", key)),
            "named": ("name = ?", (spelled,)),
        }.get(table, ("id = ?", (key,)))
        action = chance.random()
        if action < 0.2:
            db.execute(f"DELETE FROM {table} WHERE {where}", values)
            return
        if action < 0.55:
            changed = db.execute(
                f"UPDATE {table} SET ver = ?, text = ? WHERE {where}", (version, text, *values)
            ).rowcount
        elif action < 0.65:
            column = {"pair": "b", "named": "name"}.get(table, "id")
            other = chance.randint(1, 60)
            new = {"named": chance.choice((f"n{other}", f"N{other}")), "loose": float(other)}
            changed = db.execute(
                f"UPDATE OR REPLACE {table} SET {column} = ?, ver = ? WHERE {where}",
                (new.get(table, other), version, *values),
            ).rowcount
        else:
            columns, row = {
                "plain": ("id, ver, text, data", (key, version, text, bytes([key]) * 20)),
                "pair": ("a, b, ver, text", (f"k{key % 4}", key, version, text)),
                "coded": ("id, ver, code, text", (key, version, f"c{chance.randint(1, 30)}", text)),
                "named": ("name, ver, text", (spelled, version, text)),
                "loose": ("id, ver, text", (number, version, text)),
            }[table]
            marks = ", ".join("?" * len(row))
            changed = db.execute(
                f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({marks})", row
            ).rowcount
        if changed:
            wrote.append((table, version))
