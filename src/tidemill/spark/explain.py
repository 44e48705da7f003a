"""What a failed query's error means, in a line or two, and whether trying again can help.

Spark hands on errors as texts with a stack trace of two languages. Must not know: sessions,
checkpoints, topics.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidemill.errors import PipelineError, TidemillError, WindowError


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


_RESET = "Change the query back, or start it afresh: tidemill pipeline reset."

# What Spark says (its error conditions and messages), what it means, what to do.
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r"STATE_STORE_(KEY|VALUE)_SCHEMA_NOT_COMPATIBLE|StateSchemaNotCompatible",
        "the query keeps other columns in its state than its checkpoint holds",
        _RESET,
    ),
    (
        r"STREAMING_STATEFUL_OPERATOR_NOT_MATCH|STATEFUL_OPERATOR_NOT_MATCH",
        "the query keeps state of another kind than its checkpoint holds",
        _RESET,
    ),
    (
        r"There are \[?(\d+)\]? sources in the checkpoint offsets and now there are \[?(\d+)",
        "the query reads another number of topics than its checkpoint knows",
        _RESET,
    ),
    (
        r"STATE_STORE_.*PARTITION|number of partitions .* state",
        "the number of shuffle partitions is not the one the checkpoint was made with",
        "Leave spark.sql.shuffle.partitions as it was, or start the query afresh.",
    ),
    (
        r"CONCURRENT_STREAM_LOG_UPDATE|ConcurrentModification|already running",
        "another process runs this query: two can't share a checkpoint",
        "Stop the other one first.",
    ),
)

# Our own errors as they come back through the JVM, and what Python raised in a worker.
_OURS = re.compile(r"tidemill\.errors\.(\w+): (.+?)(?:\n|$)")
_HINT = re.compile(r"^\s*hint: (.+)$", re.MULTILINE)
_PYTHON = re.compile(r"^(\w[\w.]*(?:Error|Exception)): (.+)$", re.MULTILINE)
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] ?(.*)")

_FINAL = frozenset({"OptionError", "DataLossError", "PipelineError", "SchemaError"})


def explain(error: BaseException | str) -> Explanation:
    """What an error means."""
    if isinstance(error, TidemillError):
        final = isinstance(error, (PipelineError, WindowError)) or type(error).__name__ in _FINAL
        return Explanation(str(error), error.hint, final)
    text = str(error)
    for pattern, meaning, hint in _KNOWN:
        if re.search(pattern, text):
            return Explanation(f"{meaning} (Spark: {_condition(text)})", hint, is_final=True)
    ours = _OURS.search(text)
    if ours is not None:
        told = _HINT.search(text, ours.end())
        return Explanation(ours[2].strip(), told[1] if told else "", ours[1] in _FINAL)
    python = _PYTHON.findall(text)
    if python:
        kind, message = python[-1]
        if kind.startswith(("org.apache", "java")):
            return Explanation(_condition(text))
        return Explanation(f"{kind}: {message.strip()}")
    return Explanation(_condition(text))


def _condition(text: str) -> str:
    """Spark's own first line, without its plan."""
    found = _CONDITION.search(text)
    line = f"{found[1]}: {found[2]}" if found else next(iter(text.strip().splitlines()), "unknown")
    return line.strip()[:300]
