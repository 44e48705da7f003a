"""Measures Nexmark: each query as a pipeline of tidemill and as plain Structured Streaming.

Spark runs in its own process (``client``). A run fails unless the results of both contenders equal
those of a batch computation over the same events.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

from bench import connector, programs, targets, threads
from bench.compare import Comparison, Figures, ratio_of
from bench.nexmark import flink
from bench.nexmark.expected import expected
from bench.nexmark.generator import events
from bench.nexmark.load import load
from bench.nexmark.queries import QUERIES
from bench.nexmark.rows import Digest
from bench.nexmark.turns import FLINK, PLAIN, TIDEMILL, Settings, Turn
from bench.report import Aim, Section
from bench.run import Run

FIGURES = ("wall s", "CPU s", "broker CPU s")
NOTE = (
    "{events:,} events, of which 46 in 50 are bids; JSON, from topics of 2 partitions to a topic, "
    "until all is read (AvailableNow). tidemill and plain Spark: one warm JVM, local[2], RocksDB, "
    "2 shuffle partitions, one broker. tidemill: exactly once, and dead letters to a topic. Plain: "
    "at least once, and a record that can't be parsed becomes a row of nulls. Flink, if it took "
    "part: SQL, parallelism 2, in its own JVM, after the others. CPU: Python, JVM and Python "
    "workers. Medians of {rounds} rounds; ratio: the median of the rounds' tidemill / plain. All "
    "results equal those of a batch computation."
)
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
    table = Comparison(
        run,
        "Nexmark",
        FIGURES,
        about=("query", "what", "rows"),
        base=PLAIN,
        by=FIGURES[:2],
        note=note,
    )
    title, groups = "Nexmark: where the time goes", [*threads.GROUPS, "Python", "CPU s"]
    profile = Comparison(run, title, groups, about=("query",), note=PROFILE_NOTE)
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
    found = {name: figures(turns, name) for name in names}
    for name, of in found.items():
        table.add([name, QUERIES[name].what, results[name].rows], of)
        profile.add([name], {who: of[who] for who in (TIDEMILL, PLAIN) if who in of})
    return Section("nexmark", [table.table(), profile.table()], aims(found))


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


def figures(turns: Sequence[Turn], query: str) -> dict[str, list[Figures]]:
    """Return the figures of a query's turns, by contender."""
    found: dict[str, list[Figures]] = {}
    for turn in turns:
        if turn.query == query:
            python = max(0.0, turn.cpu_s - sum(turn.threads.values()))
            found.setdefault(turn.contender, []).append(
                {
                    "wall s": turn.wall_s,
                    "CPU s": turn.cpu_s,
                    "broker CPU s": turn.broker_cpu_s,
                    "Python": python,
                    **turn.threads,
                }
            )
    return found


def aims(found: Mapping[str, Mapping[str, Sequence[Figures]]]) -> list[Aim]:
    """Return the aims: the worst ratios to plain Spark and to Flink, of those that took part."""
    made = []
    for who, figure, limit in (
        (PLAIN, "wall s", RATIO),
        (PLAIN, "CPU s", RATIO),
        (FLINK, "wall s", 1.0),
    ):
        ratios = {
            name: ratio
            for name, of in found.items()
            if (ratio := ratio_of(of[TIDEMILL], of.get(who, ()), figure)) is not None
        }
        if ratios:
            worst = max(ratios, key=lambda name: ratios[name])
            what = f"Nexmark, {figure} to {who}, worst query ({worst})"
            made.append(Aim(what, ratios[worst], limit, "", at_most=True))
    return made
