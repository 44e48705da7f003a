"""Measures pipelines on Spark: latency from a record to its result, and the source and sink alone.

Spark runs in its own process (``client``). Each latency is that of one record without other load,
from before it is produced until a reader of committed records has its result. It includes the wait
for the next trigger.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from bench import connector, programs, targets
from bench.compare import Comparison, Figures
from bench.load import program
from bench.pipelines.results import PLAIN, QUERIES, TIDEMILL, TRIGGERS, Latency, Rate, Settings
from bench.report import Aim, Section, Table
from bench.run import Run, percentile
from bench.targets import Target

LATENCY_COLUMNS = ["query", "trigger", "contender", "records", "p50 ms", "p99 ms"]
LATENCY_NOTE = (
    "One record after the other, into a topic, through Spark (local[2]), into another topic, read "
    "with read_committed. tidemill writes exactly once, plain Spark at least once. Windowed: the "
    "current count of a tumbling window, in update mode."
)
RATE_COLUMNS = [
    *("part", "contender", "rows", "first rows/s", "warm rows/s", "warm CPU s per 10^6 rows"),
]
RATE_NOTE = (
    "Records with 100 B values. Source: one partition, read by one task and discarded. Sink: two "
    "tasks write rows of Parquet files to a topic; tidemill exactly once, plain Spark at least "
    "once. First: the first turn in this JVM. Warm: the median of the turns after it."
)
P50_MS = {"stateless": 150, "windowed": 250}
"""Aims at a trigger of 0."""
ROWS_PER_SECOND = 3_000_000
CPU_RATIO = 0.5
SIZE = 100
MOST_ROWS = 3_000_000
PARTS = ("source, streaming", "source, batch", "sink")
RATE_FIGURES = ("M rows/s", "CPU s per 10^6 rows")
SOURCE = "pipelines-source"


def latency_section(run: Run) -> Section:
    """Measure the latency of a stateless query and of a windowed one, at two triggers.

    Raises:
        RuntimeError: The client failed.
    """
    options, name = run.options, "pipelines-latency"
    records = 5 if options.rounds == 1 else 25 if options.quick else 100
    run.say(f"{name}: a stateless query and a windowed one")

    def settings(target: Target, rounds: int, jars: list[str]) -> Settings:
        return Settings(target.bootstrap, str(options.folder), jars, records, min(2, rounds))

    if options.against is not None:
        return of_versions(run, name, settings)
    with targets.tidemill(options.folder) as target:
        given = settings(target, options.rounds, connector.jars_or_none(options.connector))
        found = [each for each in client(run, given) if isinstance(each, Latency)]
    return Section(name, [latency_table(found)], latency_aims(found))


def rates_section(run: Run) -> Section:
    """Measure the source and the sink alone.

    Raises:
        RuntimeError: The client failed.
    """
    options, name = run.options, "pipelines-rates"
    rows = min(MOST_ROWS, 2 * options.megabytes * 1_000_000 // SIZE)
    run.say(f"{name}: source and sink")

    def settings(target: Target, rounds: int, jars: list[str]) -> Settings:
        target.prepare()
        target.create_topic(SOURCE, 1)
        program("bulk", target, SOURCE, count=rows, size=SIZE)
        return Settings(
            target.bootstrap,
            str(options.folder),
            jars,
            source=SOURCE,
            rows=rows,
            runs=1 + rounds,
        )

    if options.against is not None:
        return of_versions(run, name, settings)
    with targets.tidemill(options.folder) as target:
        given = settings(target, options.rounds, connector.jars_or_none(options.connector))
        found = [each for each in client(run, given) if isinstance(each, Rate)]
    return Section(name, [rate_table(found)], rate_aims(found))


def of_versions(
    run: Run, name: str, settings: Callable[[Target, int, list[str]], Settings]
) -> Section:
    """Compare pipelines of another checkout with those of this one.

    A turn has a broker and a client of its own. Of the two runs of a part, the second one counts.
    """

    def turn(checkout: Path | None) -> Figures:
        found: dict[str, float] = {}
        with targets.of_version(run.options.folder, checkout) as target:
            for each in client(run, settings(target, 1, []), checkout):
                if isinstance(each, Latency):
                    what = f"{each.query}, {each.trigger}"
                    found[f"{what}: p50 ms"] = percentile(each.seconds, 50) * 1e3
                else:
                    found[f"{each.part}: M rows/s"] = each.rows / each.wall_s / 1e6
                    found[f"{each.part}: CPU s per 10^6 rows"] = each.cpu_s / each.rows * 1e6
        return found

    with_rates = [f"{part}: {figure}" for part in PARTS for figure in RATE_FIGURES]
    of_latency = [f"{query}, {each}: p50 ms" for query in QUERIES for each in TRIGGERS]
    figures = with_rates if name == "pipelines-rates" else of_latency
    compared = Comparison(run, f"Versions: {name}", figures, about=())
    compared.measure((), {who: partial(turn, each) for who, each in run.versions.items()})
    return Section(name, [compared.table()], compared.regressions())


def client(run: Run, settings: Settings, checkout: Path | None = None) -> Iterator[Latency | Rate]:
    """Run ``client`` and yield its results.

    Raises:
        RuntimeError: It failed; its traceback is on stderr.
    """
    for fields in programs.lines(
        "bench.pipelines.client", json.dumps(dataclasses.asdict(settings)), checkout=checkout
    ):
        if fields.pop("kind") == "Latency":
            latency = Latency(**fields)
            p50, p99 = (percentile(latency.seconds, each) * 1e3 for each in (50, 99))
            what = f"{latency.query}, {latency.trigger}, {latency.contender}"
            run.say(f"{what}: p50 {p50:.0f} ms, p99 {p99:.0f} ms")
            yield latency
        else:
            rate = Rate(**fields)
            run.say(
                f"{rate.part}, {rate.contender}: {rate.rows / rate.wall_s:,.0f} rows/s, "
                f"CPU {rate.cpu_s:.1f} s"
            )
            yield rate


def latency_table(found: Sequence[Latency]) -> Table:
    """Return the percentiles of each case over all rounds."""
    table = Table("Pipelines: latency from append to result", LATENCY_COLUMNS, note=LATENCY_NOTE)
    for query, trigger, contender in itertools.product(QUERIES, TRIGGERS, (TIDEMILL, PLAIN)):
        if took := milliseconds(found, query, trigger, contender):
            p50, p99 = percentile(took, 50), percentile(took, 99)
            table.rows.append([query, trigger, contender, len(took), p50, p99])
    return table


def latency_aims(found: Sequence[Latency]) -> list[Aim]:
    """Return the aims: p50 at a trigger of 0, and p99 not above plain Spark's."""
    aims = []
    for query in QUERIES:
        p50 = percentile(milliseconds(found, query, TRIGGERS[0], TIDEMILL), 50)
        what = f"latency from append to result, {query} query, trigger of 0, p50"
        aims.append(Aim(what, p50, P50_MS[query], "ms", at_most=True))
    for query, trigger in itertools.product(QUERIES, TRIGGERS):
        if theirs := milliseconds(found, query, trigger, PLAIN):
            ours = percentile(milliseconds(found, query, trigger, TIDEMILL), 99)
            what = f"latency, {query} query, trigger of {trigger}, p99: that of plain Spark"
            aims.append(Aim(what, ours, percentile(theirs, 99), "ms", at_most=True))
    return aims


