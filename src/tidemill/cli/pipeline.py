"""``tidemill pipeline``: run a pipeline's file, see how pipelines are doing, start them afresh."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import output
from tidemill.cli.client import BOOTSTRAP_DEFAULT, Bootstrap, Cluster, DryRun, Json, Property, Yes
from tidemill.cli.pipeline_status import as_dict, emit, fields_of, troubles, with_lag_now
from tidemill.cli.positions import Kind, parse
from tidemill.errors import TidemillError

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
    context: typer.Context,
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
            help="Where queries without a checkpoint begin: beginning, end, a time "
            "(2026-11-20T10:00Z) or @milliseconds; default: as the streams say.",
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
            help="What Spark prints; default: spark.log in the pipeline's folder. That of the last "
            "run is kept, with .1 behind its name.",
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
    created.

    The exit code is 0 when it was stopped or has caught up, also if queries were started again
    meanwhile: their last errors are told on stderr. It is 1 when a query failed for good.
    """
    from tidemill.cli.pipeline_file import load_pipeline
    from tidemill.cli.pipeline_view import view_for
    from tidemill.spark.pipeline_check import check
    from tidemill.spark.runner import Runner, RunOptions, find_error
    from tidemill.spark.session import is_master

    pipeline = load_pipeline(file, name)
    check(pipeline)
    starting = _starting(start_at)
    if not is_master(master):
        raise output.UsageError(
            f"--master {master}: Spark knows no such master",
            hint="local[2], local[*], spark://host:7077, yarn or k8s://https://host:443.",
        )
    # A pipeline that names its brokers means them, unless it is told otherwise, here or in the
    # environment.
    if pipeline.bootstrap_servers and not _is_given(context, "servers"):
        servers = pipeline.bootstrap_servers
    cluster = Cluster.at(servers, properties)
    state = _state(data_dir)
    log = _log_file(spark_log, state / pipeline.name / "spark.log")
    options = RunOptions(
        bootstrap_servers=servers,
        state=state,
        master=master,
        until_caught_up=until_caught_up,
        starting=starting,
        kafka=cluster.properties,
        log_file=log,
        source_format=source_format.value,
    )
    stop = threading.Event()
    _stop_on_signals(stop)
    output.note(f"Spark is starting; what it prints goes to {log}.")
    with view_for(sys.stderr) as view:
        statuses = Runner(pipeline, options, view.show, view.warn).run(stop)
    if as_json:
        output.emit_json([as_dict(status) for status in statuses])
    else:
        emit(statuses)
    for line in troubles(statuses):
        print(line, file=sys.stderr)
    error = find_error(statuses)
    if error is not None:
        raise error


