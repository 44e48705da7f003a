"""Measures pipelines on Spark: latency from a record to its result, and the source and sink alone.

Spark runs in its own process (``client``). Each latency is that of one record without other load,
from before it is produced until a reader of committed records has its result. It includes the wait
for the next trigger.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench import connector, programs, targets
from bench.compare import Comparison, Figures, ratio_of, typical
from bench.load import program
from bench.pipelines.results import PLAIN, QUERIES, TIDEMILL, TRIGGERS, Latency, Rate, Settings
from bench.report import Aim, Section
from bench.run import Run, percentile
from bench.targets import Target

LATENCY_NOTE = (
    "One record after the other, into a topic, through Spark (local[2]), into another topic, read "
    "with read_committed. tidemill writes exactly once, plain Spark at least once. Windowed: the "
    "current count of a tumbling window, in update mode."
)
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
RATE_FIGURES = ("warm rows/s", "warm CPU s per 10^6 rows")
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
        found = client(run, given)
    title = "Pipelines: latency from append to result"
    about, figures = ("query, trigger",), ["p50 ms", "p99 ms"]
    compared = Comparison(
        run, title, figures, about=about, base=PLAIN, by=["p99 ms"], note=LATENCY_NOTE
    )
    for case, of in found.items():
        compared.add([case], of)
    return Section(name, [compared.table()], latency_aims(found))


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
        found = client(run, given)
    title, figures = "Pipelines: source and sink alone", ["first rows/s", *RATE_FIGURES]
    compared = Comparison(
        run, title, figures, about=("part",), base=PLAIN, by=RATE_FIGURES, note=RATE_NOTE
    )
    for case, of in found.items():
        compared.add([case], of)
    return Section(name, [compared.table()], rate_aims(found))


def of_versions(
    run: Run, name: str, settings: Callable[[Target, int, list[str]], Settings]
) -> Section:
    """Compare pipelines of another checkout with those of this one.

    A turn has a broker and a client of its own. Of the two runs of a part, the second one counts.
    """

    def turn(checkout: Path | None) -> Figures:
        with targets.of_version(run.options.folder, checkout) as target:
            found = client(run, settings(target, 1, []), checkout)
        return {
            f"{case}: {name}": value
            for case, of in found.items()
            for name, value in of[TIDEMILL][-1].items()
        }

    if name == "pipelines-latency":
        cases = [f"{query}, {trigger}" for query in QUERIES for trigger in TRIGGERS]
        figures = [f"{case}: p50 ms" for case in cases]
    else:
        figures = [f"{part}: {kind}" for part in PARTS for kind in RATE_FIGURES]
    compared = Comparison(run, f"Versions: {name}", figures, about=())
    compared.measure((), {who: partial(turn, each) for who, each in run.versions.items()})
    return Section(name, [compared.table()], compared.regressions())


def client(
    run: Run, settings: Settings, checkout: Path | None = None
) -> dict[str, dict[str, list[Figures]]]:
    """Run ``client`` and return its results: case -> contender -> the figures of its turns.

    Raises:
        RuntimeError: It failed; its traceback is on stderr.
    """
    found: dict[str, dict[str, list[Figures]]] = {}
    for fields in programs.lines(
        "bench.pipelines.client", json.dumps(dataclasses.asdict(settings)), checkout=checkout
    ):
        if fields.pop("kind") == "Latency":
            latency = Latency(**fields)
            case, who = f"{latency.query}, {latency.trigger}", latency.contender
            figures = {f"p{at} ms": percentile(latency.seconds, at) * 1e3 for at in (50, 99)}
        else:
            rate = Rate(**fields)
            case, who = rate.part, rate.contender
            figures = rate_figures(rate, is_first=who not in found.get(case, {}))
        run.say(f"{case}, {who}: {figures}")
        found.setdefault(case, {}).setdefault(who, []).append(figures)
    return found


def rate_figures(rate: Rate, *, is_first: bool) -> dict[str, float]:
    """Return the figures of a turn. Of the first one in a JVM, there is only its rate."""
    if is_first:
        return {"first rows/s": rate.rows / rate.wall_s}
    return {RATE_FIGURES[0]: rate.rows / rate.wall_s, RATE_FIGURES[1]: rate.cpu_s / rate.rows * 1e6}


def latency_aims(found: Mapping[str, Mapping[str, Sequence[Figures]]]) -> list[Aim]:
    """Return the aims: p50 at a trigger of 0, and p99 not above plain Spark's."""
    aims = []
    for query in QUERIES:
        p50 = typical(found[f"{query}, {TRIGGERS[0]}"][TIDEMILL], "p50 ms")
        what = f"latency from append to result, {query} query, trigger of 0, p50"
        aims.append(Aim(what, p50 or 0.0, P50_MS[query], "ms", at_most=True))
    for case, of in found.items():
        ours, theirs = (typical(of.get(who, ()), "p99 ms") for who in (TIDEMILL, PLAIN))
        if ours is not None and theirs is not None:
            what = f"latency, {case}, p99: that of plain Spark"
            aims.append(Aim(what, ours, theirs, "ms", at_most=True))
    return aims


def rate_aims(found: Mapping[str, Mapping[str, Sequence[Figures]]]) -> list[Aim]:
    """Return the aims of the source: its rate, and its processor time to the connector's."""
    of = found["source, streaming"]
    rate, cost = RATE_FIGURES
    what = f"source of pipelines, rows/s of one task, {SIZE} B"
    aims = [Aim(what, typical(of[TIDEMILL], rate) or 0.0, ROWS_PER_SECOND, "", at_most=False)]
    if (ratio := ratio_of(of[TIDEMILL], of.get(PLAIN, ()), cost)) is not None:
        what = "CPU of the source to that of Spark's connector, streaming"
        aims.append(Aim(what, ratio, CPU_RATIO, "", at_most=True))
    return aims
