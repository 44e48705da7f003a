"""A Spark session with the settings that streaming on one machine needs.

The user's settings win over every default here: arguments first, then ``spark-defaults.conf`` in
SPARK_CONF_DIR. Must not know: Kafka, topics, pipelines.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tidemill.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STREAMING = "org.apache.spark.sql.execution.streaming"

DEFAULTS: Mapping[str, str] = {
    # JVM and Python workers talk over Unix sockets instead of TCP: half the latency of a batch.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        f"{_STREAMING}.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # A batch that is run again must give each task the same rows, or they are not written once.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    # How long a query that has nothing to do waits before it asks for new records again. Spark's
    # 10 ms keep JVM, Python and broker busy for nothing.
    "spark.sql.streaming.pollingDelay": "50ms",
    # Times of events are instants; what the machine's zone is must not change a window.
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""For every master."""

LOCAL_DEFAULTS: Mapping[str, str] = {
    # Nothing but this machine can connect.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # A rename is enough on a local file system; the default manager costs 30 ms more a batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""On top, for a local master."""

# A key ends at the first blank, "=" or ":"; what follows may hold any of them.
_PROPERTY = re.compile(r"\s*([^\s#!=:][^\s=:]*)\s*[=:]?\s*(.*?)\s*$")

_MASTER = re.compile(
    r"local|local\[(\d+|\*)(\s*,\s*\d+)?\]|local-cluster\[\s*\d+(\s*,\s*\d+){2}\s*\]"
    r"|yarn|spark://.+|k8s://.+"
)

MAX_LOCAL_SHUFFLE_PARTITIONS = 4
"""More state stores than this cost more per batch than they bring on one machine."""


def spark_session(
    app_name: str,
    *,
    master: str = "local[2]",
    extra: Mapping[str, str] | None = None,
    log_file: Path | None = None,
) -> SparkSession:
    """A Spark session in which ``format("tidemill")`` works.

    Starts a JVM if this process has none (see ``tidemill.spark.jvm``). A session that exists
    already is returned, with ``extra`` applied as far as Spark allows at run time.

    Args:
        app_name: as shown by Spark.
        master: Spark's master URL.
        extra: Spark settings; they win over the defaults.
        log_file: file that gets what the JVM and its Python workers print; default: stderr. Has
            effect only when the JVM is started.

    Raises:
        JavaNotFoundError: there is no Java 17 or newer.
        JvmStartError: the JVM did not come up.
    """
    # Of pandas, nothing is used here: what PySpark says of its version would only worry.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    # The type of a UDF is given where its function has no annotations.
    warnings.filterwarnings("ignore", message="It is preferred to specify type hints for arrow")
    # PySpark prints each error of a query as a line of JSON, and raises it, too.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    from pyspark.sql import SparkSession

    given = dict(extra or {})
    is_local = master.startswith("local")
    _use_this_python(is_local)
    settings = session_settings(master, given)
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
        )
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with plain_interrupts():
        spark = builder.getOrCreate()
    _make_active(spark)
    _quiet(spark)

    import pyspark_tidemill

    pyspark_tidemill.register(spark)
    return spark


def _make_active(spark: SparkSession) -> None:
    """Name the session to the JVM's thread that serves this one of ours.

    After an interrupt Py4J talks to another thread of the JVM, which knows no session and so no
    Python data source to write a stream to; asking for the session again puts that right.
    """
    jvm: Any = spark._jvm
    jvm.SparkSession.setActiveSession(spark._jsparkSession)


@contextlib.contextmanager
def plain_interrupts() -> Iterator[None]:
    """Keep the handler of SIGINT: Ctrl-C is a KeyboardInterrupt, and nothing else.

    PySpark sets one that asks the JVM to cancel all jobs. Where the main thread waits for an answer
    of the JVM (``awaitTermination``), that can't be asked, and ends in pages of stack traces. Its
    own is not set for a moment, either: while the session is made, who wants to end a program
    must be heard, too.
    """
    from pyspark.core import context

    logging.getLogger().addFilter(_is_no_interrupt)
    module: Any = context
    module.signal = SimpleNamespace(signal=lambda *_: None, SIGINT=signal.SIGINT)
    try:
        yield
    finally:
        module.signal = signal


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Py4J logs, as an error with its stack, what it raises, too: an interrupt, a lost JVM."""
    return not str(record.msg).endswith("while sending command.")


def _quiet(spark: SparkSession) -> None:
    """Leave errors to those who catch them: Python's side of the JVM also prints each of them."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    server: Any = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is None:
        from pyspark import accumulators

        server = getattr(accumulators, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def session_settings(master: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings for a master: defaults, less what the user set elsewhere, then ``extra``."""
    defaults = dict(DEFAULTS)
    if master.startswith("local"):
        defaults |= LOCAL_DEFAULTS
        defaults["spark.sql.shuffle.partitions"] = str(_local_partitions(master))
    for key in user_defaults():
        defaults.pop(key, None)
    return defaults | dict(extra)


def is_master(text: str) -> bool:
    """Whether it has the form of a master URL of Spark's."""
    return _MASTER.fullmatch(text) is not None


def at_start(settings: Mapping[str, str]) -> dict[str, str]:
    """Those that the JVM's command line must have; Spark itself reads them too late."""
    return {key: value for key, value in settings.items() if key in jvm.AT_START}


def _local_partitions(master: str) -> int:
    """Shuffle partitions for ``local``, ``local[n]``, ``local[n,retries]``, ``local[*]`` and
    ``local-cluster[workers,cores,MiB]``."""
    numbers = [int(each) for each in re.findall(r"\d+", master)]
    if master.startswith("local-cluster"):
        count = numbers[0] * numbers[1] if len(numbers) > 1 else 1
    elif "*" in master:
        count = os.cpu_count() or 1
    else:
        count = numbers[0] if numbers else 1
    return max(1, min(count, MAX_LOCAL_SHUFFLE_PARTITIONS))


def user_defaults() -> dict[str, str]:
    """What the user's ``spark-defaults.conf`` says, in the format of Java's properties.

    Source: Spark's documentation, "Spark Configuration: Dynamically Loading Spark Properties".
    """
    folder = os.environ.get("SPARK_CONF_DIR")
    path = Path(folder) / "spark-defaults.conf" if folder else None
    if path is None or not path.is_file():
        return {}
    found = map(_PROPERTY.match, path.read_text().splitlines())
    return {each[1]: each[2] for each in found if each is not None}


def _use_this_python(is_local: bool) -> None:
    """Workers must import what the driver imports: the same interpreter and environment."""
    if is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
