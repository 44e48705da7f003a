"""Measures the two editions of the source and of the topic sink, without Spark.

Each turn runs in a process of its own (``source``, ``sink``). With another checkout
(``--against``), its native edition is compared instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench import cpu, programs, sink, source, targets
from bench.compare import Comparison, Figures, ratio_of, typical
from bench.load import program
from bench.report import Aim, Section
from bench.run import Run
from bench.targets import Target
from tidemill.spark.sinks.topic.delivery.at_least_once import SWITCH

EDITIONS = ("native", "librdkafka")
VALUE_BYTES = 100
AIM_ROWS = 3.0
AIM_RATIO = 0.25
SOURCE_FIGURES = {
    "rate": "M rows/s",
    "cpu_rate": "M rows/s of processor time",
    "broker_rate": "broker: M rows/s of processor time",
    "p50": "range of 10: p50 ms",
    "p99": "p99 ms",
    "cpu_ms": "processor ms",
}
SINK_FIGURES = {
    "rate": "M rows/s",
    "cpu_us": "µs of processor time a row",
    "once_rate": "exactly once: M rows/s",
    "once_us": "µs a row",
    "broker_us": "broker: µs a row",
    "next_p50": "next share of a task: p50 ms",
    "next_p99": "next p99 ms",
    "next_cpu_ms": "next processor ms",
    "first_p50": "first share of a task: p50 ms",
    "first_p99": "first p99 ms",
    "first_cpu_ms": "first processor ms",
}


def source_section(run: Run) -> Section:
    """Measure how a backlog and ranges of ten records are read."""
    records = max(2000, run.options.megabytes * 1_000_000 // VALUE_BYTES)

    def turn(target: Target, topic: str, name: str, checkout: Path | None) -> Figures:
        before = cpu.seconds(target.pid)
        arguments = (name, target.bootstrap, topic, records, source.RANGES)
        found = programs.result("bench.source", *arguments, checkout=checkout)
        broker = max(0.01, cpu.seconds(target.pid) - before)
        return _named(SOURCE_FIGURES, found | {"broker_rate": 3 * records / broker / 1e6})

    with targets.tidemill(run.options.folder) as target:
        target.prepare()
        topic = target.topic(1, b"")
        program("bulk", target, topic, count=records, size=VALUE_BYTES)
        compared, found = _compare(
            *(run, "The source without Spark", list(SOURCE_FIGURES.values()), source.NOTE),
            partial(turn, target, topic),
        )
    result = Section("source", [compared.table()], compared.regressions())
    if (rate := typical(found.get("native", ()), "M rows/s")) is not None:
        result.aims.append(Aim("source without Spark, 100 B", rate, AIM_ROWS, "M rows/s", False))
    return result


def sink_section(run: Run) -> Section:
    """Measure how many rows are written, and shares of ten rows."""
    records = max(20_000, run.options.megabytes * 1_000_000 // VALUE_BYTES)

    def turn(target: Target, name: str, checkout: Path | None) -> Figures:
        before = cpu.seconds(target.pid)
        arguments = (name, target.bootstrap, target.topic(2, b""), records, sink.SHARES)
        found = programs.result("bench.sink", *arguments, checkout=checkout, env={SWITCH: name})
        broker = cpu.seconds(target.pid) - before
        return _named(SINK_FIGURES, found | {"broker_us": 1e6 * broker / (2 * records)})

    with targets.tidemill(run.options.folder) as target:
        target.prepare()
        compared, found = _compare(
            *(run, "The topic sink without Spark", list(SINK_FIGURES.values()), sink.NOTE),
            partial(turn, target),
        )
    result = Section("sink", [compared.table()], compared.regressions())
    figure = "µs of processor time a row"
    native, other = found.get("native", ()), found.get("librdkafka", ())
    if (ratio := ratio_of(native, other, figure)) is not None:
        what = "processor time of a row in the sink, to that with librdkafka"
        result.aims.append(Aim(what, ratio, AIM_RATIO, "x", at_most=True))
    return result


def _named(names: dict[str, str], found: dict[str, float]) -> Figures:
    return {name: found[key] for key, name in names.items()}


def _compare(
    run: Run,
    title: str,
    figures: Sequence[str],
    note: str,
    turn: Callable[[str, Path | None], Figures],
) -> tuple[Comparison, dict[str, list[Figures]]]:
    """Let the editions take turns, or the native ones of two checkouts."""
    contenders: dict[str, Callable[[], Figures]] = {
        name: partial(turn, name, None) for name in EDITIONS
    }
    if run.options.against is not None:
        contenders = {
            name: partial(turn, "native", checkout) for name, checkout in run.versions.items()
        }
    compared = Comparison(run, title, figures, about=(), note=note)
    return compared, compared.measure((), contenders)
