"""The daemon that forks Spark's Python workers, with the modules they need already imported.

    python -m tidemill.spark.datasource.worker_daemon pyspark.worker

PySpark's own daemon imports nothing, so that each of its workers spends most of a second of
processor time on imports. Spark starts one daemon for each worker module. Sessions name this module
in ``spark.python.daemon.module``. On one machine, the daemon itself is a fork of a process that has
imported everything (``tidemill.spark.workers``). Must not know: sessions, pipelines.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import warnings
import zipfile
from pathlib import Path

from tidemill.system import set_process_name

TASKS = "pyspark.worker"
"""The module of the workers that run tasks."""
TASKS_NAME = "spark-tasks"
"""The name of the daemon and of these workers in ``ps``."""

_VERSION = "pyspark/version.py"
_DATA_SOURCE = "tidemill.spark.datasource.data_source"
_PRELOADED: dict[str, tuple[str, ...]] = {
    TASKS: (
        "tidemill.reading.fetch",
        "tidemill.reading.parse.json_parser",
        "tidemill.spark.source.parse.types",
        "tidemill.spark.source.rows",
        "tidemill.spark.sinks.topic.delivery.exactly_once",
        "pandas",
    ),
    "pyspark.sql.worker.plan_data_source_read": ("pyarrow",),
}
"""By worker module: what its workers import besides it and the data source."""


def use_installed_pyspark(path: list[str]) -> None:
    """Import PySpark from the installed package instead of the archive in SPARK_HOME.

    Spark puts the archive first. Python can't keep compiled code for an archive, so an import of
    PySpark from there takes a second of processor time instead of a quarter.

    Args:
        path: The folders and archives that Python searches (``sys.path``). The archive is removed
            if PySpark is installed in the same version.
    """
    for archive in [each for each in path if Path(each).name == "pyspark.zip"]:
        folders = [each for each in path if (Path(each) / _VERSION).is_file()]
        with contextlib.suppress(OSError, KeyError, zipfile.BadZipFile):
            if (
                folders
                and zipfile.ZipFile(archive).read(_VERSION)
                == Path(folders[0], _VERSION).read_bytes()
            ):
                path.remove(archive)


def preload(worker_module: str) -> None:
    """Import what the workers of a module need.

    A module that can't be imported is left out: the worker that needs it reports the error.
    """
    # Threads do not survive a fork, and NumPy's OpenBLAS starts one for each core when it is
    # imported. A worker runs one task, and a task has one core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # tidemill does not use pandas, so its version does not matter.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    for name in (worker_module, *_PRELOADED.get(worker_module, ()), _DATA_SOURCE):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # a collection in a worker would copy the pages that it shares with the daemon


def main() -> None:
    """Import what the workers need, then serve Spark as PySpark's daemon does."""
    use_installed_pyspark(sys.path)
    from pyspark import daemon

    worker_module = sys.argv[1] if len(sys.argv) > 1 else TASKS
    set_process_name(TASKS_NAME if worker_module == TASKS else "spark-daemon")
    preload(worker_module)
    # Its only use of this function: the traceback of a worker that notices the end of the JVM
    # before the signal of its daemon.
    daemon.print = lambda *_, **__: None  # type: ignore[attr-defined]
    daemon.manager()


if __name__ == "__main__":
    main()
