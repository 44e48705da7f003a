"""Loads the Python file that declares a pipeline, and says what is wrong with it, by its lines."""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli.output import UsageError
from tidemill.errors import PipelineError, TidemillError

if TYPE_CHECKING:
    from tidemill.spark.pipeline import Pipeline


_NO_SPARK_YET = (
    "Spark starts when the file has been read and checked: write what needs it (columns, a udf "
    "with its type as a text) inside of the query's function."
)


def load_pipeline(file: Path, name: str | None = None) -> Pipeline:
    """The pipeline that a file declares.

    Args:
        file: run as a module; its own folder is on the path for its imports.
        name: which one, where there are several.

    Raises:
        UsageError: there is no such file, or it declares no such pipeline.
        PipelineError: it raises an error; names the line.
    """
    if file.is_dir():
        raise UsageError(f"{file} is a folder", hint="Name the file that declares the pipeline.")
    if not file.is_file():
        raise UsageError(f"there is no file {file}")
    from tidemill.spark.pipeline import Pipeline

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
        raise PipelineError(f"{_where(file, error)}: the file ends the program: {why}") from error
    except Exception as error:
        told = f"{_where(file, error)}: {type(error).__name__}: {error}".removesuffix(": ")
        hint = _NO_SPARK_YET if _is_of_spark(error) else ""
        raise PipelineError(told, hint=hint) from error
    found = {id(each): each for each in content.values() if isinstance(each, Pipeline)}
    pipelines = list(found.values())
    names = ", ".join(each.name for each in pipelines)
    if not pipelines:
        raise UsageError(
            f"{file} declares no pipeline", hint='It needs a line like: p = Pipeline("flights")'
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
    raise UsageError(f"{file} declares no pipeline {name}", hint=f"It declares: {names}.")


def _is_of_spark(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "pyspark" in Path(frames[-1].filename).parts


def _where(file: Path, error: BaseException) -> str:
    """The line of the user's file that led to the error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) == file]
    return f"{file}:{own[-1].lineno}" if own else str(file)
