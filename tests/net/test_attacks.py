"""One hostile connection takes no more memory than its bound, and does not delay its neighbours."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.net import attack
from tests.net.raw_client import attacking, begin_peak, call, connect, needs_peak, peak
from tests.protocols.kafka.keys import CREATE_TOPICS, PRODUCE
from tests.protocols.kafka.messages import one_batch
from tests.protocols.kafka.trees import create_topics, produce, written
from tests.support import effort
from tests.support.broker_process import BrokerProcess

TWO_MEGABYTES = produce("t", *[one_batch(b"x" * 1_000_000)] * 2)
CONNECTION_BOUND = 32 << 20
REQUEST_BOUND = 100 << 20
"""A trickle holds one request, which may be as large as limits.request_bytes."""
MARGIN = 48 << 20
"""For the neighbour's requests, the page cache of their log, and what malloc keeps."""
ROUNDS, REQUESTS = int(effort.bound(10, normal=2)), 20
MORE_MS = effort.bound(100, normal=5000)
TRIES = 3
"""A broker that is delayed is delayed every time. A machine is busy now and then."""

FILES = 1024
"""The usual hard limit of a login session."""
LIMITED = (
    f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))"
)
LIMITED += "; os.execv(sys.executable, [sys.executable, '-m', 'tidemill', *sys.argv[1:]])"
LINES = 100
"""An attacker who is refused again and again must not fill the disk with log lines."""

pytestmark = needs_peak


def p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99) - 1]


def measure(broker: BrokerProcess, kind: str) -> tuple[float, float]:
    """Return the p99 in ms of a neighbour's requests without and with the attack, interleaved."""
    calm: list[float] = []
    under: list[float] = []
    ports = (str(broker.port), str(broker.amqp_port))
    with closing(connect(broker)) as neighbour:

        def produce(took: list[float]) -> None:
            for _ in range(REQUESTS):
                began = time.perf_counter()
                answer = call(neighbour, PRODUCE, 7, TWO_MEGABYTES)
                took.append((time.perf_counter() - began) * 1000)
                assert [code for code, _ in written(answer)] == [0, 0]

        for _ in range(ROUNDS):
            produce(calm)
            with attacking("tests.net.attack", kind, *ports):
                produce(under)
    return p99(calm), p99(under)


ALIKE = ("2000-channels", "trickle", "empty-bodies", "idle-connections")
"""Attacks that cost the broker what others cost it, too: nightly runs have them."""


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(each, marks=[pytest.mark.nightly] if each in ALIKE else [])
        for each in attack.KINDS
    ],
)
def test_one_hostile_connection_stays_within_its_bound_and_delays_no_one(
    tmp_path: Path, kind: str
) -> None:
    settings = {"limits.connection_inflight_bytes": str(CONNECTION_BOUND)}
    limited = (sys.executable, "-c", LIMITED)
    command = limited if kind == "idle-connections" else (sys.executable, "-m", "tidemill")
    with BrokerProcess(tmp_path, settings=settings, command=command) as broker:
        with closing(connect(broker)) as client:
            call(client, CREATE_TOPICS, 2, create_topics("t", partitions=2))
            call(client, PRODUCE, 7, TWO_MEGABYTES)
        before = begin_peak(broker)
        found = []
        for _ in range(TRIES):
            calm, under = measure(broker, kind)
            found.append(f"{under:.1f} ms, and {calm:.1f} ms without the attack")
            if under <= calm + MORE_MS:
                break
        else:
            pytest.fail(f"{kind}: {found}")
        bound = REQUEST_BOUND if kind in attack.KAFKA else CONNECTION_BOUND
        assert peak(broker) - before < bound + MARGIN
        with closing(connect(broker)) as client:  # the attacker is gone
            call(client, PRODUCE, 7, TWO_MEGABYTES)
        refused = broker.log(10_000_000).count("connection.refused")
        assert (kind == "idle-connections") <= refused < LINES
