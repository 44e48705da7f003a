"""What a failed query's error means, in a line or two, and whether trying again can help.

Spark hands on errors as texts with a stack trace of two languages. Must not know: sessions,
checkpoints, topics.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tidemill.errors import DataLossError, PipelineError, TidemillError, WindowError


@dataclass(frozen=True, slots=True)
class Explanation:
    """Of a failure.

    Attributes:
        message: what happened, in a line or two.
        hint: what to do, or an empty string.
        is_final: trying again would fail in the same way.
    """

    message: str
    hint: str = ""
    is_final: bool = False


RESET = "tidemill pipeline reset NAME --query QUERY"
_RESET = f"Change the query back, or start it afresh: {RESET}"

# What Spark 4.3 says (its error conditions and messages), what it means, what to do.
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r"STATE_STORE_(KEY|VALUE)_SCHEMA_NOT_COMPATIBLE|STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION",
        "the query keeps other columns in its state than its checkpoint holds",
        _RESET,
    ),
    (
        r"STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
        "the query keeps state of another kind than its checkpoint holds",
        _RESET,
    ),
    (
        r"There are \[\d+\] sources in the checkpoint offsets and now there are \[\d+\]",
        "the query reads another number of topics than its checkpoint knows",
        _RESET,
    ),
    (
        r"Checksum error|CHECKPOINT_FILE_CHECKSUM|BATCH_METADATA_NOT_FOUND|MALFORMED_LOG_FILE"
        r"|CANNOT_LOAD_STATE_STORE|INCOMPLETE_LOG_FILE",
        "the query's checkpoint is damaged",
        f"Put it back from a copy, or start the query afresh: {RESET}",
    ),
    (
        r"CONCURRENT_STREAM_LOG_UPDATE|STREAMING_QUERY_ALREADY_STARTED",
        "another process runs this query: two can't share a checkpoint",
        "Stop the other one first.",
    ),
    (
        r"OutOfMemoryError|EXECUTOR_OOM",
        "Spark ran out of memory",
        'Read less at once (max_offsets_per_trigger), or give it more: Pipeline(spark={"spark.'
        'driver.memory": "4g"}).',
    ),
)

_LOST = f"Start the query afresh, with what is there now: {RESET}"

# Hints for what Spark refuses before anything is started.
_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"append.*without watermark",
        "Give the stream event_time= and watermark=, and group by a window of that time; or write "
        "current values: ChangelogSink with mode='update'.",
    ),
    (
        r"must be executed with writeStream",
        "A stream has no end at which it could be counted, collected or shown here: say what is to "
        "be computed (df.groupBy(...).count()), and return it.",
    ),
    (
        r"[Ss]orting is not supported",
        "A stream has no end at which its rows could be sorted: leave the sorting to who reads the "
        "result, or sort an aggregate in complete mode.",
    ),
    (
        r"KAFKA_DATA_SOURCE_NOT_ENABLED",
        'Spark\'s own source needs its jar: Pipeline(spark={"spark.jars.packages": "org.apache.'
        'spark:spark-sql-kafka-0-10_2.13:4.3.0"}). Without it, leave the format at tidemill.',
    ),
)

_PREFIX = re.compile(r"^\[STREAM_FAILED\].*? terminated with exception: ", re.DOTALL)
_SQLSTATE = re.compile(r"\.?\s*SQLSTATE: \w{5}")
_CONDITION = re.compile(r"^\[([A-Z][A-Z0-9_.]+)\] ")

# Our own errors as they come back through the JVM, and what Python raised in a worker.
_OURS = re.compile(r"tidemill\.errors\.(\w+): (.+?)(?:\n|$)")
_HINT = re.compile(r"^\s*hint: (.+)$", re.MULTILINE)
_PYTHON = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)): ?(.*)$", re.MULTILINE)
_FRAME = re.compile(r'^\s*File "([^"<]+)", line (\d+)', re.MULTILINE)
_NOT_THE_USERS = ("/pyspark/", "/py4j/", "/tidemill/", "/site-packages/", "/lib/python")

# What dead_letters has Spark raise: the same offsets are read again, so it is met again.
_NO_ROW = re.compile(
    r"\[USER_RAISED_EXCEPTION\] "
    r"(stream \S+: the record at offset \d+ of partition \d+ can't be parsed: .+)"
)
_NO_ROW_HINT = (
    'Declare the stream with dead_letters="TOPIC", where such records go while the others are read.'
)

_FINAL = frozenset(
    {
        "CheckpointRestoredError",
        "DataLossError",
        "JoinError",
        "OptionError",
        "PipelineError",
        "RowError",
        "SchemaError",
    }
)
_LONGEST = 300


def explain(error: BaseException | str, reset: str = RESET) -> Explanation:
    """What an error means.

    Args:
        reset: the command that starts the query afresh.
    """
    found = _explain(error)
    return replace(found, hint=found.hint.replace(RESET, reset))


def in_a_line(message: str, hint: str) -> str:
    """A message with what to do about it."""
    if not hint:
        return message
    return f"{message} {hint}" if message.endswith((".", "!", "?")) else f"{message}. {hint}"


def _explain(error: BaseException | str) -> Explanation:
    if isinstance(error, TidemillError):
        final = isinstance(error, (PipelineError, WindowError)) or type(error).__name__ in _FINAL
        hint = _LOST if isinstance(error, DataLossError) else error.hint
        return Explanation(str(error), hint, final)
    text = _without_plan(str(error))
    no_row = _NO_ROW.search(text)
    if no_row is not None:
        return Explanation(told_by_spark(no_row[1]), _NO_ROW_HINT, is_final=True)
    for pattern, meaning, hint in _KNOWN:
        if re.search(pattern, text):
            return Explanation(f"{meaning} (Spark: {told_by_spark(text)})", hint, is_final=True)
    ours = _OURS.search(text)
    if ours is not None:
        told = _HINT.search(text, ours.end())
        hint = told[1] if told else ""
        # Options of the source, of which its own hint speaks, can't be set in a pipeline.
        hint = _LOST if ours[1] == DataLossError.__name__ else hint
        return Explanation(ours[2].strip(), hint, ours[1] in _FINAL)
    python = [each for each in _PYTHON.findall(text) if not each[0].startswith(("org.", "java"))]
    if python:
        kind, message = python[-1]
        said = f"{kind}: {message.strip()}" if message.strip() else kind
        return Explanation(f"{said[:_LONGEST]}{_place(text)}")
    return Explanation(told_by_spark(text), is_final=_is_refusal(error))


def _is_refusal(error: BaseException | str) -> bool:
    """Whether Spark refused a query as it is written, before it ran."""
    return any(each.__name__ == "AnalysisException" for each in type(error).__mro__)


def hint_for(text: str) -> str:
    """What can be done about something that Spark refuses, or an empty string."""
    return next((hint for pattern, hint in _HINTS if re.search(pattern, text)), "")


def told_by_spark(text: str) -> str:
    """Spark's own first line, without its plan, its codes and its stack trace."""
    text = _SQLSTATE.sub("", _without_plan(text)).strip()
    line = next(iter(_CONDITION.sub("", text).splitlines()), "").strip()
    return line[:_LONGEST] or "unknown"


def _without_plan(text: str) -> str:
    text = _PREFIX.sub("", text)
    return text.split("=== Streaming Query ===")[0].split(";\n")[0]


def _place(text: str) -> str:
    """Where in the user's own files Python was when it failed."""
    own = [
        f"{file}:{line}"
        for file, line in _FRAME.findall(text)
        if not any(part in file for part in _NOT_THE_USERS)
    ]
    return f" ({own[-1]})" if own else ""