@app.command("list", short_help="List the pipelines that have run, a line per query.")
def list_pipelines(
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """List the pipelines that have run against these brokers, a line per query.

    ROWS and LATE count from the start of the last run.
    """
    statuses = _statuses(servers, properties, None)
    if as_json:
        output.emit_json([as_dict(status) for status in statuses])
    else:
        emit(statuses, with_pipeline=True)
    if not statuses:
        output.note("No pipeline has run here. Begin with: tidemill pipeline run FILE")


@app.command(short_help="Show a pipeline's queries: lag, speed, state, last error.")
def describe(
    name: Name,
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Show a pipeline's queries: sources, sink, watermark, lag, speed, state, the last error.

    Rows and late rows count from the start of the last run.
    """
    statuses = _statuses(servers, properties, name)
    if not statuses:
        raise _not_found(name)
    if as_json:
        output.emit_json([as_dict(status) for status in statuses])
        return
    for number, status in enumerate(statuses):
        if number:
            print()
        output.emit_fields(fields_of(status))


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
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Forget checkpoints: the next run begins where the streams say, and writes anew.

    What was written stays where it is. What the brokers tell of the queries is forgotten, too, as
    far as one answers.
    """
    from tidemill.spark.checkpoint import Checkpoint, PipelineLock, queries_of

    state = _state(data_dir)
    known = queries_of(state, name)
    chosen = [each for each in known if query in (None, each)]
    if not chosen:
        raise _no_checkpoint(state, name, query, known)
    if dry_run:
        for each in chosen:
            print(f"would reset {name}/{each}")
        return
    with PipelineLock(state, name):
        output.confirm(f"Forget the progress of {', '.join(chosen)}?", yes=yes)
        for each in chosen:
            Checkpoint(state, name, each).remove()
            print(f"reset {name}/{each}")
        _forget(servers, properties, [f"{name}/{each}" for each in chosen])


def _is_given(context: typer.Context, parameter: str) -> bool:
    """Whether the command line or the environment sets a parameter, be it to its default."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")


def _state(data_dir: Path) -> Path:
    """The folder of all checkpoints.

    Raises:
        UsageError: the data folder is a file.
    """
    if data_dir.exists() and not data_dir.is_dir():
        raise output.UsageError(f"--data-dir {data_dir} is no folder")
    return data_dir.resolve() / "pipelines"


def _log_file(given: Path | None, own: Path) -> Path:
    """Where Spark's log goes.

    Raises:
        UsageError: it can't be there.
    """
    if given is None:
        own.parent.mkdir(parents=True, exist_ok=True)
        return own
    if not given.parent.is_dir():
        raise output.UsageError(f"--spark-log {given}: there is no folder {given.parent}")
    if given.is_dir():
        raise output.UsageError(f"--spark-log {given} is a folder")
    return given


def _starting(text: str | None) -> Starting | None:
    if text is None:
        return None
    try:
        position = parse(text, "--from")
    except output.UsageError:
        position = None
    if position is not None and position.kind is Kind.BEGINNING:
        return "earliest"
    if position is not None and position.kind is Kind.END:
        return "latest"
    if position is not None and position.kind is Kind.TIME:
        return position.value
    raise output.UsageError(
        f"--from {text}: no place where a pipeline can begin",
        hint="beginning, end, a time (2026-11-20T10:00Z; UTC unless it says otherwise) or "
        "@milliseconds.",
    )


def _statuses(servers: str, properties: list[str] | None, name: str | None) -> list[QueryStatus]:
    from tidemill.spark.status_topic import read_statuses

    cluster = Cluster.at(servers, properties)
    kafka = {"bootstrap.servers": servers, **cluster.properties}
    return with_lag_now(read_statuses(kafka, name), cluster)


def _forget(servers: str, properties: list[str] | None, keys: Sequence[str]) -> None:
    from tidemill.spark.status_topic import forget_statuses

    try:
        cluster = Cluster.at(servers, properties)
        forget_statuses({"bootstrap.servers": servers, **cluster.properties}, keys)
    except TidemillError as error:
        output.note(f"pipeline list goes on telling of what was: {error}.")


def _not_found(name: str) -> output.NotFoundError:
    return output.NotFoundError(
        f"no pipeline {name} has run against these brokers",
        hint="See them with: tidemill pipeline list",
    )


def _no_checkpoint(
    state: Path, name: str, query: str | None, known: Sequence[str]
) -> output.NotFoundError:
    if query is not None and known:
        message = f"query {query} of pipeline {name} has no checkpoint in {state}"
        return output.NotFoundError(message, hint=f"It has: {', '.join(known)}.")
    from tidemill.spark.checkpoint import queries_of

    folders = sorted(each.name for each in state.iterdir()) if state.is_dir() else []
    there = [each for each in folders if queries_of(state, each)]
    others = f"It has those of: {', '.join(there)}." if there else "There are none."
    return output.NotFoundError(
        f"pipeline {name} has no checkpoint in {state}",
        hint=f"{others} Was it run with another --data-dir?",
    )


def _stop_on_signals(stop: threading.Event) -> None:
    """The first signal ends the pipeline in order, the second one at once."""

    def end(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise SystemExit(128 + number)
        output.note("Stopping; once more to stop at once.")
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
