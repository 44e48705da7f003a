"""A command that runs until a signal ends, whatever the signal interrupts."""

from __future__ import annotations

import subprocess
import sys

import pytest

WHILE_A_LOCK_IS_HELD = """
import os, signal
from tidemill.cli.stopping import until_signal

def run(stop):
    with stop._cond:  # as in the middle of wait() and set()
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.wait(30)

until_signal(run)
print("ended")
"""
BURST = """
import os, signal, subprocess, sys
from tidemill.cli.stopping import until_signal

def run(stop):
    senders = [  # only now: a signal before this would end the program as it ends any other
        subprocess.Popen([sys.executable, "-c",
            f"import os\\nfor _ in range(3000): os.kill({os.getpid()}, {signal.SIGTERM})"])
        for _ in range(2)
    ]
    while not stop.wait(0.0001):
        pass
    for each in senders:
        each.wait(60)

until_signal(run)
print("ended")
"""
AGAIN = """
import os, signal
from tidemill.cli.stopping import event_of_signals

said = []
stop = event_of_signals(first=lambda: said.append("first"), again=said.append)
os.kill(os.getpid(), signal.SIGINT)
assert stop.wait(30)
os.kill(os.getpid(), signal.SIGTERM)
print(said)
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (WHILE_A_LOCK_IS_HELD, "ended\n"),
        (BURST, "ended\n"),  # as Linux sends for each thread of a parent that was killed
        (AGAIN, f"{['first', 15]}\n"),
    ],
    ids=["while a lock is held", "many at once", "a later one"],
)
def test_a_signal_ends_a_command_whatever_it_interrupts(program: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.returncode) == (printed, 0), done.stderr
