"""A multicast group of its own for each test, and a receiver in C."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.ports import reserve_port
from tidemill.direct.multicast.sockets import Address

_NUMBERS = itertools.count(1)
SOURCE = Path(__file__).with_name("mold.c")


@pytest.fixture
def group() -> Address:
    """A group that no other test of this machine uses: its port is reserved."""
    return f"239.77.{os.getpid() % 256}.{next(_NUMBERS) % 250 + 1}", reserve_port()


@pytest.fixture(scope="session")
def mold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The receiver in C, which knows the specification only."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("there is no C compiler")
    program = tmp_path_factory.mktemp("mold") / "mold"
    subprocess.run([compiler, "-O1", "-Wall", "-o", program, SOURCE], check=True)
    return program
