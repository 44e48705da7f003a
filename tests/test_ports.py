"""The ports of test servers: one process gives none twice, and two processes share none."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.support.ports import BLOCK, reserve_port

ROOT = Path(__file__).parent.parent
TEN = "from tests.support.ports import reserve_port; print(*(reserve_port() for _ in range(10)))"


def test_ports_are_free_and_differ() -> None:
    ports = [reserve_port() for _ in range(50)]
    assert len(set(ports)) == 50
    for port in ports:
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))


def test_another_process_gets_others() -> None:
    ports = {reserve_port() for _ in range(10)}
    done = subprocess.run(
        [sys.executable, "-c", TEN], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not ports & set(map(int, done.stdout.split()))


def test_a_port_in_use_is_left_out() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", reserve_port()))
        taken = server.getsockname()[1]
        assert taken not in {reserve_port() for _ in range(BLOCK)}  # once around the block
