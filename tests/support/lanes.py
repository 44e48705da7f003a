"""A pytest plugin that shares the tests among xdist's workers so that all end together.

The tests that use the shared Spark session (the fixture ``spark``) are one lane: the first worker
runs them all, so that a run starts one JVM for them. The other workers run everything else. A
worker whose lane is empty helps with the other lane. In a lane, what took longest in a recorded
run (``durations.json``) begins first.

A *unit* is what is scheduled as a whole: the tests of one file in one lane, the files of a folder
that share a database server, or a single test that is marked ``separate``. Knows nothing of what
the tests test.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler.protocol import Scheduling
    from xdist.workermanage import WorkerController

DURATIONS = Path(__file__).with_name("durations.json")
SHARED = frozenset(f"tests/connect/cdc/{each}" for each in ("mariadb", "mysql", "postgres"))
"""Folders whose files share a server: one after the other they start it once."""
SPARK = " (spark)"
"""Ends the name of a unit that needs the shared Spark session."""
DEFAULT_S = {SPARK: 20.0, "": 2.0}
"""Assumed for a unit without a recorded duration, by lane."""
JVM_START_S = 25.0
"""A worker helps with the Spark lane only if more than this is left: it starts a JVM first."""
_UNITS_FILE = "tidemill_units_file"
FAST_S = 3.0
"""A test that takes longer is named, if it is marked ``fast``. The rule says two seconds; a busy
machine adds to them."""


def unit_of(item: pytest.Item) -> str:
    """Return the name of the unit that a test belongs to."""
    if item.get_closest_marker("separate") is not None:
        return item.nodeid
    file = item.nodeid.partition("::")[0]
    folder = file.rpartition("/")[0]
    if folder in SHARED:
        return folder
    return file + SPARK if "spark" in getattr(item, "fixturenames", ()) else file


def load_durations(path: Path = DURATIONS) -> dict[str, float]:
    """Return the recorded seconds by unit."""
    found: dict[str, float] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def estimate(unit: str, durations: Mapping[str, float]) -> float:
    """Return the seconds that a unit will probably take."""
    return durations.get(unit, DEFAULT_S[SPARK if unit.endswith(SPARK) else ""])


def choose(
    waiting: Iterable[str], durations: Mapping[str, float], *, is_spark_worker: bool
) -> str | None:
    """Return the unit that a worker runs next, or None if nothing is left for it.

    Args:
        waiting: units that no worker has begun.
        durations: recorded seconds by unit.
        is_spark_worker: whether the worker has the shared Spark session.
    """
    lanes: dict[bool, list[str]] = {True: [], False: []}
    for unit in waiting:
        lanes[unit.endswith(SPARK)].append(unit)
    own, other = lanes[is_spark_worker], lanes[not is_spark_worker]
    helps = is_spark_worker or sum(estimate(unit, durations) for unit in other) >= JVM_START_S
    candidates = own or (other if helps else [])
    return max(candidates, key=lambda unit: estimate(unit, durations), default=None)


# --- scheduling in xdist's controller -------------------------------------------------------------


def make_scheduler(config: pytest.Config, log: Any, units_file: Path) -> Scheduling:
    """Return a scheduler for xdist. Needs the units that a worker has written to a file."""
    from xdist.scheduler import LoadScopeScheduling

    class LaneScheduling(LoadScopeScheduling):  # type: ignore[misc]
        """xdist's scheduling by scope, where a scope is a unit, with a choice of the next one."""

        def __init__(self) -> None:
            super().__init__(config, log)
            self._durations = load_durations()
            self._units: dict[str, str] = {}
            self._helpers: set[WorkerController] = set()

        def schedule(self) -> None:
            # There is none if nothing was collected, as with a path that does not exist.
            if not self._units and units_file.exists():
                self._units = json.loads(units_file.read_text())
            super().schedule()

        def _split_scope(self, nodeid: str) -> str:
            return self._units[nodeid]

        def mark_test_complete(
            self, node: WorkerController, item_index: int, duration: float = 0
        ) -> None:
            super().mark_test_complete(node, item_index, duration)
            # xdist counts the tests of all units that a worker has, after each test.
            units = self.assigned_work[node]
            unit = self._units[self.registered_collections[node][item_index]]
            if all(units[unit].values()):
                del units[unit]

        def _reschedule(self, node: WorkerController) -> None:
            # A worker that replaces one that crashed is asked before it has collected.
            if node in self.registered_collections:
                super()._reschedule(node)

        def _next_unit(self, node: WorkerController) -> str | None:
            # By name: nodes are listed in the order in which they got ready.
            first = min(self.nodes, key=lambda each: (len(each.gateway.id), each.gateway.id))
            has_session = node is first or node in self._helpers
            unit = choose(self.workqueue, self._durations, is_spark_worker=has_session)
            if unit is not None and unit.endswith(SPARK):
                self._helpers.add(node)
            return unit

        def _assign_work_unit(self, node: WorkerController) -> None:
            unit = self._next_unit(node)
            if unit is None:
                node.shutdown()
                return
            self.workqueue.move_to_end(unit, last=False)
            super()._assign_work_unit(node)

    return LaneScheduling()


