"""``tests/support/processor_time.py`` counts what a test and its processes spend."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.support import processor_time

WORK = "import time\nwhile time.process_time() < {seconds}: pass\n"


@pytest.fixture
def waiting_child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has worked for 0.1 s and then waits."""
    code = WORK.format(seconds=0.1) + "print('done', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        yield child
        child.kill()


def test_a_process_that_runs_is_counted(waiting_child: subprocess.Popen[bytes]) -> None:
    assert waiting_child.stdout is not None
    waiting_child.stdout.readline()
    with_child = processor_time.spent()
    waiting_child.kill()
    waiting_child.wait()
    # It is counted by the kernel's ticks of 10 ms while it runs, and afterwards as well.
    assert abs(processor_time.spent() - with_child) < 0.08


def test_own_work_and_that_of_ended_processes_is_counted() -> None:
    before = processor_time.spent()
    subprocess.run([sys.executable, "-c", WORK.format(seconds=0.1)], check=True)
    limit = time.process_time() + 0.1
    while time.process_time() < limit:
        pass
    assert processor_time.spent() - before >= 0.15
