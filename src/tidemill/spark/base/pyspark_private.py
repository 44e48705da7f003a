"""All private names of PySpark that tidemill uses. Because of them, ``pyspark>=4.3,<4.4``.

No other module uses them. When a new PySpark release is supported, check each name in this table:

====================================  =============================================================
Private name                          Why it is needed
====================================  =============================================================
``SparkContext._gateway``,            Start the JVM without Spark's shell scripts, connect to it,
``._jvm``, ``._ensure_initialized``,  and detach from it when it ends. PySpark's public way always
``._active_spark_context``,           runs the scripts (see ``base.jvm``).
``java_gateway.launch_gateway``,
``PYSPARK_GATEWAY_PORT``,
``PYSPARK_GATEWAY_SECRET``,
``_PYSPARK_DRIVER_CONN_INFO_PATH``
``SparkSession._jvm``,                Name the active session to the JVM's thread; read the folder
``._jsparkSession``                   of a file sink through Hadoop; call Spark's SQL parser and its
                                      checks of streaming queries.
``SparkContext._jsc``                 Remove a local property; the public method can't.
``StreamingQuery._jsq``               Read progress as JSON. The public ``recentProgress`` asks the
                                      JVM for each field and takes a second.
``DataFrame._jdf``                    Read the analysed plan of a query.
``Column._jc``,                       Pass a column of ours where PySpark expects its own; the
``pyspark.sql.classic.column``        window functions define this property.
``pyspark.core.context.signal``       Keep the handler of SIGINT that the program has.
``CapturedException.__str__``         Begin the text of an error with its cause.
``_accumulatorServer``                Stop it from printing errors that the caller receives, too.
``ArrowStreamSerializer.load_stream`` See whether the rows of a task are complete.
====================================  =============================================================

Must not know: sessions' settings, data sources, pipelines.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CONNECTION_FILE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""Environment variable with the file in which the JVM writes where its Py4J gateway is."""
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"


# --- the gateway to the JVM -----------------------------------------------------------------------


def has_gateway() -> bool:
    """Whether PySpark is connected to a JVM in this process."""
    return "pyspark" in sys.modules and _context()._gateway is not None


def names_a_gateway() -> bool:
    """Whether the environment names a JVM for PySpark, as inside of ``spark-submit``."""
    return _PORT in os.environ


def parse_connection(content: bytes) -> tuple[int, str]:
    """Return the port and the secret in the file that ``CONNECTION_FILE`` names."""
    port, length = struct.unpack_from(">ii", content)
    return port, content[8 : 8 + length].decode()


def connect_gateway(port: int, secret: str) -> None:
    """Connect PySpark to a running JVM."""
    from pyspark.java_gateway import launch_gateway

    # launch_gateway connects to a running JVM if these are set. The secret must not stay in the
    # environment, because child processes inherit it.
    os.environ[_PORT], os.environ[_SECRET] = str(port), secret
    try:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ[_PORT], os.environ[_SECRET]
    _context()._ensure_initialized(gateway=gateway)


def stop_active_context() -> None:
    """Stop the active SparkContext, if there is one."""
    active = _context()._active_spark_context
    if active is not None:
        active.stop()


def disconnect_gateway() -> None:
    """Close the connection to the JVM. PySpark can be connected to another JVM afterwards."""
    context = _context()
    gateway, context._gateway, context._jvm = context._gateway, None, None
    if gateway is not None:
        gateway.shutdown()


def _context() -> Any:
    from pyspark import SparkContext

    return SparkContext


# --- the session ----------------------------------------------------------------------------------


def jvm_of(spark: SparkSession) -> Any:
    """Return the view of a session's JVM, whose attributes are Java packages."""
    return spark._jvm


def registered_cores(spark: SparkSession) -> int:
    """Return the number of cores of the executors that have registered with the driver."""
    context: Any = spark.sparkContext
    if context._jsc.sc().getExecutorMemoryStatus().size() <= 1:  # the driver itself
        return 0  # the default parallelism is 2 then, too
    return int(context.defaultParallelism)


