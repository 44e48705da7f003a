"""Settings and results of the client that measures pipelines. Must not know: Spark."""

from __future__ import annotations

from dataclasses import dataclass

TIDEMILL, PLAIN = "tidemill", "plain Spark"
"""The contenders."""

QUERIES = ("stateless", "windowed")
TRIGGERS = ("0 seconds", "200 milliseconds")
PHASES = (
    "interpreter, imports and declaration",
    "JVM and session",
    "checks, and start of the query",
    "first batch, to its result",
)
"""Phases of the start of a pipeline, in their order."""


@dataclass(frozen=True)
class Settings:
    """Settings of the client.

    Attributes:
        bootstrap: Address of the broker.
        folder: Folder for checkpoints and logs.
        jars: Jars of Spark's connector; without them, tidemill is measured alone.
        records: Records in each turn of a latency.
        rounds: Turns of each contender for each latency; 0: no latencies.
        source: Topic with one partition that the source reads.
        rows: Rows that the sink writes.
        runs: Turns of each contender for the source and for the sink; 0: neither.
    """

    bootstrap: str
    folder: str
    jars: list[str]
    records: int = 0
    rounds: int = 0
    source: str = ""
    rows: int = 0
    runs: int = 0


@dataclass(frozen=True)
class Latency:
    """Latencies of one turn.

    Attributes:
        query: ``stateless`` or ``windowed``.
        trigger: Interval of the query's trigger.
        contender: ``tidemill`` or ``plain Spark``.
        seconds: One value for each record.
    """

    query: str
    trigger: str
    contender: str
    seconds: list[float]


@dataclass(frozen=True)
class Rate:
    """One turn of the source or of the sink.

    Attributes:
        part: The part that is measured.
        contender: ``tidemill`` or ``plain Spark``.
        rows: Number of rows.
        wall_s: Seconds of Spark's tasks.
        cpu_s: Processor seconds of Python, the JVM and the Python workers.
    """

    part: str
    contender: str
    rows: int
    wall_s: float
    cpu_s: float
