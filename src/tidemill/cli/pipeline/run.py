"""``tidemill pipeline run``: runs the pipeline that a Python file declares."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import output
from tidemill.cli.client import Cluster
from tidemill.cli.options import LOCAL, Brokers, Json, is_given
from tidemill.cli.pipeline.status import as_dict, emit, troubles
from tidemill.cli.positions import parse
from tidemill.cli.stopping import SIGNALS, event_of_signals
from tidemill.extras import require_extra
from tidemill.positions import Kind

if TYPE_CHECKING:
    from tidemill.cli.pipeline.view import LineView, LiveView
    from tidemill.spark.pipelines.declared import Pipeline, Starting
    from tidemill.spark.pipelines.progress import QueryStatus
    from tidemill.spark.pipelines.runner import RunOptions


class SourceFormat(StrEnum):
    """The Spark source that reads the streams."""

    TIDEMILL = "tidemill"
    KAFKA = "kafka"


File = Annotated[
    Path, typer.Argument(metavar="FILE", help="Python file that declares the pipeline.")
]
DEFAULT_DATA_DIR = Path("tidemill-data")

DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        envvar="TIDEMILL_DATA_DIR",
        help="Data folder. Its subfolder pipelines contains the checkpoints.",
    ),
]
UntilCaughtUp = Annotated[
    bool,
    typer.Option("--until-caught-up", help="Stop after all records that are there now are read."),
]
Master = Annotated[
    str, typer.Option("--master", metavar="URL", help="Spark's master, e.g. spark://host:7077.")
]
StartAt = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="POSITION",
        help="Where queries without a checkpoint start: beginning, end, a time "
        "(2026-11-20T10:00Z) or @milliseconds; default: as the streams declare.",
        show_default=False,
    ),
]
PipelineName = Annotated[
    str | None,
    typer.Option(
        "--pipeline",
        metavar="NAME",
        help="The pipeline to run, if the file declares several.",
        show_default=False,
    ),
]
Source = Annotated[
    SourceFormat,
    typer.Option(
        "--source-format",
        help="Spark source for the topics: tidemill's, or Spark's own, which needs its JAR.",
    ),
]
SparkLog = Annotated[
    Path | None,
    typer.Option(
        "--spark-log",
        metavar="FILE",
        help="File for Spark's output; default: spark.log in the pipeline's folder. The file of "
        "the last run is kept, with .1 after its name.",
        show_default=False,
    ),
]


def run(
    context: typer.Context,
    file: File,
    until_caught_up: UntilCaughtUp = False,
    master: Master = "local[2]",
    start_at: StartAt = None,
    name: PipelineName = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    source_format: Source = SourceFormat.TIDEMILL,
    spark_log: SparkLog = None,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Run a pipeline until Ctrl-C, or until it has caught up.

    Checks the whole file first, and starts nothing if it finds a mistake. Creates missing topics. A
    query that fails is restarted from its checkpoint after a pause, which grows.

    The exit code is 0 after a stop or when the pipeline has caught up, also if queries were
    restarted: their last errors are on stderr. It is 1 if a query failed for good.
    """
    require_extra("spark")
    from tidemill.cli.pipeline.file import load_pipeline
    from tidemill.spark.pipelines.check import check

    pipeline = load_pipeline(file, name)
    check(pipeline)
    starting = _starting(start_at)
    options = replace(
        run_options(context, pipeline, master, data_dir, source_format, spark_log, brokers),
        until_caught_up=until_caught_up,
        starting=starting,
    )
    from tidemill.spark.pipelines.runner import Runner

    with running(options) as (stop, view):
        statuses = list(Runner(pipeline, options, view.show, view.warn).run(stop))
    report(statuses, as_json=as_json)


def run_options(
    context: typer.Context,
    pipeline: Pipeline,
    master: str,
    data_dir: Path,
    source_format: SourceFormat,
    spark_log: Path | None,
    brokers: Brokers,
) -> RunOptions:
    """Return the settings that ``run`` and ``rebuild`` have in common."""
    from tidemill.spark.pipelines.runner import RunOptions

    _check_master(master)
    # The brokers that a pipeline declares count, unless the command line or the environment names
    # others.
    if pipeline.bootstrap_servers and not is_given(context, "servers"):
        brokers = replace(brokers, servers=pipeline.bootstrap_servers)
    cluster = Cluster.at(brokers)
    state = state_folder(data_dir)
    return RunOptions(
        bootstrap_servers=cluster.servers,
        state=state,
        master=master,
        kafka=cluster.properties,
        log_file=_log_file(spark_log, state / pipeline.name / "spark.log"),
        source_format=source_format.value,
    )


def state_folder(data_dir: Path) -> Path:
    """Return the folder with all checkpoints."""
    if data_dir.exists() and not data_dir.is_dir():
        raise output.UsageError(f"--data-dir {data_dir} is not a folder")
    return data_dir.resolve() / "pipelines"


@contextmanager
def running(options: RunOptions) -> Iterator[tuple[threading.Event, LineView | LiveView]]:
    """Give an event that signals set, and a view of the queries, which is closed at the end.

    The first signal stops the pipeline cleanly, the second one immediately.
    """
    from tidemill.cli.pipeline.view import view_for

    def end(number: int) -> None:
        raise SystemExit(128 + number)

    stop = event_of_signals(
        (*SIGNALS, signal.SIGHUP),
        first=lambda: output.note("Stopping cleanly. A second Ctrl-C stops it immediately."),
        again=end,
    )
    output.note(f"Spark is starting. Its output goes to {options.log_file}.")
    with view_for(sys.stderr) as view:
        yield stop, view


def report(statuses: list[QueryStatus], *, as_json: bool) -> None:
    """Print the final statuses."""
    from tidemill.spark.pipelines.runner import find_error

    if as_json:
        output.emit_json([as_dict(status) for status in statuses])
    else:
        emit(statuses)
    for line in troubles(statuses):
        print(line, file=sys.stderr)
    error = find_error(statuses)
    if error is not None:
        raise error


def _check_master(master: str) -> None:
    from tidemill.spark.base.session import is_master

    if not is_master(master):
        raise output.UsageError(
            f"--master {master}: invalid Spark master",
            hint="Use local[2], local[*], spark://host:7077, yarn or k8s://https://host:443.",
        )


def _log_file(given: Path | None, own: Path) -> Path:
    """Return the file for Spark's output: the given one, or ``own``, whose folder is created."""
    if given is None:
        own.parent.mkdir(parents=True, exist_ok=True)
        return own
    if not given.parent.is_dir():
        raise output.UsageError(f"--spark-log {given}: folder {given.parent} does not exist")
    if given.is_dir():
        raise output.UsageError(f"--spark-log {given} is a folder")
    return given


def _starting(text: str | None) -> Starting | None:
    """Return the start for queries without a checkpoint; None: as the streams declare."""
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
        f"--from {text}: invalid start of a pipeline",
        hint="Use beginning, end, a time (2026-11-20T10:00Z; UTC if it has no time zone) or "
        "@milliseconds.",
    )
