"""``tidemill pipeline``: lists, describes and resets pipelines.

``run`` and ``rebuild`` have their own modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import output
from tidemill.cli.client import Cluster
from tidemill.cli.options import LOCAL, Brokers, DryRun, Json, Yes, command_group
from tidemill.cli.pipeline.rebuild import rebuild
from tidemill.cli.pipeline.run import DEFAULT_DATA_DIR, DataDir, run, state_folder
from tidemill.cli.pipeline.status import as_dict, emit, fields_of, with_lag_now
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.spark.pipelines.progress import QueryStatus

app = command_group("Run, list, describe, reset and rebuild pipelines on Spark.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline.")]


app.command()(run)
app.command(short_help="Write a query's sink again from the beginning, then switch it.")(rebuild)


@app.command("list", short_help="List the pipelines that have run, with a line per query.")
def list_pipelines(as_json: Json = False, brokers: Brokers = LOCAL) -> None:
    """List the pipelines that have run against these brokers, with a line per query.

    ROWS and LATE are counted since the start of the last run.
    """
    statuses = _statuses(brokers, None)
    if as_json:
        output.emit_json([as_dict(status) for status in statuses])
    else:
        emit(statuses, with_pipeline=True)
    if not statuses:
        output.note("No pipeline has run here. Run one: tidemill pipeline run FILE")


@app.command(short_help="Show a pipeline's queries: lag, speed, state, last error.")
def describe(name: Name, as_json: Json = False, brokers: Brokers = LOCAL) -> None:
    """Show a pipeline's queries: sources, sink, watermark, lag, speed, state and last error.

    Rows and late rows are counted since the start of the last run.
    """
    statuses = _statuses(brokers, name)
    if not statuses:
        raise _not_found(name)
    if as_json:
        output.emit_json([as_dict(status) for status in statuses])
        return
    for number, status in enumerate(statuses):
        if number:
            print()
        output.emit_fields(fields_of(status))


@app.command(short_help="Delete checkpoints: the next run starts from the beginning.")
def reset(
    name: Name,
    query: Annotated[
        str | None,
        typer.Option(
            "--query",
            metavar="QUERY",
            help="Only this query; default: all queries of the pipeline.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    yes: Yes = False,
    dry_run: DryRun = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Delete checkpoints: the next run starts where the streams declare, and writes again.

    Results that were written stay. The published statuses of the queries are deleted too, if a
    broker answers.
    """
    from tidemill.spark.pipelines.checkpoint import Checkpoint, PipelineLock, queries_of

    state = state_folder(data_dir)
    known = queries_of(state, name)
    chosen = [each for each in known if query in (None, each)]
    if not chosen:
        raise _no_checkpoint(state, name, query, known)
    if dry_run:
        for each in chosen:
            print(f"would reset {name}/{each}")
        return
    with PipelineLock(state, name):
        output.confirm(f"Delete the checkpoints of {', '.join(chosen)}?", yes=yes)
        for each in chosen:
            Checkpoint(state, name, each).remove()
            print(f"reset {name}/{each}")
        _forget(brokers, [f"{name}/{each}" for each in chosen])


def _statuses(brokers: Brokers, name: str | None) -> list[QueryStatus]:
    from tidemill.spark.pipelines.status_topic import read_statuses

    cluster = Cluster.at(brokers)
    kafka = {"bootstrap.servers": cluster.servers, **cluster.properties}
    return with_lag_now(read_statuses(kafka, name), cluster)


def _forget(brokers: Brokers, keys: Sequence[str]) -> None:
    from tidemill.spark.pipelines.status_topic import delete_statuses

    try:
        cluster = Cluster.at(brokers)
        delete_statuses({"bootstrap.servers": cluster.servers, **cluster.properties}, keys)
    except TidemillError as error:
        output.note(f"The old statuses stay in 'pipeline list': {error}.")


def _not_found(name: str) -> output.NotFoundError:
    return output.NotFoundError(
        f"pipeline {name} has not run against these brokers",
        hint="List the pipelines: tidemill pipeline list",
    )


def _no_checkpoint(
    state: Path, name: str, query: str | None, known: Sequence[str]
) -> output.NotFoundError:
    if query is not None and known:
        message = f"query {query} of pipeline {name} has no checkpoint in {state}"
        return output.NotFoundError(message, hint=f"These queries have one: {', '.join(known)}.")
    from tidemill.spark.pipelines.checkpoint import queries_of

    folders = sorted(each.name for each in state.iterdir()) if state.is_dir() else []
    there = [each for each in folders if queries_of(state, each)]
    others = f"There are those of: {', '.join(there)}." if there else "The folder has none."
    return output.NotFoundError(
        f"pipeline {name} has no checkpoint in {state}",
        hint=f"{others} Was it run with another --data-dir?",
    )
