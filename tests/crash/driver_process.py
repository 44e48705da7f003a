"""The driver of the crash tests of topic sinks: starts it, watches its steps and kills it.

Must not know: clusters, what the driver's queries write.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.crash.spark_driver import Job
from tests.support import environment
from tests.support.processes import ServerProcess

WAIT_S = 600.0


class DriverProcess:
    """The driver's process with its JVM.

    Args:
        job: What it does.
        folder: For its log and its settings.
        dice: Decides what is left to chance.

    Attributes:
        notes: What was killed.
    """

    def __init__(self, job: Job, folder: Path, dice: random.Random) -> None:
        self._job, self._folder, self._dice = job, folder, dice
        self._driver: ServerProcess | None = None
        self._left: list[psutil.Process] = []
        self.notes: list[str] = []

    @property
    def driver(self) -> ServerProcess:
        assert self._driver is not None, "not started"
        return self._driver

    def start(self) -> None:
        path = self._folder / "job.json"
        self._job.save(path)
        command = [sys.executable, "-m", "tests.crash.spark_driver", str(path)]
        env = environment.without_settings()
        self._driver = ServerProcess("driver", command, self._folder / "driver.log", env=env)

    def events(self) -> list[str]:
        path = Path(self._job.events)
        return path.read_text().splitlines() if path.exists() else []

    def wait_for_batches(self, wanted: int) -> None:
        """Wait until each query has finished this many more batches."""
        begun = len(self.events())

        def finished() -> bool:
            new = self.events()[begun:]
            return all(
                sum(line.startswith(f"batch {name} ") for line in new) >= wanted
                for name in ("copy", "counts")
            )

        self.driver.wait_until(finished, WAIT_S)

    def kill_driver(self, which: str) -> None:
        """Kill the driver: ``all`` of it, or ``python`` or ``jvm`` first and the rest later."""
        driver = psutil.Process(self.driver.pid)
        family = [driver, *driver.children(recursive=True)]
        jvms = [each for each in driver.children() if _is_jvm(each)]
        first = {"all": family, "python": [driver], "jvm": jvms}[which]
        for process in first:
            kill(process)
        self.notes.append(f"driver: {which}")
        if which != "all":
            psutil.wait_procs(family, timeout=self._dice.random() * 0.5)
            for process in [driver, *jvms]:
                kill(process)
        self.driver.kill()
        self._left += family

    def _kill_one_of(self, kind: str, found: Sequence[psutil.Process]) -> bool:
        if not found:
            return False
        kill(self._dice.choice(found))
        self.notes.append(kind)
        return True

    def finish(self) -> None:
        """Let the queries read what is left, and wait until the driver ends."""
        Path(self._job.stop).touch()
        assert self.driver.wait(WAIT_S) == 0, self.context()
        _, alive = psutil.wait_procs(self._left, timeout=60)
        assert not alive, f"left behind: {alive}"

    def end(self) -> None:
        """Kill every process that is left."""
        for process in self._left:
            kill(process)
        if self._driver is None or self._driver.exit_code is not None:
            return
        family = psutil.Process(self.driver.pid).children(recursive=True)
        self.driver.kill()
        for process in family:
            kill(process)

    def context(self) -> str:
        lines = self.events()[-15:]
        log = self.driver.output(3000)
        return f"{self.notes}\n" + "\n".join(lines) + f"\n{log}"


def _is_jvm(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.name() == "java")
    return False


def kill(process: psutil.Process) -> None:
    """Kill a process with SIGKILL, if it has not ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
