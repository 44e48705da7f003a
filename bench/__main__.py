"""Runs ``python -m bench``: measures, prints ratios, and reports which aims are met."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import (
    cases,
    cold_reads,
    editions,
    followers,
    history,
    logins,
    machine,
    memory,
    parse,
    sql,
    startup,
    sync_rule,
)
from bench.cdc import section as cdc
from bench.direct import section as direct
from bench.eventstore import section as eventstore
from bench.http import deliveries, pages, posts
from bench.nexmark import section as nexmark
from bench.nexmark.queries import QUERIES
from bench.pipelines import section as pipelines
from bench.pipelines import start as pipeline_start
from bench.queues import deep as queues_deep
from bench.queues import latency as queues_latency
from bench.queues import section as queues
from bench.report import Report, Section, print_section, print_table, write_markdown
from bench.run import Options, Run
from bench.shares import section as shares

SECTIONS: dict[str, Callable[[Run], Section]] = {
    **cases.SECTIONS,
    "sync-rule": sync_rule.section,
    "cold-reads": cold_reads.section,
    "parse": parse.section,
    "source": editions.source_section,
    "sink": editions.sink_section,
    "pipelines-latency": pipelines.latency_section,
    "pipelines-rates": pipelines.rates_section,
    "pipeline-start": pipeline_start.section,
    "followers": followers.section,
    "nexmark": nexmark.section,
    "cdc": cdc.section,
    "http-deliveries": deliveries.section,
    "http-posts": posts.section,
    "console": pages.section,
    "queues": queues.section,
    "queues-latency": queues_latency.section,
    "queues-deep": queues_deep.section,
    "shares": shares.section,
    "direct": direct.section,
    "logins": logins.section,
    "eventstore": eventstore.section,
    "sql": sql.section,
    "memory": memory.section,
    "history": history.section,
    "startup": startup.section,
}
_BRIEF = "clients-brief"
GROUPS = {
    "clients": [name for name in SECTIONS if name.startswith("clients-") and name != _BRIEF],
    "http": [name for name in SECTIONS if name.startswith("http-")],
}
"""Names for several sections."""
_ALL = [name for name in SECTIONS if name != _BRIEF]
"""Without what repeats cases of other sections."""
_OWN = ("quick", "kafka", "against", "queries", "connector", "flink")
"""Options that are passed as they are given."""
SPARE_GB = 15
"""Free disk space that a run needs in addition to the history, in 10^9 bytes."""


def main() -> int:
    parser = _parser()
    args = parser.parse_args()
    if unknown := set(args.queries) - set(QUERIES):
        parser.error(f"unknown queries: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir=args.dir) as folder:
        run = Run(_options(args, Path(folder)))
        report = Report(machine.describe(Path(folder)))
        needed = (run.options.history_gb + (1 if run.options.quick else SPARE_GB)) * 1e9
        if shutil.disk_usage(folder).free < needed:
            print(f"error: {folder} needs {needed / 1e9:.0f} GB free", file=sys.stderr)
            return 1
        for name, value in report.machine.items():
            print(f"{name + ':':<13}{value}")
        if machine.file_system(Path(folder))[1] == "tmpfs":
            run.say("warning: this is a tmpfs, where a sync does nothing; choose a disk with --dir")
        for name in [each for given in args.only or _ALL for each in GROUPS.get(given, [given])]:
            began = time.monotonic()
            section = SECTIONS[name](run)
            section.seconds = round(time.monotonic() - began, 1)
            report.sections.append(section)
            print_section(section)
            run.say(f"{name}: {section.seconds:.0f} s")
    print_table(report.aims())
    if args.json:
        args.json.write_text(report.to_json())
    if args.markdown:
        write_markdown(args.markdown, report)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure tidemill, as ratios taken within one run."
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases, less data, ten minutes")
    parser.add_argument(
        "--only",
        action="append",
        choices=[*SECTIONS, *GROUPS],
        metavar="NAME",
        help=f"of {', '.join([*SECTIONS, *GROUPS])}",
    )
    parser.add_argument(
        "--kafka",
        action=argparse.BooleanOptionalAction,
        help="compare with Apache Kafka (KAFKA_HOME, or jars through Maven); default: if found",
    )
    parser.add_argument(
        "--connector",
        action=argparse.BooleanOptionalAction,
        help="compare with Spark's Kafka connector (through Maven, once); default: if found",
    )
    parser.add_argument(
        "--flink", type=Path, metavar="PYTHON", help="compare Nexmark with Flink: a Python with it"
    )
    parser.add_argument("--events", type=int, help="events of Nexmark (default 1000000)")
    parser.add_argument(
        "--queries",
        type=lambda text: tuple(text.split(",")),
        default=(),
        metavar="NAMES",
        help=f"queries of Nexmark, of {','.join(QUERIES)}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="write the tables to a file, between its bench markers if it has them",
    )
    parser.add_argument("--rounds", type=int, help="turns of each contender per case")
    parser.add_argument("--megabytes", type=int, help="data per turn, in 10^6 bytes")
    parser.add_argument("--history-gb", type=float, help="size of the large history (default 10)")
    parser.add_argument("--partitions", type=int, help="many partitions (default 5000)")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="another checkout, whose broker and programs are compared with those of this one",
    )
    parser.add_argument("--dir", type=Path, help="where data goes; default: the temporary folder")
    return parser


def _options(args: argparse.Namespace, folder: Path) -> Options:
    """Return the options of a run. Those that are not given depend on ``--quick``."""
    defaults = {
        "rounds": (3, 2),
        "megabytes": (128, 48),
        "history_gb": (10.0, 1.0),
        "partitions": (5000, 500),
        "events": (1_000_000, 50_000),
    }
    given = {name: getattr(args, name) for name in (*defaults, *_OWN)}
    for name, pair in defaults.items():
        if given[name] is None:
            given[name] = pair[args.quick]
    return Options(folder=folder, **given)


if __name__ == "__main__":
    sys.exit(main())
