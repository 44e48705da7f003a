"""Fixtures for all tests: broker processes, and the Spark session that a test run shares."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import effort, memory, other_system, spark_archive
from tests.support.broker_process import BrokerProcess
from tests.support.in_process import InProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = [
    "tests.support.failures",
    "tests.support.lanes",
]

memory.use()
# The programs that tests start inherit it.
spark_archive.set_variables()
# They are hundreds of Python processes. Without stored bytecode each one compiles tidemill again,
# and pytest rewrites the assertions of all tests in each run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Under nohup, or in the background of a script, these signals are ignored, and the programs that
# tests start would ignore them, too. They inherit no handler: for them the default is restored.
for _number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)


# How long an example takes depends on the load of the machine, and is not a defect. The examples
# are the same in each run: chance belongs to the nightly runs.
settings.register_profile(
    "any load",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not effort.IS_NIGHTLY,
)
settings.load_profile("any load")

NOT_FAST = ("spark", "crash", "slow", "nightly")
"""Markers of the tests that ``make test-fast`` leaves out."""
ASYNC_TIMEOUT_S = 600
NIGHTLY_TIMEOUT_S = 4 * 3600
_FOLDERS = itertools.count()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what starts a JVM and what is fast; leave long random tests to nightly runs."""
    for item in items:
        if {"spark", "java"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("spark")
        if not any(item.get_closest_marker(name) for name in NOT_FAST):
            item.add_marker("fast")
        if effort.IS_NIGHTLY:
            item.add_marker(pytest.mark.timeout(NIGHTLY_TIMEOUT_S), append=False)
    if not effort.IS_NIGHTLY:
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if item not in set(nightly)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--other-system",
        action="store_true",
        help="Take away what only Linux has, to test what runs on other systems.",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine.

    It runs on the loop of the fixture ``loop_runner``, which other fixtures can use before. Without
    that fixture it gets a loop of its own, made by the fixture ``loop_factory`` if there is one.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given: dict[str, Any] = pyfuncitem.funcargs
    test = pyfuncitem.obj(**{name: given[name] for name in pyfuncitem._fixtureinfo.argnames})
    bounded = asyncio.wait_for(test, ASYNC_TIMEOUT_S)
    if "loop_runner" in given:
        given["loop_runner"].run(bounded)
    else:
        with asyncio.Runner(loop_factory=given.get("loop_factory")) as runner:
            runner.run(bounded)
    return True


def pytest_configure(config: pytest.Config) -> None:
    """Collect no garbage while tests are collected: there is almost none."""
    gc.disable()
    if config.getoption("--other-system"):
        monkeypatch = pytest.MonkeyPatch()
        config.add_cleanup(monkeypatch.undo)
        other_system.leave_linux(monkeypatch)
        folder = Path(tempfile.mkdtemp(prefix="other-system-"))
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        for name, value in other_system.hide_linux(folder).items():
            monkeypatch.setenv(name, value)


def pytest_collection_finish() -> None:
    """Collect garbage again, but do not look through ten thousand tests and their modules."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def tmp_path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """An empty folder, as pytest's own: in memory, or with the marker ``disk`` on the disk.

    If the test passes, it is removed.

    pytest's own looks through the folders of all earlier tests for a free name, and keeps them.
    """
    name = re.sub(r"\W", "_", request.node.name)[:30]
    if request.node.get_closest_marker("disk"):
        folder = memory.new_folder_on_disk(name)
    else:
        folder = tmp_path_factory.getbasetemp() / f"{name}-{next(_FOLDERS)}"
        folder.mkdir(mode=0o700)
    failed = request.session.testsfailed
    yield folder
    if request.session.testsfailed == failed:
        shutil.rmtree(folder, ignore_errors=True)


class BrokerFactory:
    """Makes broker processes below one folder; ``close`` kills those that still run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[BrokerProcess] = []

    def __call__(self, **options: Any) -> BrokerProcess:
        """Start a broker and wait until it is ready; options are ``BrokerProcess``'s."""
        broker = BrokerProcess(self._folder / f"broker-{len(self._made)}", **options)
        self._made.append(broker)
        return broker.start()

    def close(self) -> None:
        """Kill every broker that runs."""
        for broker in self._made:
            broker.__exit__()


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[BrokerFactory]:
    """Start broker processes: ``broker = start_broker(settings={...})``."""
    factory = BrokerFactory(tmp_path)
    yield factory
    factory.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session that all tests of this process share.

    ``tests/support/lanes.py`` runs all tests with this fixture in one process where it can.
    """
    pytest.importorskip("pyspark")
    from tidemill.spark import spark_session
    from tidemill.spark.base import jvm
    from tidemill.spark.base.java import find_java
    from tidemill.spark.errors import JavaNotFoundError

    try:
        find_java()
    except JavaNotFoundError as missing:
        pytest.skip(str(missing))
    yield spark_session("tests", log_file=tmp_path_factory.mktemp("spark") / "jvm.log")
    jvm.shutdown()


@pytest.fixture
def warm_spark(spark: SparkSession) -> InProcess:
    """Run programs and commands that need Spark in this process, without another JVM."""
    return InProcess(spark)
