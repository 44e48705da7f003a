"""Runs RabbitMQ's load generator PerfTest, and reads its summary.

Maven fetches its jars once into the cache. Must not know: which broker it runs against.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

from bench.connector import Connector, cache_folder, find_connector

PERF_TEST = Connector(
    "rabbitmq-perf-test", "com.rabbitmq", "2.22.1", ("perf-test", "amqp-client"), whole=True
)
"""The newest version that Maven resolves."""
MAIN = "com.rabbitmq.perf.PerfTest"
SLACK_S = 90.0

_RATE = re.compile(r"(sending|receiving) rate avg: ([\d.,]+)")


@dataclass(frozen=True)
class Rates:
    """The summary of a run: messages a second.

    Its latencies are not read: they contain the start of Java (``latency`` measures them).
    """

    sent: float
    received: float


def jars() -> str:
    """Return the class path.

    Raises:
        ConnectorNotFoundError: Maven is missing or can't fetch the jars.
        RuntimeError: there is no Java.
    """
    if shutil.which("java") is None:
        raise RuntimeError("there is no java")
    find_connector(PERF_TEST)
    return f"{cache_folder(PERF_TEST)}/*"


def run(url: str, *arguments: str, seconds: int) -> Rates:
    """Run PerfTest for some seconds.

    Args:
        arguments: as PerfTest has them.

    Raises:
        RuntimeError: it failed; the message has the end of its output.
    """
    command = ["java", "-Xmx512m", "-cp", jars(), MAIN, "--uri", url, "--time", str(seconds)]
    try:
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=seconds + SLACK_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"PerfTest did not end: {str(error.stdout)[-500:]}") from None
    return read_summary(done.stdout + done.stderr)


def read_summary(printed: str) -> Rates:
    """Return the figures of the summary at the end of PerfTest's output.

    Raises:
        RuntimeError: it has none.
    """
    rates = {which: float(text.replace(",", "")) for which, text in _RATE.findall(printed)}
    if not rates:
        raise RuntimeError(f"PerfTest printed no rates: {printed[-1500:].strip()}")
    return Rates(rates.get("sending", 0.0), rates.get("receiving", 0.0))