def make_active(spark: SparkSession) -> None:
    """Name the session to the JVM's thread that serves this thread.

    After an interrupt Py4J uses another thread of the JVM. That thread knows no active session, and
    therefore no Python data source that a stream could be written to.
    """
    jvm_of(spark).SparkSession.setActiveSession(spark._jsparkSession)


@contextlib.contextmanager
def without_signal_handler() -> Iterator[None]:
    """Prevent PySpark from setting a handler of SIGINT while a session is created.

    PySpark's handler asks the JVM to cancel all jobs. While the main thread waits for an answer of
    the JVM (``awaitTermination``), this fails with pages of stack traces.
    """
    from pyspark.core import context

    module: Any = context
    module.signal = SimpleNamespace(signal=lambda *_: None, SIGINT=signal.SIGINT)
    try:
        yield
    finally:
        module.signal = signal


def silence_accumulator_server(spark: SparkSession) -> None:
    """Stop the accumulator server from printing errors that the caller receives as well."""
    server: Any = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is None:
        from pyspark import accumulators

        server = getattr(accumulators, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def begin_errors_with(cause: Callable[[str], str]) -> None:
    """Pass the text of each error that Spark raises in this program through a function.

    Args:
        cause: Gets Spark's text of an error and returns the text to show.
    """
    from pyspark.errors.exceptions import captured

    kind: Any = captured.CapturedException
    if hasattr(kind, "tidemill_cause"):
        return
    original = kind.__str__

    def text_of(self: Any) -> str:
        return cause(original(self))

    kind.tidemill_cause, kind.__str__ = True, text_of


def remove_local_property(spark: SparkSession, name: str) -> None:
    """Remove a local property of Spark from this thread."""
    spark.sparkContext._jsc.setLocalProperty(name, None)


def list_folder(spark: SparkSession, folder: str, subfolder: str) -> list[str] | None:
    """List a subfolder through Hadoop's file systems.

    Args:
        folder: A path, or an address that Spark knows.
        subfolder: Name of the folder in it.

    Returns:
        Names of the files, or None if the subfolder does not exist.
    """
    session: Any = spark
    path = session._jvm.org.apache.hadoop.fs.Path(folder)
    wanted = session._jvm.org.apache.hadoop.fs.Path(path, subfolder)
    system = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    if not system.exists(wanted):
        return None
    return [each.getPath().getName() for each in system.listStatus(wanted)]


def java_errors() -> tuple[type[BaseException], ...]:
    """Return the types of the errors that a call into the JVM raises."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return (Py4JJavaError, PySparkException)


# --- queries and columns --------------------------------------------------------------------------


def analyzed_plan(df: DataFrame) -> Any:
    """Return the analysed plan of a DataFrame, as an object of the JVM."""
    return df._jdf.queryExecution().analyzed()


def stream_formats(df: DataFrame) -> set[str]:
    """Return the formats of the streams that a DataFrame reads.

    A stream that is not read through a format has the name of its node in the plan.
    """
    leaves = analyzed_plan(df).collectLeaves()
    found = (leaves.apply(index) for index in range(leaves.size()))
    return {
        str(each.sourceName() if each.nodeName() == "StreamingRelationV2" else each.nodeName())
        for each in found
        if each.isStreaming()
    }


def java_column(column: Any) -> Any:
    """Return the object of the JVM behind a column of PySpark."""
    return column._jc


def recent_progress(query: StreamingQuery) -> Any:
    """Return the last progress reports of a query: an array of the JVM, oldest first."""
    streaming: Any = query
    return streaming._jsq.recentProgress()


# --- workers --------------------------------------------------------------------------------------


def watch_input(wrap: Callable[[IO[bytes]], Any]) -> None:
    """Pass the input stream of each later task of this Python worker through ``wrap``.

    Args:
        wrap: Gets the stream and returns the stream that PySpark reads instead.
    """
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer

    serializer: Any = ArrowStreamSerializer
    load_stream = serializer.load_stream

    def load_wrapped(self: Any, stream: IO[bytes]) -> Iterator[Any]:
        yield from load_stream(self, wrap(stream))

    serializer.load_stream = load_wrapped
