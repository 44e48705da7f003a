"""The command line of Spark's JVM, and its log settings.

Must not know: processes, sessions, Kafka.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidemill.spark.base.java import Java
from tidemill.system import is_linux

# The packages that Spark's launcher opens (JavaModuleOptions), without the vector module.
_OPENED_PACKAGES = (
    *(
        f"java.base/{package}"
        for package in (
            "java.lang",
            "java.lang.invoke",
            "java.lang.reflect",
            "java.io",
            "java.net",
            "java.nio",
            "java.util",
            "java.util.concurrent",
            "java.util.concurrent.atomic",
            "jdk.internal.ref",
            "sun.nio.ch",
            "sun.nio.cs",
            "sun.util.calendar",
        )
    ),
    "java.security.jgss/sun.security.krb5",
)
# Java 24 removed this package and warns about its name.
_OPENED_BEFORE_24 = "java.base/sun.security.action"
_JVM_FLAGS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "-Dderby.connection.requireAuthentication=false",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Djava.awt.headless=true",
)
# Hadoop starts a process (chmod) for each file that a query writes into its checkpoint. This way to
# start one takes half the processor time of the default. Java 26 deprecates it.
_VFORK = "-Djdk.lang.Process.launchMechanism=VFORK"
# By default, more than half of the processor time of a start is spent in the optimising compiler
# (C2), on methods that are called a few thousand times and then hardly ever again. With ten times
# Java's thresholds it compiles what is hot for a second. Measured: 12.6 s of processor time instead
# of 17.5 s until the first result of a query, and the same rate of rows afterwards.
_TIER_4 = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
# Java's default collector (G1) has threads that work beside the program, and makes each write of a
# reference slower. On two cores the parallel collector leaves more of them to the queries.
_COLLECTOR = "-XX:+UseParallelGC"
_CHOOSES_COLLECTOR = re.compile(r"-XX:[+-]Use\w*GC\b")
_JAVA_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
AT_START = (
    "spark.driver.memory",
    "spark.driver.defaultJavaOptions",
    "spark.driver.extraJavaOptions",
    "spark.driver.extraClassPath",
)
"""Spark settings that are part of the JVM's command line. Set later, they have no effect."""

_LOG4J_KEYS = ("log4j2.configurationFile", "log4j.configurationFile")


def jvm_command(
    java: Java, spark_home: Path, conf: Mapping[str, str], log_config: Path
) -> list[str]:
    """Return the command that runs Spark's gateway for Python.

    Settings that have an effect only at the start of a JVM (memory, its options, the class path)
    become part of the command line, as Spark's launcher does it. All settings are also passed on as
    ``--conf``.
    """
    opened = [] if java.version >= 24 else [f"--add-opens={_OPENED_BEFORE_24}=ALL-UNNAMED"]
    options = [*_TIER_4]
    if is_linux() and java.version < 26:
        options.append(_VFORK)
    options += shlex.split(conf.get("spark.driver.defaultJavaOptions", ""))
    options += shlex.split(conf.get("spark.driver.extraJavaOptions", ""))
    if conf.get("spark.master", "").startswith("local") and not _has_collector(options):
        options.append(_COLLECTOR)
    if not any(option.startswith(f"-D{key}=") for option in options for key in _LOG4J_KEYS):
        options.append(f"-Dlog4j2.configurationFile={log_config}")
    class_path = [str(spark_home / "jars" / "*")]
    if extra := conf.get("spark.driver.extraClassPath"):
        class_path.insert(0, extra)
    conf_dir = os.environ.get("SPARK_CONF_DIR")
    if conf_dir and _is_for_java(Path(conf_dir)):
        class_path.insert(0, conf_dir)
    settings = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    return [
        str(java.path),
        "-cp",
        os.pathsep.join(class_path),
        f"-Xmx{conf.get('spark.driver.memory', '1g')}",
        *_JVM_FLAGS,
        *opened,
        *options,
        "org.apache.spark.deploy.SparkSubmit",
        *settings,
        *shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")),
    ]


def _has_collector(options: Sequence[str]) -> bool:
    """Whether the user chooses Java's garbage collector; two choices would be an error."""
    given = [*options, *(os.environ.get(name, "") for name in _JAVA_VARIABLES)]
    return any(_CHOOSES_COLLECTOR.search(each) for each in given)


def _is_for_java(conf_dir: Path) -> bool:
    """Whether a folder contains files that Java reads from the class path, like ``hive-site.xml``.

    Other folders stay off the class path, because a folder on it disables archives of classes.
    """
    if not conf_dir.is_dir():
        return False
    own = ("spark-defaults.conf", "spark-env.sh")
    return any(each.name not in own and each.suffix != ".template" for each in conf_dir.iterdir())


def log_config_file(folder: Path) -> Path:
    """Return the JVM's log4j2 settings: the user's file, or ours, which prints warnings on stderr.

    Args:
        folder: Folder in which our file is written.
    """
    if conf_dir := os.environ.get("SPARK_CONF_DIR"):
        for name in ("log4j2.properties", "log4j2.xml", "log4j2.yaml"):
            if (path := Path(conf_dir) / name).is_file():
                return path
    path = folder / "log4j2.properties"
    path.write_text(_QUIET_LOG4J)
    return path


# These loggers print warnings on every start or for every streaming query, and no user can act on
# them. All other warnings are printed.
_QUIET_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short}
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.files.name = org.apache.spark.network.util.JavaUtils
logger.files.level = error
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = off
logger.adaptive.name = org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream
logger.adaptive.level = error
logger.behind.name = org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor
logger.behind.level = error
# The error of a failed task reaches the user as the error of the query. These would repeat it.
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
# "Cannot find active jobs", whenever a query stops between two batches.
logger.jobs.name = org.apache.spark.scheduler.DAGScheduler
logger.jobs.level = error
logger.writing.name = org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask
logger.writing.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = error
logger.sources.name = org.apache.spark.sql.execution.datasources.DataSourceManager
logger.sources.level = error
"""
