"""Measures Nexmark: each query as a pipeline of tidemill and as plain Structured Streaming.

Spark runs in its own process (``client``). A run fails unless the results of both contenders equal
those of a batch computation over the same events.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence

from bench import connector, programs, targets, threads
from bench.nexmark import flink
from bench.nexmark.expected import expected
from bench.nexmark.generator import events
from bench.nexmark.load import load
from bench.nexmark.queries import QUERIES
from bench.nexmark.rows import Digest
from bench.nexmark.turns import FLINK, PLAIN, TIDEMILL, Settings, Turn
from bench.report import Aim, Section, Table
from bench.run import Run, ratio

COLUMNS = [
    *("query", "what", "rows", "plain wall s", "plain CPU s", "tidemill wall s", "tidemill CPU s"),
    *("wall ratio", "CPU ratio", "plain broker CPU s", "tidemill broker CPU s"),
    *("Flink wall s", "Flink CPU s"),
]
NOTE = (
    "{events:,} events, of which 46 in 50 are bids; JSON, from topics of 2 partitions to a topic, "
    "until all is read (AvailableNow). tidemill and plain Spark: one warm JVM, local[2], RocksDB, "
    "2 shuffle partitions, one broker. tidemill: exactly once, and dead letters to a topic. Plain: "
    "at least once, and a record that can't be parsed becomes a row of nulls. Flink, if it took "
    "part: SQL, parallelism 2, in its own JVM, after the others. CPU: Python, JVM and Python "
    "workers. Medians of {rounds} rounds; ratio: the median of the rounds' tidemill / plain. All "
    "results equal those of a batch computation."
)
PROFILE_COLUMNS = ["query", "who", *threads.GROUPS, "Python", "CPU s"]
PROFILE_NOTE = (
    "Processor seconds of the same turns by what the threads of the JVM do; Python: the driver's "
    "process and the workers of sources. Both contenders share the JVM, so it compiles more in "
    "the first turns. Medians."
)
RATIO = 0.7


def section(run: Run) -> Section:
    """Measure the queries of the option, or all.

    Raises:
        RuntimeError: A result differs from the batch computation, or the client failed.
    """
    options = run.options
    names = list(options.queries or QUERIES)
    note = NOTE.format(events=options.events, rounds=options.rounds)
    table = Table("Nexmark", COLUMNS, note=note)
    profile = Table("Nexmark: where the time goes", PROFILE_COLUMNS, note=PROFILE_NOTE)
    jars = connector.jars_or_none(options.connector)
    with targets.tidemill(options.folder) as target:
        run.say(f"nexmark: writing {options.events:,} events")
        written = load(target, events(options.events))
        run.say("nexmark: computing the results in a batch")
        results = {name: expected(written, name) for name in names}
        del written
        settings = Settings(
            bootstrap=target.bootstrap,
            broker_pid=target.pid,
            folder=str(options.folder),
            queries=names,
            rounds=options.rounds,
            jars=jars,
        )
        turns = run_client(run, settings, results)
        if options.flink is not None:
            for turn in flink.turns(settings, options.flink):
                report(run, turn, results)
                turns.append(turn)
    for name in names:
        of_query = [turn for turn in turns if turn.query == name]
        table.rows.append(row(name, of_query))
        profile.rows += profile_rows(name, of_query)
    return Section("nexmark", [table, profile], aims(table))


def run_client(run: Run, settings: Settings, results: Mapping[str, Digest]) -> list[Turn]:
    """Run ``client`` and return its turns.

    Raises:
        RuntimeError: A result differs from the expected one, or the client failed.
    """
    turns: list[Turn] = []
    for fields in programs.lines("bench.nexmark.client", json.dumps(dataclasses.asdict(settings))):
        turns.append(Turn(**fields))
        report(run, turns[-1], results)
    return turns


def report(run: Run, turn: Turn, results: Mapping[str, Digest]) -> None:
    """Check a turn, and print it as progress.

    Raises:
        RuntimeError: Its result differs from the expected one.
    """
    check(turn, results[turn.query])
    run.say(
        f"nexmark: {turn.query}, {turn.contender}: {turn.wall_s:.1f} s, "
        f"CPU {turn.cpu_s:.1f} s, broker {turn.broker_cpu_s:.1f} s"
    )


def check(turn: Turn, wanted: Digest) -> None:
    """Compare the result of a turn with the batch computation.

    Raises:
        RuntimeError: They differ.
    """
    if (turn.rows, turn.hash) != (wanted.rows, wanted.hash):
        raise RuntimeError(
            f"{turn.contender} returned a wrong result for {turn.query}: {turn.rows} rows with "
            f"hash {turn.hash}, expected {wanted.rows} rows with hash {wanted.hash}"
        )


def row(query: str, turns: Sequence[Turn]) -> list[str | float | int | None]:
    """Return the row of a query; cells of a contender that is missing are empty."""
    ours = [turn for turn in turns if turn.contender == TIDEMILL]
    plain = [turn for turn in turns if turn.contender == PLAIN]
    others = [turn for turn in turns if turn.contender == FLINK]

    def median(found: Sequence[Turn], field: str) -> float | None:
        return statistics.median(getattr(turn, field) for turn in found) if found else None

    def against(field: str) -> float | None:
        if not plain:
            return None
        return ratio([getattr(t, field) for t in ours], [getattr(t, field) for t in plain])

    return [
        *(query, QUERIES[query].what, ours[0].rows),
        *(median(plain, "wall_s"), median(plain, "cpu_s")),
        *(median(ours, "wall_s"), median(ours, "cpu_s")),
        *(against("wall_s"), against("cpu_s")),
        *(median(plain, "broker_cpu_s"), median(ours, "broker_cpu_s")),
        *(median(others, "wall_s"), median(others, "cpu_s")),
    ]


def profile_rows(query: str, turns: Sequence[Turn]) -> list[list[str | float | int | None]]:
    """Return where the processor time of each contender went in a query."""
    rows: list[list[str | float | int | None]] = []
    for who in (TIDEMILL, PLAIN):
        found = [turn for turn in turns if turn.contender == who and turn.threads]
        if not found:
            continue
        groups = [
            statistics.median(turn.threads[each] for turn in found) for each in threads.GROUPS
        ]
        used = statistics.median(turn.cpu_s for turn in found)
        rows.append([query, who, *groups, max(0.0, used - sum(groups)), used])
    return rows


def aims(table: Table) -> list[Aim]:
    """Return the aims: the worst ratios to plain Spark and to Flink, of those that took part."""
    found = []
    for name in ("wall ratio", "CPU ratio"):
        index = COLUMNS.index(name)
        rows = [each for each in table.rows if isinstance(each[index], float)]
        if rows:
            worst = max(rows, key=lambda each: float(each[index] or 0))
            what = f"Nexmark, {name} to plain Spark, worst query ({worst[0]})"
            found.append(Aim(what, float(worst[index] or 0), RATIO, "", at_most=True))
    ours, theirs = COLUMNS.index("tidemill wall s"), COLUMNS.index("Flink wall s")
    pairs = {str(each[0]): (each[ours], each[theirs]) for each in table.rows}
    ratios = {
        name: a / b
        for name, (a, b) in pairs.items()
        if isinstance(a, float) and isinstance(b, float)
    }
    if ratios:
        slowest = max(ratios, key=lambda name: ratios[name])
        what = f"Nexmark, wall to Flink, worst query ({slowest})"
        found.append(Aim(what, ratios[slowest], 1.0, "", at_most=True))
    return found