class _Lanes:
    """The hooks of one pytest process: xdist's controller, one of its workers, or a plain run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._units: dict[str, str] = {}
        self._seconds: dict[str, float] = defaultdict(float)
        self._fast: set[str] = set()
        worker_input = getattr(config, "workerinput", None)
        self._is_worker = worker_input is not None
        if worker_input is not None:
            self._units_file = Path(worker_input[_UNITS_FILE])
        else:
            self._folder = tempfile.TemporaryDirectory(prefix="tidemill-lanes-")
            self._units_file = Path(self._folder.name, "units.json")

    # The units are known when a worker has collected; only the controller schedules.

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._units = {item.nodeid: unit_of(item) for item in items}
        if self._is_worker:
            fresh = self._units_file.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(self._units))
            fresh.replace(self._units_file)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        node.workerinput[_UNITS_FILE] = str(self._units_file)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Scheduling:
        return make_scheduler(config, log, self._units_file)

    # Durations are recorded where all reports arrive.

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if "fast" in report.keywords:
            self._fast.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        if self._is_worker:
            return
        if self._config.getoption("--record-durations"):
            if not self._units and self._units_file.is_file():
                self._units = json.loads(self._units_file.read_text())
            by_unit: dict[str, float] = defaultdict(float)
            for nodeid, seconds in self._seconds.items():
                by_unit[self._units[nodeid]] += seconds
            record(by_unit, self._config.rootpath)
        self._folder.cleanup()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """With --record-durations, name the tests that need the marker ``slow``."""
        late = not_fast(self._seconds, self._fast)
        if self._config.getoption("--record-durations") and late:
            terminalreporter.section(f"fast tests over {FAST_S:g} s: mark them slow")
            for nodeid, seconds in late:
                terminalreporter.line(f"{seconds:5.1f} s  {nodeid}")


def not_fast(seconds: Mapping[str, float], fast: Iterable[str]) -> list[tuple[str, float]]:
    """Return the tests marked ``fast`` that took too long, with their seconds, longest first."""
    late = [(nodeid, seconds[nodeid]) for nodeid in fast if seconds[nodeid] > FAST_S]
    return sorted(late, key=lambda each: -each[1])


def record(seconds: Mapping[str, float], root: Path, path: Path = DURATIONS) -> None:
    """Update the recorded durations, and drop those of files that are gone."""
    known = load_durations(path) | {unit: round(each, 1) for unit, each in seconds.items()}
    kept = {
        unit: each
        for unit, each in sorted(known.items())
        if (root / unit.removesuffix(SPARK).partition("::")[0]).exists()
    }
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this plugin."""
    parser.addoption(
        "--record-durations",
        action="store_true",
        help=f"write how long each file took to {DURATIONS.name}",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the hooks."""
    config.pluginmanager.register(_Lanes(config), "lanes")
