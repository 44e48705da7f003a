"""Settings and results of the client that runs Nexmark's queries.

Must not know: Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TIDEMILL, PLAIN, FLINK = "tidemill", "plain Spark", "Flink"
"""The contenders."""


@dataclass(frozen=True)
class Settings:
    """Settings of the client.

    Attributes:
        bootstrap: Address of the broker.
        broker_pid: Its process id.
        folder: Folder for checkpoints and logs.
        queries: Names of the queries.
        rounds: Turns of each contender for each query.
        jars: Jars of Spark's connector; without them, tidemill runs alone.
        memory: Heap of the JVM, as Java's ``-Xmx``.
    """

    bootstrap: str
    broker_pid: int
    folder: str
    queries: list[str]
    rounds: int
    jars: list[str]
    memory: str = "2g"


@dataclass(frozen=True)
class Turn:
    """One run of a query by a contender.

    Attributes:
        query: Name of the query.
        contender: ``tidemill`` or ``plain Spark``.
        wall_s: Seconds from the declaration until the query has ended.
        cpu_s: Processor seconds of Python, the JVM and the Python workers.
        broker_cpu_s: Processor seconds of the broker.
        rows: Number of rows of the result.
        hash: Hash of the rows of the result.
        threads: Processor seconds of the JVM by what its threads do (``bench.threads``).
    """

    query: str
    contender: str
    wall_s: float
    cpu_s: float
    broker_cpu_s: float
    rows: int
    hash: str
    threads: Mapping[str, float] = field(default_factory=dict)
