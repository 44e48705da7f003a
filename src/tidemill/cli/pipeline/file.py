"""Loads the Python file that declares a pipeline, and reports errors with their line.

This module must not know how a pipeline runs.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill import extras
from tidemill.cli.output import UsageError
from tidemill.errors import TidemillError
from tidemill.spark.errors import PipelineError

if TYPE_CHECKING:
    from tidemill.spark.pipelines.declared import Pipeline


_NO_SPARK_YET = (
    "Spark starts after the file was read and checked: put code that needs Spark (columns, a udf "
    "with its type as text) inside the query's function."
)


def load_pipeline(file: Path, name: str | None = None) -> Pipeline:
    """Run a file and return the pipeline that it declares; ``name`` chooses one of several.

    The file's folder is on the path for its imports. Its errors are shown with their lines.
    """
    if file.is_dir():
        raise UsageError(f"{file} is a folder", hint="Use the file that declares the pipeline.")
    if not file.is_file():
        raise UsageError(f"file {file} does not exist")
    from tidemill.spark.pipelines.declared import Pipeline

    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        content = runpy.run_path(str(file))
    except TidemillError as error:
        raise PipelineError(f"{_where(file, error)}: {error}", hint=error.hint) from error
    except SyntaxError as error:
        raise PipelineError(f"{error.filename}:{error.lineno}: {error.msg}") from error
    except SystemExit as error:
        why = error.code if isinstance(error.code, str) else f"exit code {error.code or 0}"
        raise PipelineError(f"{_where(file, error)}: the file exits the program: {why}") from error
    except Exception as error:
        message = f"{_where(file, error)}: {type(error).__name__}: {error}".removesuffix(": ")
        hint = _NO_SPARK_YET if _comes_from_spark(error) else ""
        extra = extras.extra_of(error.name) if isinstance(error, ImportError) else None
        if extra is not None:
            hint = f"Install it: {extras.how_to_install(extra)}."
        raise PipelineError(message, hint=hint) from error
    found = {id(each): each for each in content.values() if isinstance(each, Pipeline)}
    pipelines = list(found.values())
    names = ", ".join(each.name for each in pipelines)
    if not pipelines:
        raise UsageError(
            f"{file} does not declare a pipeline",
            hint='It needs a line like: p = Pipeline("flights")',
        )
    if name is None:
        if len(pipelines) > 1:
            raise UsageError(
                f"{file} declares several pipelines: {names}", hint="Choose one with --pipeline."
            )
        return pipelines[0]
    for each in pipelines:
        if each.name == name:
            return each
    raise UsageError(f"{file} does not declare pipeline {name}", hint=f"It declares: {names}.")


def _comes_from_spark(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "pyspark" in Path(frames[-1].filename).parts


def _where(file: Path, error: BaseException) -> str:
    """Return the file and the line in it that led to the error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) == file]
    return f"{file}:{own[-1].lineno}" if own else str(file)
