"""A pytest plugin that measures the processor time of each test, with that of its processes.

With ``--processor-time N`` a run ends with the N files and the N tests that cost the most. Unlike
seconds on a clock, processor time says little about what else the machine does. It includes the
threads of the test's process and all its descendants: those that ended and were waited for, and
those that still run. A broker or a JVM that several tests share counts for the test during which it
worked.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PROPERTY = "processor time"
NOTHING_S = 0.05
"""What costs less is not listed."""


def spent() -> float:
    """Return the seconds that this process and its descendants have spent so far."""
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return own + (_of_descendants() if _has_children() else 0.0)


def _has_children() -> bool:
    """Return whether a child of this process runs, or was not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _of_descendants() -> float:
    """Return the seconds of all descendants that run, and of those that these have waited for."""
    children: dict[int, list[int]] = defaultdict(list)
    seconds: dict[int, float] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            text = Path("/proc", entry, "stat").read_text()
        except OSError:
            continue  # it ended meanwhile
        # The name of the program may contain spaces. The fields behind it are those of proc(5)
        # from the third on: the parent is 4; utime, stime, cutime and cstime are 14 to 17.
        fields = text.rpartition(")")[2].split()
        children[int(fields[1])].append(int(entry))
        seconds[int(entry)] = sum(map(int, fields[11:15])) / TICKS_PER_S
    total, waiting = 0.0, [os.getpid()]
    while waiting:
        found = children.get(waiting.pop(), [])
        total += sum(seconds[pid] for pid in found)
        waiting.extend(found)
    return total


class _Meter:
    """The hooks of one pytest process."""

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._before = spent()
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_collection_finish(self) -> None:
        self._before = spent()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add to a test's last report what it cost. To look at all processes costs time, too."""
        report = yield
        if report.when != "teardown":
            return report
        now = spent()
        # It falls if a process ends that nobody waits for.
        report.user_properties = [(PROPERTY, max(0.0, now - self._before))]
        self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, seconds in report.user_properties:
            if name == PROPERTY and isinstance(seconds, float):
                self._seconds[report.nodeid] += seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        by_file: dict[str, float] = defaultdict(float)
        for nodeid, seconds in self._seconds.items():
            by_file[nodeid.partition("::")[0]] += seconds
        terminalreporter.section(f"processor time: {sum(by_file.values()):.0f} s in tests")
        for costs in (by_file, self._seconds):
            most = sorted(costs.items(), key=lambda each: -each[1])[: self._shown]
            for name, seconds in most:
                if seconds >= NOTHING_S:
                    terminalreporter.line(f"{seconds:7.1f} s  {name}")
            terminalreporter.line("")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of this plugin."""
    parser.addoption(
        "--processor-time",
        type=int,
        default=0,
        metavar="N",
        help="end with the N files and the N tests that cost the most processor time",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the hooks."""
    if shown := config.getoption("--processor-time"):
        config.pluginmanager.register(_Meter(shown), "processor_time")
