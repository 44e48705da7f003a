"""Compares appends, replays and subscriptions, and measures the index.

Beside tidemill, in turns, run the recorders of the library eventsourcing with SQLite and, if it and
psycopg's pool are installed, with PostgreSQL.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from tests.support import postgres
from tests.support.processes import NotInstalledError

from bench import programs
from bench.compare import Comparison, Figures, ratio_of, typical
from bench.report import Aim, Section
from bench.run import Run
from bench.targets import Target, tidemill

APPENDS = [(1, 1), (1, 10), (8, 1), (8, 10)]
"""Writers, and events of a commit."""
_RATE = "appends/s"
NOTE = (
    "Events of 200 bytes. Writers are threads of one process, each with a stream of its own unless "
    "it says otherwise, and wait for each commit. tidemill answers when the commit is on disk "
    "(acks=all) and folded. PostgreSQL has fsync and synchronous_commit on, and writers hold a "
    "connection each; SQLite has a write-ahead log that is not synced with each commit."
)
_numbers = itertools.count()


def section(run: Run) -> Section:
    """Measure all of it."""
    seconds = 1.0 if run.options.quick else 4.0
    appends = Comparison(
        run,
        "Event store: appends",
        [_RATE, "p50 ms", "p99 ms", "tries"],
        about=("writers", "events"),
        base="PostgreSQL",
        by=[_RATE],
        note=NOTE,
    )
    replays = Comparison(
        run,
        "Event store: replay by the recorder",
        ["long, events/s", "short, events/s"],
        base="SQLite",
        by=["long, events/s", "short, events/s"],
    )
    following = Comparison(run, "Event store: from append to subscription", ["p50 ms", "p99 ms"])
    index = Comparison(
        run, "Event store: the index is built again", ["s", "events/s", "bytes/event"]
    )
    aims: list[Aim] = []
    with contenders(run) as turns:
        for writers, events in APPENDS:
            run.say(f"event store: {writers} writers, {events} events")
            found = appends.measure([writers, events], turns("append", writers, events, seconds))
            aims += _append_aims(found, writers, events)
        run.say("event store: 8 writers, one stream")
        appends.measure([8, "1, one stream"], turns("contend", 8, seconds))
        run.say("event store: replay")
        found = replays.measure(["replay"], turns("replay", seconds))
        for figure in ("long, events/s", "short, events/s"):
            ratio = ratio_of(found["tidemill"], found["SQLite"], figure)
            assert ratio is not None
            aims.append(Aim(f"event store: {figure}, to SQLite", ratio, 1.0, "", at_most=False))
        run.say("event store: subscriptions")
        following.measure(["subscription"], turns("subscribe", 300 if run.options.quick else 2000))
        count = run.options.events // (50 if run.options.quick else 1)
        run.say(f"event store: an index of {count} events")
        own = {"tidemill": turns("build", count)["tidemill"]}
        index.measure([f"{count} events"], own, rounds=1)
    tables = [each.table() for each in (appends, replays, following, index)]
    return Section("eventstore", tables, aims)


def _append_aims(found: Mapping[str, list[Figures]], writers: int, events: int) -> Iterator[Aim]:
    if events != 1:
        return
    ratio = ratio_of(found["tidemill"], found.get("PostgreSQL", ()), _RATE)
    if ratio is not None:
        limit = 0.7 if writers == 1 else 1.0
        what = f"event store: appends of {writers} writers, to PostgreSQL"
        yield Aim(what, ratio, limit, "", at_most=False)
    if writers == 1:
        p50 = typical(found["tidemill"], "p50 ms")
        assert p50 is not None
        yield Aim("event store: p50 of an append", p50, 2.0, "ms", at_most=True)


Turns = Mapping[str, Callable[[], Figures]]


@contextlib.contextmanager
def contenders(run: Run) -> Iterator[Callable[..., Turns]]:
    """Start the servers; yield what returns the turns of a case."""
    folder = run.options.folder
    with tidemill(folder) as target, _postgresql(run) as dsn:
        addresses: dict[str, Callable[[], str]] = {
            "tidemill": partial(_topic, target, folder),
            "SQLite": lambda: str(folder / f"recorder-{next(_numbers)}.sqlite"),
        }
        if dsn is not None:
            addresses["PostgreSQL"] = lambda: dsn

        def turn(who: str, case: tuple[object, ...]) -> Figures:
            found = programs.result("bench.eventstore.work", who, addresses[who](), *case)
            return dict(found)

        def turns(*case: object) -> Turns:
            names = [each for each in addresses if case[0] != "subscribe" or each != "SQLite"]
            return {name: partial(turn, name, case) for name in names}

        yield turns


def _topic(target: Target, folder: Path) -> str:
    return f"{target.bootstrap},store{next(_numbers)},{folder / 'indexes'}"


@contextlib.contextmanager
def _postgresql(run: Run) -> Iterator[str | None]:
    """Start a server that syncs each commit; yield its dsn, or None if that is not possible."""
    settings = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "128MB"}
    if importlib.util.find_spec("psycopg_pool") is None:
        run.say("note: psycopg_pool is not installed, so there is no PostgreSQL to compare with")
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            server = postgres.postgres(run.options.folder / "postgres.log", settings)
            dsn = stack.enter_context(server)
        except NotInstalledError as error:
            run.say(f"note: {error}")
            yield None
            return
        yield dsn
