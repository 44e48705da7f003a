"""Clients that fetch and never read, against a real broker process and its memory."""

from __future__ import annotations

import struct
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.net.raw_client import begin_peak, call, connect, needs_peak, peak, response
from tests.protocols.kafka.keys import CREATE_TOPICS, FETCH, PRODUCE
from tests.protocols.kafka.messages import one_batch
from tests.protocols.kafka.trees import Tree, create_topics, fetch, fetched, produce, written
from tests.protocols.kafka.wire import request
from tests.support import effort
from tests.support.broker_process import BrokerProcess
from tests.support.processes import poll_until
from tidemill.net.responses import STUCK_SECONDS

BATCHES, BATCH_BYTES = 16, 6_000_000
"""More in one batch than the kernel keeps for a connection."""
BOUND = 128 << 20
MARGIN = 24 << 20
"""For one batch over the bound, 100 connections, and what malloc keeps between buffers in use."""
READERS = 100

pytestmark = needs_peak


def everything_from(offset: int) -> Tree:
    return fetch("big", offset, max_bytes=1 << 30)


def fill(broker: BrokerProcess) -> None:
    with closing(connect(broker)) as client:
        call(client, CREATE_TOPICS, 4, create_topics("big", max_message_bytes="10000000"))
        for number in range(BATCHES):
            value = bytes([number]) * BATCH_BYTES
            batch = one_batch(value, timestamp=int(time.time() * 1000))
            assert written(call(client, PRODUCE, 7, produce("big", batch))) == [(0, number)]


def read_all(broker: BrokerProcess) -> bytes:
    """Read the topic to its end, as a consumer does: one that lost its connection connects again.

    On a busy machine it may get no processor for so long that the broker takes it for stuck.
    """
    client, whole, offset = connect(broker), b"", 0
    while offset < BATCHES:
        try:
            got = fetched(call(client, FETCH, 11, everything_from(offset)))
        except ConnectionError:
            client.close()
            client = connect(broker)
            continue
        # A consumer skips a batch that the limit has cut.
        at = 0
        while len(got) - at > 12:
            base, size = struct.unpack_from(">qi", got, at)
            if at + 12 + size > len(got):
                break
            at += 12 + size
            offset = base + 1
        assert at
        whole += got[:at]
    client.close()
    return whole


WITHOUT_SENDFILE = (
    sys.executable,
    "-c",
    "import runpy; from tidemill import system; system.can_send_files = lambda: False; "
    "runpy.run_module('tidemill', run_name='__main__')",
)
"""Starts a broker that reads all ranges of files into memory."""


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize("sends_files", [False, True])
def test_consumers_that_never_read_stay_within_the_bound_and_stop_no_one(
    tmp_path: Path, sends_files: bool
) -> None:
    settings = {"limits.total_inflight_bytes": str(BOUND)}
    command = (sys.executable, "-m", "tidemill") if sends_files else WITHOUT_SENDFILE
    with BrokerProcess(tmp_path, settings=settings, command=command) as broker:
        fill(broker)
        stored = read_all(broker)
        assert len(stored) > BATCHES * BATCH_BYTES
        before = begin_peak(broker)
        silent = [connect(broker, 4096) for _ in range(READERS)]
        for client in silent:
            client.sendall(request(FETCH, 11, everything_from(0)))
        started = time.monotonic()
        results: list[bytes] = []
        consumers = [
            threading.Thread(target=lambda: results.append(read_all(broker))) for _ in range(2)
        ]
        for thread in consumers:
            thread.start()
        for thread in consumers:
            thread.join(timeout=600)
        took = time.monotonic() - started
        assert results == [stored, stored]
        # Those before them: 20 at a time fit into the bound.
        assert took < effort.bound(40 * STUCK_SECONDS, normal=600)
        assert peak(broker) - before < BOUND + MARGIN
        if not sends_files:  # ranges of files take no memory, so no client has to be closed
            assert "event=connection.not_reading" in broker.log(100_000)

        whole = 0
        for client in silent:  # it reads after all: its whole answer, or a closed socket
            try:
                got = fetched(response(client, FETCH, 11))
            except ConnectionError:
                continue
            assert stored.startswith(got)
            whole += 1
            if whole == 2:
                break
        assert whole == 2
        poll_until(lambda: read_all(broker) == stored, 30, "the broker serves as before")
