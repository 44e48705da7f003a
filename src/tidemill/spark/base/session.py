"""A Spark session with the settings that streaming on one machine needs.

The user's settings take precedence over every default: first the arguments, then
``spark-defaults.conf`` in SPARK_CONF_DIR. ``datasource.session`` adds the data source to a session.
Must not know: Kafka, topics, pipelines.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill import extras
from tidemill.spark.base import jvm, partitions, pyspark_private
from tidemill.spark.base.explain import cause_of
from tidemill.spark.base.jvm_command import AT_START
from tidemill.spark.errors import MissingPackageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STREAMING = "org.apache.spark.sql.execution.streaming"

DEFAULTS: Mapping[str, str] = {
    # Unix sockets between JVM and Python workers halve the latency of a batch compared with TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    # Forks Python workers that have already imported what they need.
    "spark.python.daemon.module": "tidemill.spark.datasource.worker_daemon",
    "spark.sql.streaming.stateStore.providerClass": (
        f"{_STREAMING}.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # A batch that is run again must give each task the same rows, for exactly-once delivery.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    # Pause of an idle query before it asks for new records again. Spark's default of 10 ms keeps
    # JVM, Python and broker busy without need.
    "spark.sql.streaming.pollingDelay": "50ms",
    # The time zone of the machine must not change windows.
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Defaults for every master."""

LOCAL_DEFAULTS: Mapping[str, str] = {
    # Accept connections from this machine only.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # A rename is atomic on a local file system. The default manager costs 30 ms more per batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Additional defaults for a local master."""

# A key ends at the first blank, "=" or ":". The value may contain any of them.
_PROPERTY = re.compile(r"\s*([^\s#!=:][^\s=:]*)\s*[=:]?\s*(.*?)\s*$")

_MASTER = re.compile(
    r"local|local\[(\d+|\*)(\s*,\s*\d+)?\]|local-cluster\[\s*\d+(\s*,\s*\d+){2}\s*\]"
    r"|yarn|spark://.+|k8s://.+"
)


def create_session(
    app_name: str, master: str, extra: Mapping[str, str], log_file: Path | None
) -> SparkSession:
    """Return a Spark session; start a JVM if this process has none.

    Args:
        app_name: Name that Spark shows.
        master: Spark's master URL.
        extra: Spark settings. They take precedence over the defaults.
        log_file: File for the output of the JVM and its Python workers; None for stderr.

    Raises:
        MissingPackageError: A package of the extra spark is missing.
        JavaNotFoundError: There is no Java 17 or newer.
        JvmStartError: The JVM did not start.
    """
    if extras.missing("spark") and (problem := extras.problem_of("spark")) is not None:
        raise MissingPackageError(problem[0], hint=problem[1])
    _silence_python()
    is_local = master.startswith("local")
    _use_this_python(is_local)
    settings = session_settings(master, extra)
    environ = {"SPARK_LOCAL_IP": "127.0.0.1"} if is_local else {}
    with contextlib.ExitStack() as files:
        output = files.enter_context(log_file.open("ab")) if log_file is not None else None
        jvm.ensure_gateway(
            lambda: {
                "spark.master": master,
                "spark.app.name": app_name,
                **at_start(user_defaults()),
                **settings,
            },
            environ={name: value for name, value in environ.items() if name not in os.environ},
            output=output,
            forks_workers=is_local and not master.startswith("local-cluster"),
        )
    from pyspark.sql import SparkSession  # not earlier: it was imported while the JVM started

    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with plain_interrupts():
        spark = builder.getOrCreate()
    pyspark_private.make_active(spark)
    pyspark_private.begin_errors_with(cause_of)
    # The callers of Spark receive its errors; Python's side of the JVM would print each of them.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    pyspark_private.silence_accumulator_server(spark)
    if not is_local:
        _choose_partitions(spark, settings)
    return spark


def _silence_python() -> None:
    """Silence warnings and log lines of PySpark on which no user can act."""
    # tidemill does not use pandas, so its version does not matter.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    # Functions without annotations get the type of their result in another way.
    warnings.filterwarnings("ignore", message="It is preferred to specify type hints for arrow")
    # PySpark logs each error of a query as a line of JSON, and raises it as well.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextlib.contextmanager
def plain_interrupts() -> Iterator[None]:
    """Keep the program's handler of SIGINT while a session is created.

    So Ctrl-C raises KeyboardInterrupt at any moment, as in a program without Spark.
    """
    logging.getLogger().addFilter(_is_not_py4j_failure)
    with pyspark_private.without_signal_handler():
        yield


def _is_not_py4j_failure(record: logging.LogRecord) -> bool:
    """Whether a log record is not one of Py4J's, which logs interrupts that it also raises."""
    return not str(record.msg).endswith("while sending command.")


def session_settings(master: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings: defaults that the user did not change elsewhere, then ``extra``."""
    defaults = dict(DEFAULTS)
    if master.startswith("local"):
        defaults |= LOCAL_DEFAULTS
        defaults[partitions.SETTING] = str(partitions.local_partitions(master))
    for key in user_defaults():
        defaults.pop(key, None)
    return defaults | dict(extra)


def is_master(text: str) -> bool:
    """Whether a text has the form of a master URL of Spark."""
    return _MASTER.fullmatch(text) is not None


def at_start(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that must be on the JVM's command line to have an effect."""
    return {key: value for key, value in settings.items() if key in AT_START}


def _choose_partitions(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Set the number of shuffle partitions of a session on a cluster, unless the user has."""
    context = spark.sparkContext
    known = {**user_defaults(), **dict(context.getConf().getAll()), **settings}
    if partitions.SETTING not in known and partitions.SETTING not in spark.conf.getAll:
        count = partitions.cluster_partitions(
            known, lambda: pyspark_private.registered_cores(spark)
        )
        spark.conf.set(partitions.SETTING, count)


def user_defaults() -> dict[str, str]:
    """Return the settings in the user's ``spark-defaults.conf``, a file of Java properties.

    Source: Spark's documentation, "Spark Configuration: Dynamically Loading Spark Properties".
    """
    folder = os.environ.get("SPARK_CONF_DIR")
    path = Path(folder) / "spark-defaults.conf" if folder else None
    if path is None or not path.is_file():
        return {}
    found = map(_PROPERTY.match, path.read_text().splitlines())
    return {each[1]: each[2] for each in found if each is not None}


def use_this_python_in(spark: SparkSession) -> None:
    """Run the Python workers of a session on this machine with this interpreter, or forks of it.

    PySpark otherwise takes ``python3`` from PATH. In a notebook, or if the environment is not
    activated, that is another Python, in which tidemill is not installed.

    Args:
        spark: The session. One on a cluster keeps its setting.
    """
    if (spark.sparkContext.master or "").startswith("local"):
        spark.sparkContext.pythonExec = jvm.worker_python()


def _use_this_python(is_local: bool) -> None:
    """Run Python workers with this interpreter, so that they import what the driver imports."""
    if is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
