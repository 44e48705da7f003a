"""``tidemill pipeline rebuild``: writes the sink of a query again, and switches it."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemill.cli import output
from tidemill.cli.options import LOCAL, Brokers, Json
from tidemill.cli.pipeline.run import (
    DEFAULT_DATA_DIR,
    DataDir,
    File,
    Master,
    PipelineName,
    Source,
    SourceFormat,
    SparkLog,
    report,
    run_options,
    running,
)
from tidemill.extras import require_extra

QueryName = Annotated[
    str, typer.Argument(metavar="QUERY", help="The query whose sink is written again.")
]


def rebuild(
    context: typer.Context,
    file: File,
    query: QueryName,
    master: Master = "local[2]",
    name: PipelineName = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    source_format: Source = SourceFormat.TIDEMILL,
    spark_log: SparkLog = None,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Write the sink of a query again from the beginning of its topics, beside the old one.

    When all records are read, the new table, index or prefix takes the place of the old one in one
    step, and the old one is removed. The next run of the pipeline continues from there. The
    pipeline may run until then; for the switch it must be stopped.

    After a crash or Ctrl-C, the same command continues.
    """
    require_extra("spark")
    from tidemill.cli.pipeline.file import load_pipeline
    from tidemill.spark.pipelines.check import check
    from tidemill.spark.pipelines.rebuild import Rebuild

    pipeline = load_pipeline(file, name)
    check(pipeline)
    options = run_options(context, pipeline, master, data_dir, source_format, spark_log, brokers)
    with running(options) as (stop, view):
        found = Rebuild(pipeline, query, options, view.show, view.warn).run(stop)
    report(list(found.statuses), as_json=as_json)
    if found.is_switched:
        output.note(f"Rebuilt {pipeline.name}/{query}.")
    else:
        output.note("Stopped before the switch. Run the command again: it continues.")
