"""``tidemill pipeline``: run a pipeline's file, see how pipelines are doing, start them afresh."""

from __future__ import annotations

import signal
import sys
import threading
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import output
from tidemill.cli.client import BOOTSTRAP_DEFAULT, Bootstrap, Cluster, DryRun, Json, Property, Yes
from tidemill.cli.positions import Kind, parse

if TYPE_CHECKING:
    from tidemill.spark.pipeline import Starting
    from tidemill.spark.progress import QueryStatus

app = typer.Typer(
    help="Pipelines on Spark: run, list, describe, reset.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

DEFAULT_DATA_DIR = Path("tidemill-data")

DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        envvar="TIDEMILL_DATA_DIR",
        help="Folder whose subfolder pipelines holds the checkpoints.",
    ),
]


class SourceFormat(StrEnum):
    """What reads the streams."""

    TIDEMILL = "tidemill"
    KAFKA = "kafka"


Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline.")]


@app.command()
def run(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Python file that declares the pipeline.")
    ],
    until_caught_up: Annotated[
        bool,
        typer.Option("--until-caught-up", help="End when all that is there now has been read."),
    ] = False,
    master: Annotated[
        str, typer.Option("--master", metavar="URL", help="Spark's master, e.g. spark://host:7077.")
    ] = "local[2]",
    start_at: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="Where queries without a checkpoint begin: earliest, latest, a time or "
            "@milliseconds; default: as the streams say.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--pipeline",
            metavar="NAME",
            help="Which one, where the file declares several.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    source_format: Annotated[
        SourceFormat,
        typer.Option(
            help="What reads the topics: tidemill's source, or Spark's own, which needs its jar.",
        ),
    ] = SourceFormat.TIDEMILL,
    spark_log: Annotated[
        Path | None,
        typer.Option(
            "--spark-log",
            metavar="FILE",
            help="What Spark prints; default: spark.log in the pipeline's folder.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Run a pipeline until Ctrl-C, or until it has caught up.

    Checks the whole file first; nothing starts while there is a mistake in it. A query that fails
    is started again from its checkpoint, after a pause that grows. Topics that are missing are
    created. The exit code is 0 only if no query failed for good.
    """
    from tidemill.cli.pipeline_file import load_pipeline
    from tidemill.cli.pipeline_view import view_for
    from tidemill.spark.pipeline_check import check
    from tidemill.spark.runner import Runner, RunOptions, find_error

    pipeline = load_pipeline(file, name)
    check(pipeline)
    # A pipeline that names its brokers means them, unless the command line says otherwise.
    if servers == BOOTSTRAP_DEFAULT and pipeline.bootstrap_servers:
        servers = pipeline.bootstrap_servers
    cluster = Cluster.at(servers, properties)
    state = data_dir.resolve() / "pipelines"
    log = spark_log or state / pipeline.name / "spark.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    options = RunOptions(
        bootstrap_servers=servers,
        state=state,
        master=master,
        until_caught_up=until_caught_up,
        starting=_starting(start_at),
        kafka=cluster.properties,
        log_file=log,
        source_format=source_format.value,
    )
    stop = threading.Event()
    _stop_on_signals(stop)
    output.note(f"Spark is starting; what it prints goes to {log}.")
    with view_for(sys.stderr) as view:
        statuses = Runner(pipeline, options, view.show).run(stop)
    if as_json:
        output.emit_json([_as_dict(status) for status in statuses])
    else:
        _emit(statuses)
    error = find_error(statuses)
    if error is not None:
        raise error


@app.command("list", short_help="List the pipelines that have run, a line per query.")
def list_pipelines(
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """List the pipelines that have run against these brokers, a line per query."""
    statuses = _statuses(servers, properties, None)
    if as_json:
        output.emit_json([_as_dict(status) for status in statuses])
    else:
        _emit(statuses, with_pipeline=True)
    if not statuses:
        output.note("No pipeline has run here. Begin with: tidemill pipeline run FILE")


@app.command(short_help="Show a pipeline's queries: lag, speed, state, last error.")
def describe(
    name: Name,
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Show a pipeline's queries: sources, sink, watermark, lag, speed, state, the last error."""
    statuses = _statuses(servers, properties, name)
    if not statuses:
        raise _not_found(name)
    if as_json:
        output.emit_json([_as_dict(status) for status in statuses])
        return
    for number, status in enumerate(statuses):
        if number:
            print()
        output.emit_fields(_fields(status))


@app.command(short_help="Forget checkpoints: the next run begins anew.")
def reset(
    name: Name,
    query: Annotated[
        str | None,
        typer.Option(
            "--query",
            metavar="QUERY",
            help="Only this query; default: all of the pipeline.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Forget checkpoints: the next run begins where the streams say, and writes anew.

    What was written stays where it is.
    """
    from tidemill.spark.checkpoint import Checkpoint, PipelineLock, queries_of

    state = data_dir.resolve() / "pipelines"
    known = queries_of(state, name)
    chosen = [each for each in known if query in (None, each)]
    if not chosen:
        what = f"query {query} of pipeline {name}" if query and known else f"pipeline {name}"
        raise _not_found(name, f"{what} has no checkpoint in {state}")
    if dry_run:
        for each in chosen:
            print(f"would reset {name}/{each}")
        return
    with PipelineLock(state, name):
        output.confirm(f"Forget the progress of {', '.join(chosen)}?", yes=yes)
        for each in chosen:
            Checkpoint(state, name, each).remove()
            print(f"reset {name}/{each}")


def _starting(text: str | None) -> Starting | None:
    if text is None:
        return None
    position = parse(text, "--from")
    if position.kind is Kind.BEGINNING:
        return "earliest"
    if position.kind is Kind.END:
        return "latest"
    if position.kind is Kind.TIME:
        return position.value
    raise output.UsageError(
        f"--from {text}: a pipeline begins at earliest, latest or a time",
        hint="For example --from 2026-11-20T10:00Z.",
    )


def _statuses(servers: str, properties: list[str] | None, name: str | None) -> list[QueryStatus]:
    from tidemill.spark.status_topic import read_statuses

    cluster = Cluster.at(servers, properties)
    return read_statuses({"bootstrap.servers": servers, **cluster.properties}, name)


def _not_found(name: str, message: str = "") -> output.NotFoundError:
    return output.NotFoundError(
        message or f"no pipeline {name} has run against these brokers",
        hint="See them with: tidemill pipeline list",
    )


def _emit(statuses: list[QueryStatus], *, with_pipeline: bool = False) -> None:
    headers = ["QUERY", "STATE", "BATCH", "ROWS", "ROWS/S", "LAG", "LATE", "STATE ROWS", "LATENCY"]
    rows = [
        [
            status.key if with_pipeline else status.query,
            _state(status),
            status.batch if status.batch >= 0 else None,
            status.rows,
            round(status.rows_per_second),
            _lag(status),
            status.late_rows,
            status.state_rows,
            output.duration_text(status.latency_p50_ms),
        ]
        for status in statuses
    ]
    output.emit_table(headers, rows)


def _state(status: QueryStatus) -> str:
    """As it was last told; lost, where whoever ran it has long been silent."""
    return "lost" if status.is_lost(datetime.now(UTC)) else status.state


def _lag(status: QueryStatus) -> int | None:
    lags = [source.lag for source in status.sources]
    return None if not lags or -1 in lags else sum(lags)


def _fields(status: QueryStatus) -> list[tuple[str, object]]:
    p50, p99 = status.latency_p50_ms, status.latency_p99_ms
    latency = (
        None
        if p50 is None
        else f"{output.duration_text(p50)} (half), {output.duration_text(p99)} (99 of 100)"
    )
    sources = ", ".join(
        source.topic if source.lag < 0 else f"{source.topic} ({source.lag} behind)"
        for source in status.sources
    )
    return [
        ("query", status.key),
        ("state", _state(status)),
        ("sources", sources or None),
        ("sink", status.sink),
        ("mode", status.mode),
        ("batch", status.batch if status.batch >= 0 else None),
        ("rows", status.rows),
        ("rows/s", round(status.rows_per_second)),
        ("watermark", status.watermark),
        ("late rows", status.late_rows),
        ("state rows", status.state_rows),
        ("batch took", output.duration_text(status.batch_ms)),
        ("latency", latency),
        ("restarts", status.restarts),
        ("last error", status.error),
        ("updated", status.updated),
    ]


def _as_dict(status: QueryStatus) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(status) | {"state": _state(status)}


def _stop_on_signals(stop: threading.Event) -> None:
    """The first signal ends the pipeline in order, the second one at once."""

    def end(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise SystemExit(128 + number)
        output.note("Stopping; once more to stop at once.")
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
