"""Explain the error of a failed query in a line or two, and decide whether a restart can help.

Spark reports errors as texts with the stack traces of two languages. Must not know: sessions,
checkpoints, topics.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tidemill.errors import DurationError, TidemillError
from tidemill.spark.errors import (
    DataLossError,
    OtherTopicError,
    PipelineError,
    RecordError,
    WindowError,
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a failure.

    Attributes:
        message: what happened, in a line or two.
        hint: what to do, or an empty string.
        is_final: whether a restart would fail in the same way.
        is_busy: whether the machine was too busy for Spark's time limits, so that the failure says
            nothing about the query.
    """

    message: str
    hint: str = ""
    is_final: bool = False
    is_busy: bool = False


RESET = "tidemill pipeline reset NAME --query QUERY"
_RESET = f"Undo the change, or reset the query: {RESET}"

# Patterns of Spark 4.3's error conditions and messages, their meanings, and hints.
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r"STATE_STORE_(KEY|VALUE)_SCHEMA_NOT_COMPATIBLE|STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION",
        "the query keeps other columns in its state than its checkpoint has",
        _RESET,
    ),
    (
        r"STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
        "the query keeps another kind of state than its checkpoint has",
        _RESET,
    ),
    (
        r"There are \[\d+\] sources in the checkpoint offsets and now there are \[\d+\]",
        "the query reads another number of topics than its checkpoint has",
        _RESET,
    ),
    (
        r"Checksum error|CHECKPOINT_FILE_CHECKSUM|BATCH_METADATA_NOT_FOUND|MALFORMED_LOG_FILE"
        r"|CANNOT_LOAD_STATE_STORE|INCOMPLETE_LOG_FILE",
        "the query's checkpoint is damaged",
        f"Restore it from a backup, or reset the query: {RESET}",
    ),
    (
        r"CONCURRENT_STREAM_LOG_UPDATE|STREAMING_QUERY_ALREADY_STARTED",
        "another process runs this query: two can't share a checkpoint",
        "Stop the other process first.",
    ),
    (
        r"OutOfMemoryError|EXECUTOR_OOM",
        "Spark ran out of memory",
        "Read fewer records per batch (max_offsets_per_trigger), or give Spark more memory: "
        'Pipeline(spark={"spark.driver.memory": "4g"}).',
    ),
)

# Spark waits ten seconds for a Python process that it starts; no setting changes that.
_NOT_CONNECTED = re.compile(r"Python worker (?:failed )?to connect back")
_BUSY = (
    "a Python process did not answer Spark within its 10 seconds, so the machine may be too busy"
)
_BUSY_HINT = (
    "The query is started again, and this does not count as a failure. If it occurs often, run "
    "fewer queries on this machine, or give it more cores."
)

_LOST = f"Reset the query to continue with the records that exist now: {RESET}"
_OTHER_TOPIC = (
    "If the pipeline has moved to other brokers, see 'Move a pipeline' in the guide to pipelines. "
    f"Else reset the query to read this topic: {RESET}"
)
_LOSSES = {DataLossError.__name__: _LOST, OtherTopicError.__name__: _OTHER_TOPIC}
"""The errors' own hints name an option of the source, which a pipeline can't set."""

# A Python worker runs another Python than the program, or tidemill is not installed on its machine.
_WORKER_LACKS = re.compile(r"No module named '(tidemill|pyspark_tidemill|confluent_kafka|pyarrow)")
_WORKER_HINT = (
    "Spark's Python workers run another Python than this program. On one machine, set "
    "PYSPARK_PYTHON to sys.executable before the first session, or use "
    "tidemill.spark.spark_session(). On a cluster, install tidemill on its workers."
)

# Hints for errors that Spark raises before a query starts.
_HINTS: tuple[tuple[str, str], ...] = (
    (
        _NOT_CONNECTED.pattern,
        "Spark gives a Python process 10 seconds to start, so the machine may be too busy. Run the "
        "pipeline again when it is less busy.",
    ),
    (
        r"append.*without watermark",
        "Give the stream event_time= and watermark=, and group by a window of that time; or write "
        "current values with ChangelogSink and mode='update'.",
    ),
    (
        r"must be executed with writeStream",
        "A stream has no end, so it can't be counted, collected or shown here. Return a DataFrame "
        "that describes the computation, such as df.groupBy(...).count().",
    ),
    (
        r"[Ss]orting is not supported",
        "A stream has no end, so its rows can't be sorted. Sort when you read the result, or sort "
        "an aggregate in complete mode.",
    ),
    (r"DATA_SOURCE_NOT_FOUND\].*tidemill", _WORKER_HINT),
    (
        r"KAFKA_DATA_SOURCE_NOT_ENABLED",
        'Spark\'s own source needs its jar: Pipeline(spark={"spark.jars.packages": "org.apache.'
        'spark:spark-sql-kafka-0-10_2.13:4.2.0"}). Without the jar, use the format tidemill.',
    ),
)

_PREFIX = re.compile(r"^\[STREAM_FAILED\].*? terminated with exception: ", re.DOTALL)
_SQLSTATE = re.compile(r"\.?\s*SQLSTATE: \w{5}")
_CONDITION = re.compile(r"^\[([A-Z][A-Z0-9_.]+)\] ")

