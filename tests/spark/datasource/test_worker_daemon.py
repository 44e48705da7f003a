"""Python workers of a local session are forked with their modules imported, from compiled code."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tidemill.spark.datasource.worker_daemon import TASKS_NAME, use_installed_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOADED_ONLY_BY_TASKS = "tidemill.reading.fetch"


def describe_worker(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the name of the worker's parent, and where its modules come from."""
    import os
    import pathlib

    import pyspark

    parent = pathlib.Path(f"/proc/{os.getppid()}/comm").read_text()
    for batch in batches:
        rows = batch.num_rows
        yield pa.record_batch(
            {
                "parent": [parent] * rows,
                "pyspark": [str(pyspark.__file__)] * rows,
                "is_loaded": [LOADED_ONLY_BY_TASKS in sys.modules] * rows,
            }
        )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_task_runs_in_a_fork_that_has_its_modules(spark: SparkSession) -> None:
    schema = "parent string, pyspark string, is_loaded boolean"
    (worker,) = spark.range(1).mapInArrow(describe_worker, schema).collect()
    assert worker.parent.strip() == TASKS_NAME
    assert worker.is_loaded
    assert ".zip" not in worker.pyspark  # an archive has no compiled code: a second for each import


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_a_module_that_cannot_be_imported_is_left_to_the_worker() -> None:
    done = run(
        "import sys; from tidemill.spark.datasource import worker_daemon as d\n"
        "sys.modules['pandas'] = None; d.preload('pyspark.no_such_module')\n"
        "d.preload(d.TASKS); print('pyspark.worker' in sys.modules)"
    )
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)


def test_nothing_that_tasks_need_is_imported_for_the_planner() -> None:
    done = run(
        "import sys; from tidemill.spark.datasource import worker_daemon as d\n"
        "d.preload('pyspark.sql.worker.lookup_data_sources')\n"
        "print([name for name in ('pyarrow', 'pandas', 'confluent_kafka') if name in sys.modules])"
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0)


@pytest.mark.parametrize(
    ("archived", "installed", "is_removed"),
    [("4.3.0", "4.3.0", True), ("4.3.1", "4.3.0", False), ("4.3.0", None, False)],
)
def test_the_installed_pyspark_is_used_if_it_has_the_version_of_the_archive(
    tmp_path: Path, archived: str, installed: str | None, is_removed: bool
) -> None:
    archive, folder = tmp_path / "pyspark.zip", tmp_path / "site-packages"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("pyspark/version.py", f"__version__ = {archived!r}")
    if installed is not None:
        (folder / "pyspark").mkdir(parents=True)
        (folder / "pyspark" / "version.py").write_text(f"__version__ = {installed!r}")
    path = ["", str(archive), str(folder), str(tmp_path / "absent")]
    use_installed_pyspark(path)
    assert (str(archive) not in path) is is_removed
    assert path[0] == ""
    assert path[-2:] == [str(folder), str(tmp_path / "absent")]


@pytest.mark.parametrize("content", [b"", b"not an archive"])
def test_a_damaged_archive_is_left_in_its_place(tmp_path: Path, content: bytes) -> None:
    import pyspark

    archive = tmp_path / "pyspark.zip"
    archive.write_bytes(content)
    path = [str(archive), str(Path(pyspark.__file__).parent.parent)]
    use_installed_pyspark(path)
    assert path[0] == str(archive)