def milliseconds(found: Sequence[Latency], query: str, trigger: str, contender: str) -> list[float]:
    """Return the latencies of one case."""
    case = (query, trigger, contender)
    turns = [each for each in found if (each.query, each.trigger, each.contender) == case]
    return [seconds * 1e3 for turn in turns for seconds in turn.seconds]


def rate_table(found: Sequence[Rate]) -> Table:
    """Return the rates of each part and contender."""
    table = Table("Pipelines: source and sink alone", RATE_COLUMNS, note=RATE_NOTE)
    for part in dict.fromkeys(each.part for each in found):
        for contender in (TIDEMILL, PLAIN):
            if turns := turns_of(found, part, contender):
                first = turns[0].rows / turns[0].wall_s
                table.rows.append(
                    [part, contender, turns[0].rows, first, warm_rate(turns), warm_cpu(turns)]
                )
    return table


def rate_aims(found: Sequence[Rate]) -> list[Aim]:
    """Return the aims of the source: its rate, and its processor time to the connector's."""
    part = "source, streaming"
    ours, plain = turns_of(found, part, TIDEMILL), turns_of(found, part, PLAIN)
    what = f"source of pipelines, rows/s of one task, {SIZE} B"
    aims = [Aim(what, warm_rate(ours), ROWS_PER_SECOND, "", at_most=False)]
    if plain:
        what = "CPU of the source to that of Spark's connector, streaming"
        ratio = warm_cpu(ours) / warm_cpu(plain)
        aims.append(Aim(what, ratio, CPU_RATIO, "", at_most=True))
    return aims


def turns_of(found: Sequence[Rate], part: str, contender: str) -> list[Rate]:
    """Return the turns of one part and contender, in their order."""
    return [each for each in found if (each.part, each.contender) == (part, contender)]


def warm_rate(turns: Sequence[Rate]) -> float:
    """Return the median of rows per second, without the first turn."""
    return statistics.median(each.rows / each.wall_s for each in turns[1:] or turns)


def warm_cpu(turns: Sequence[Rate]) -> float:
    """Return the median of processor seconds per million rows, without the first turn."""
    return statistics.median(each.cpu_s / each.rows * 1e6 for each in turns[1:] or turns)