# tidemill's own errors after they passed through the JVM, and errors of Python in a worker.
_OURS = re.compile(r"tidemill\.(?:\w+\.)*errors\.(\w+): (.+?)(?:\n|$)")
_HINT = re.compile(r"^\s*hint: (.+)$", re.MULTILINE)
_PYTHON = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)): ?(.*)$", re.MULTILINE)
_FRAME = re.compile(r'^\s*File "([^"<]+)", line (\d+)', re.MULTILINE)
_LIBRARIES = ("/pyspark/", "/py4j/", "/tidemill/", "/site-packages/", "/lib/python")

# The error of a record that can't be parsed. A restart reads the same offsets, so it is final. The
# reason has text of the record, so it must be found before any text of Spark's.
_NO_ROW = re.compile(
    r"tidemill\.spark\.errors\.RecordError: "
    r"(topic \S+: the record at offset \d+ of partition \d+ can't be parsed: .+)"
)

_FINAL_TYPES = (DurationError, PipelineError, WindowError)
_FINAL = frozenset(
    {
        "CheckpointRestoredError",
        "DataLossError",
        "JoinError",
        "OptionError",
        "OtherTopicError",
        "PipelineError",
        "RecordError",
        "RowError",
        "SchemaError",
    }
)
_MAX_LENGTH = 300


def explain(error: BaseException | str, reset: str = RESET) -> Explanation:
    """Explain an error.

    Args:
        error: the error of a query, or its text.
        reset: the command that resets the query, for the hint.
    """
    found = _explain(error)
    return replace(found, hint=found.hint.replace(RESET, reset))


SPARKS_MESSAGE = "\n\nSpark's message:\n"
"""The line between the cause of an error and the text that Spark gives it."""


def cause_of(text: str) -> str:
    """Return the text of an error of Spark, with the cause before it if Spark hides it.

    Spark begins with its own words and ends with the stack traces of two languages. In a notebook,
    the cause is then somewhere in the middle.
    """
    if SPARKS_MESSAGE in text:
        return text
    found = _explain(text)
    if found.message in (spark_message(text), "unknown"):
        return text
    hint = hint_for(text) if found.is_busy else found.hint
    if RESET in hint:  # the command is for pipelines; the error's own hint is for programs, too
        own = _HINT.search(text)
        hint = own[1] if own is not None else ""
    lines = [found.message, f"hint: {hint}"] if hint else [found.message]
    return "\n".join(lines) + SPARKS_MESSAGE + text


def with_hint(message: str, hint: str) -> str:
    """Return a message and its hint as one or two sentences in a line."""
    if not hint:
        return message
    return f"{message} {hint}" if message.endswith((".", "!", "?")) else f"{message}. {hint}"


def _explain(error: BaseException | str) -> Explanation:
    if isinstance(error, TidemillError):
        final = isinstance(error, _FINAL_TYPES) or type(error).__name__ in _FINAL
        hint = _LOSSES.get(type(error).__name__, error.hint)
        return Explanation(str(error), hint, final)
    text = _without_plan(str(error).rpartition(SPARKS_MESSAGE)[2])
    no_row = _NO_ROW.search(text)
    if no_row is not None:
        return Explanation(spark_message(no_row[1]), RecordError.default_hint, is_final=True)
    if is_busy(text):
        return Explanation(f"{_BUSY} (Spark: {spark_message(text)})", _BUSY_HINT, is_busy=True)
    for pattern, meaning, hint in _KNOWN:
        if re.search(pattern, text):
            return Explanation(f"{meaning} (Spark: {spark_message(text)})", hint, is_final=True)
    ours = _OURS.search(text)
    if ours is not None:
        given = _HINT.search(text, ours.end())
        hint = given[1] if given else ""
        hint = _LOSSES.get(ours[1], hint)
        return Explanation(ours[2].strip(), hint, ours[1] in _FINAL)
    python = [each for each in _PYTHON.findall(text) if not each[0].startswith(("org.", "java"))]
    if python:
        kind, message = python[-1]
        said = f"{kind}: {message.strip()}" if message.strip() else kind
        hint = _WORKER_HINT if _WORKER_LACKS.search(message) else ""
        return Explanation(f"{said[:_MAX_LENGTH]}{_place(text)}", hint)
    return Explanation(spark_message(text), is_final=_is_refusal(error))


def _is_refusal(error: BaseException | str) -> bool:
    """Whether Spark refused the query itself, before it ran."""
    return any(each.__name__ == "AnalysisException" for each in type(error).__mro__)


def is_busy(text: str) -> bool:
    """Whether an error says that a Python process did not answer Spark in time."""
    return _NOT_CONNECTED.search(text) is not None


def hint_for(text: str) -> str:
    """Return a hint for an error that Spark raises before a query starts, or an empty string."""
    return next((hint for pattern, hint in _HINTS if re.search(pattern, text)), "")


def spark_message(text: str) -> str:
    """Return the first line of Spark's message, without its plan, codes and stack trace."""
    text = _SQLSTATE.sub("", _without_plan(text.rpartition(SPARKS_MESSAGE)[2])).strip()
    line = next(iter(_CONDITION.sub("", text).splitlines()), "").strip()
    return line[:_MAX_LENGTH] or "unknown"


def _without_plan(text: str) -> str:
    text = _PREFIX.sub("", text)
    return text.split("=== Streaming Query ===")[0].split(";\n")[0]


def _place(text: str) -> str:
    """Return the last line of the user's own files in a Python stack trace, or an empty string."""
    own = [
        f"{file}:{line}"
        for file, line in _FRAME.findall(text)
        if not any(part in file for part in _LIBRARIES)
    ]
    return f" ({own[-1]})" if own else ""
