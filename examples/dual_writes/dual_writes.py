"""Write to a database and a search index, directly and through the log, and count what differs.

    tidemill dev
    python examples/dual_writes/dual_writes.py

The database is SQLite. The search index is another SQLite file with FTS5. Like a search server, it
has no transaction in common with the database.
"""

import argparse
import json
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer

ARTICLES = 100
WRITES = 300
CRASH_EVERY = 12
WORDS = ("red", "blue", "green", "small", "large", "round", "wooden", "steel", "paper", "glass")


class CrashError(Exception):
    """The client's process ends between two writes."""


class Database:
    """The articles, one connection per thread."""

    def __init__(self, path):
        self.path = path
        with self.connect() as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE article (id INTEGER PRIMARY KEY, text TEXT NOT NULL)")

    def connect(self):
        return sqlite3.connect(self.path, timeout=30, isolation_level=None)

    def rows(self):
        return dict(self.connect().execute("SELECT id, text FROM article"))


class SearchIndex:
    """A full-text index in a file of its own."""

    def __init__(self, path):
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._lock = threading.Lock()
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("CREATE VIRTUAL TABLE article USING fts5(text)")

    def put(self, number, text):
        with self._lock:
            self._db.execute("DELETE FROM article WHERE rowid = ?", (number,))
            self._db.execute("INSERT INTO article (rowid, text) VALUES (?, ?)", (number, text))

    def delete(self, number):
        with self._lock:
            self._db.execute("DELETE FROM article WHERE rowid = ?", (number,))

    def rows(self):
        return dict(self._db.execute("SELECT rowid, text FROM article"))


def client(database, index, seed):
    """Write articles to the database, and to the index too if there is one."""
    chance = random.Random(seed)
    db = database.connect()
    for count in range(1, WRITES + 1):
        number = chance.randint(1, ARTICLES)
        text = " ".join(chance.choices(WORDS, k=4))
        try:
            if chance.random() < 0.2:
                db.execute("DELETE FROM article WHERE id = ?", (number,))
                between_the_writes(chance, count)
                if index is not None:
                    index.delete(number)
            else:
                db.execute("INSERT OR REPLACE INTO article VALUES (?, ?)", (number, text))
                between_the_writes(chance, count)
                if index is not None:
                    index.put(number, text)
        except CrashError:
            db.close()
            db = database.connect()  # the client is started again, and knows nothing of it
    db.close()


def between_the_writes(chance, count):
    """Take the time of a network call; now and then the client crashes here."""
    time.sleep(chance.random() * 0.004)
    if count % CRASH_EVERY == 0:
        raise CrashError


def run_clients(database, index):
    threads = [threading.Thread(target=client, args=(database, index, seed)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def differences(database, index):
    stored, found = database.rows(), index.rows()
    return [key for key in stored.keys() | found.keys() if stored.get(key) != found.get(key)]


def follow(servers, topic, index, stop, delays):
    """Bring the committed changes of a topic into the index, in the order of the log."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"index-of-{topic}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "topic.metadata.refresh.interval.ms": 500,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    while not stop.is_set():
        message = consumer.poll(0.1)
        if message is None or message.error() or message.value() is None:
            continue
        event = json.loads(message.value())
        if event["op"] == "d":
            index.delete(json.loads(message.key())["id"])
        else:
            index.put(event["after"]["id"], event["after"]["text"])
        delays.append(time.time() * 1000 - event["source"]["ts_ms"])
    consumer.close()


def tidemill(servers, *arguments):
    command = [sys.executable, "-m", "tidemill", *arguments, "-b", servers]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def wait_until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"error: not within {seconds} s: {what}")
        time.sleep(0.1)


def write_directly(folder):
    """Return how many articles differ after both clients wrote to both systems."""
    database, index = Database(folder / "direct.db"), SearchIndex(folder / "direct.index")
    run_clients(database, index)
    return len(differences(database, index))


def write_through_the_log(folder, servers, name):
    """Return how many articles differ with capture, and the delays of the index in ms."""
    database, index = Database(folder / "captured.db"), SearchIndex(folder / "captured.index")
    definition = folder / "source.toml"
    definition.write_text(f'name = "{name}"\nkind = "sqlite"\n[database]\npath = "captured.db"\n')
    tidemill(servers, "source", "create", str(definition))
    wait_until(
        lambda: (
            json.loads(tidemill(servers, "source", "describe", name, "--json"))["state"]
            == "running"
        ),
        "the source runs (does 'tidemill dev' run?)",
    )
    delays, stop = [], threading.Event()
    follower = threading.Thread(
        target=follow, args=(servers, f"{name}.main.article", index, stop, delays)
    )
    follower.start()
    try:
        # The first change creates nothing: the topic is there. The follower finds it.
        database.connect().execute("INSERT INTO article VALUES (0, 'first')")
        wait_until(lambda: 0 in index.rows(), "the follower reads")
        delays.clear()
        run_clients(database, None)
        wait_until(lambda: not differences(database, index), "the index agrees")
        return len(differences(database, index)), sorted(delays)
    finally:
        stop.set()
        follower.join()
        tidemill(servers, "source", "delete", name, "--topics", "--yes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap-servers", "-b", default="localhost:9092")
    parser.add_argument("--name", default="dual-writes", help="name of the source")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        direct = write_directly(Path(folder))
        captured, delays = write_through_the_log(
            Path(folder), arguments.bootstrap_servers, arguments.name
        )
    p50, p99 = (delays[int(len(delays) * share)] for share in (0.5, 0.99))
    print(f"written directly to both:  {direct} of {ARTICLES} articles differ, for ever")
    print(f"followed through the log:  {captured} of {ARTICLES} articles differ")
    print(f"the index was behind by:   p50 {p50:.0f} ms, p99 {p99:.0f} ms")


if __name__ == "__main__":
    main()
