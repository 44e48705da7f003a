"""Runs Apache Kafka's perf tools, and reads what they print."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cache

from tests.support.apache_kafka import find_java, find_tools_classpath

PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER = "org.apache.kafka.tools.ConsumerPerformance"
TIMEOUT_S = 300
_NUMBER = r"([\d.,]+)"
_SENT = re.compile(
    rf"{_NUMBER} records sent, {_NUMBER} records/sec \({_NUMBER} MB/sec\).*?"
    rf"{_NUMBER} ms 50th, {_NUMBER} ms 95th, {_NUMBER} ms 99th, {_NUMBER} ms 99.9th"
)


@dataclass(frozen=True)
class Produced:
    """The last line of the producer's tool. MB are 10^6 bytes."""

    records_per_s: float
    mb_per_s: float
    p50_ms: float
    p99_ms: float
    p999_ms: float


@cache
def _java() -> tuple[str, ...]:
    """Return the start of a command.

    Raises:
        KafkaNotFoundError: There is no Java, or the jars of the tools are missing.
    """
    return (find_java(), "-Xmx512m", "-cp", find_tools_classpath())


def check() -> None:
    """Look for the tools.

    Raises:
        KafkaNotFoundError: There is no Java, or the jars of the tools are missing.
    """
    _java()


def _run(tool: str, *arguments: str) -> str:
    done = subprocess.run(
        [*_java(), tool, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{tool} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def _float(text: str) -> float:
    return float(text.replace(",", ""))


def produce(bootstrap: str, topic: str, count: int, size: int, **properties: str) -> Produced:
    """Write ``count`` records, after a fifth of them for a warm-up.

    Args:
        properties: Of the producer, with ``_`` instead of dots.

    Raises:
        RuntimeError: The tool failed.
    """
    given = [f"{key.replace('_', '.')}={value}" for key, value in properties.items()]
    out = _run(
        PRODUCER,
        *("--bootstrap-server", bootstrap, "--topic", topic, "--throughput", "-1"),
        *("--num-records", str(count + count // 5), "--warmup-records", str(count // 5)),
        *("--record-size", str(size), "--reporting-interval", "600000"),
        *(("--command-property", *given) if given else ()),
    )
    return parse_produced(out, size)


def parse_produced(out: str, size: int) -> Produced:
    """Read the last summary in the output of the producer's tool.

    Args:
        size: Bytes of a record.

    Raises:
        RuntimeError: There is none.
    """
    found = _SENT.findall(out)
    if not found:
        raise RuntimeError(f"no summary of the producer's tool: {out}")
    _, rate, _, p50, _, p99, p999 = (_float(each) for each in found[-1])
    return Produced(rate, rate * size / 1e6, p50, p99, p999)


def consume(bootstrap: str, topic: str, count: int, size: int) -> float:
    """Read ``count`` records of ``size`` bytes; return MB per second without the rebalance.

    Raises:
        RuntimeError: The tool failed, or read fewer records.
    """
    out = _run(
        CONSUMER,
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(count)),
        *("--timeout", "30000", "--hide-header"),
    )
    return parse_consumed(out, count) * size / 1e6


def parse_consumed(out: str, count: int) -> float:
    """Return the records per second in the output of the consumer's tool.

    Raises:
        RuntimeError: It read fewer than ``count`` records, or there is no such line.
    """
    lines = [line.split(", ") for line in out.splitlines() if line.count(", ") == 9]
    if not lines:
        raise RuntimeError(f"no figures of the consumer's tool: {out}")
    fields = lines[-1]
    if int(fields[4]) < count:
        raise RuntimeError(f"the consumer's tool read {fields[4]} of {count} records")
    return _float(fields[9])
