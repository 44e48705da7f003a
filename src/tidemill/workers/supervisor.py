"""Runs worker processes: starts them, restarts them with growing pauses, and stops them.

A worker is a command. It gets a session of its own, so that a Ctrl-C on the broker's terminal does
not reach it before the broker stops it, and so that its children end with it. On Linux it also ends
if the broker is killed. This module must not know what a worker does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import structlog

from tidemill.workers.errors import UnknownWorkerError, WorkerNotNeededError
from tidemill.workers.output import Copy, OutputLimits, OutputReader, WorkerLog, to_stderr
from tidemill.workers.spec import WORKER_VARIABLE, Timing, WorkerSpec

State = Literal["waiting", "running", "backing off", "stopped"]

# Runs in the child before it becomes the worker. On Linux the kernel sends SIGTERM when the broker
# ends, also if it was killed.
_LAUNCHER = """\
import os, sys
from tidemill.system import end_with_parent
end_with_parent()
if os.getppid() != int(sys.argv[1]):
    sys.exit("the broker has ended")
os.execv(sys.argv[2], sys.argv[2:])
"""
_LOOK_S = 0.05
"""How often the supervisor looks whether the children of a worker have ended."""

log = structlog.get_logger("tidemill.workers")


@dataclass(slots=True)
class WorkerStatus:
    """The state of a worker.

    Attributes:
        state: "waiting" has nothing to do yet; "backing off" has ended and is started again.
        since: when this state began, in seconds since the epoch.
        pid: of the running process.
        restarts: how often it was started again since the start of the broker.
        last_exit: the last exit code, negative for a signal; None: it has not ended yet.
        reason: why it ended: its last error, or the last line that it wrote and that is not about
            its usual work.
        retry_s: the pause before the next start, in seconds, while it is backing off.
    """

    name: str
    state: State = "waiting"
    since: float = field(default_factory=time.time)
    pid: int | None = None
    restarts: int = 0
    last_exit: int | None = None
    reason: str = ""
    retry_s: float | None = None

    def values(self) -> dict[str, Any]:
        """Return the status as JSON values."""
        return asdict(self)


class Worker:
    """One worker, whose process is started again whenever it ends."""

    def __init__(self, spec: WorkerSpec, timing: Timing, output: WorkerLog) -> None:
        self.status = WorkerStatus(spec.name)
        self.output = output
        self._spec = spec
        self._timing = timing
        self._order: Literal["", "restart", "stop"] = ""
        self._ordered = asyncio.Event()
        self._tried = asyncio.Event()
        self._starts = 0
        self._reported: tuple[int | None, str] | None = None
        self._is_repeating = False  # it fails for the reason that was reported

    async def run(self) -> None:
        """Run the worker until ``stop``."""
        timing = self._timing
        pause = timing.first_pause
        while self._order != "stop":
            if not self._starts and not self._spec.wanted():
                await self._wait(timing.look)
                continue
            self._order = ""
            self._ordered.clear()
            began = time.monotonic()
            await self._run_once()
            if self._order:  # no pause: it was stopped on purpose
                pause = timing.first_pause
                self._forget_failures()
                continue
            if time.monotonic() - began >= timing.steady:
                pause = timing.first_pause
                self._forget_failures()
            self._report(pause)
            await self._wait(pause)
            pause = min(2 * pause, timing.longest_pause)
        self._become("stopped")
        self._tried.set()

    async def restart(self) -> None:
        """Stop the process if it runs, and start it now. Returns after the start.

        Raises:
            WorkerNotNeededError: there is nothing to do for it, or the supervisor is stopping.
        """
        if self._order != "stop" and self.status.state != "waiting":
            self._tried.clear()
            self._order = "restart"
            self._ordered.set()
            await self._tried.wait()
        if self._order == "stop" or self.status.state == "waiting":
            name, state = self.status.name, self.status.state
            raise WorkerNotNeededError(
                f"worker {name} can't be restarted: it is {state}",
                hint="It starts by itself when there is something to do for it.",
            )

    def stop(self) -> None:
        """Order it to stop; ``run`` returns then."""
        self._order = "stop"
        self._ordered.set()

    async def _wait(self, seconds: float) -> None:
        """Wait for some time, or for an order."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ordered.wait(), seconds)

    def _become(
        self, state: State, *, pid: int | None = None, retry_s: float | None = None
    ) -> None:
        self.status.state, self.status.since = state, time.time()
        self.status.pid, self.status.retry_s = pid, retry_s

    async def _run_once(self) -> None:
        """Start the process, and wait until it has ended, by itself or by an order."""
        status, name = self.status, self._spec.name
        _, first = self.output.last(0)
        try:
            reader, process = await self._spawn()
        except OSError as error:
            status.last_exit, status.reason = None, str(error)
            return
        finally:
            status.restarts += bool(self._starts)
            self._starts += 1
            self._tried.set()
        self._become("running", pid=process.pid)
        if not self._is_repeating:
            log.info("worker.started", worker=name, pid=process.pid)
        ended = asyncio.ensure_future(process.wait())
        ordered = asyncio.ensure_future(self._ordered.wait())
        await self._wait_until_steady(process.pid, ended, ordered)
        await asyncio.wait((ended, ordered), return_when=asyncio.FIRST_COMPLETED)
        ordered.cancel()
        if not ended.done():
            await self._end(process.pid, ended)
        status.last_exit = await ended
        await self._end_children(process.pid)
        await asyncio.to_thread(reader.finish, self._timing.leftovers)
        status.reason = "" if self._order else self.output.reason(first)
        self.output.know_errors(first)

    async def _wait_until_steady(self, pid: int, *ends: asyncio.Future[Any]) -> None:
        """After repeated failures, wait until it has run for long, and log that it works again."""
        if not self._is_repeating:
            return
        done, _ = await asyncio.wait(
            ends, timeout=self._timing.steady, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            self._forget_failures()
            log.info("worker.started", worker=self._spec.name, pid=pid)

    def _forget_failures(self) -> None:
        """Report the next failure, also if it is the same."""
        self._reported, self._is_repeating = None, False
        self.output.forget_errors()

    async def _spawn(self) -> tuple[OutputReader, asyncio.subprocess.Process]:
        """Start the process, and the thread that reads its output.

        Raises:
            OSError: the system does not allow it.
        """
        reader = OutputReader(self.output)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _LAUNCHER, str(os.getpid()), *self._spec.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=reader.writable,
                stderr=reader.writable,
                start_new_session=True,
                env={
                    **os.environ,
                    **self._spec.env,
                    "PYTHONUNBUFFERED": "1",
                    WORKER_VARIABLE: self._spec.name,
                },
            )
        except OSError:
            reader.finish(0)
            raise
        finally:
            os.close(reader.writable)
        return reader, process

    async def _end(self, pid: int, ended: asyncio.Future[int]) -> None:
        """Send SIGTERM, and SIGKILL to the whole session if that does not end the process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        await asyncio.wait((ended,), timeout=self._spec.stop_s)
        if not ended.done():
            seconds = self._spec.stop_s
            log.warning("worker.killed", worker=self._spec.name, pid=pid, after_seconds=seconds)
            _kill_session(pid)

    async def _end_children(self, pid: int) -> None:
        """Wait until the children of a process that has ended are gone too, or kill them."""
        deadline = time.monotonic() + self._timing.leftovers
        while _has_processes(pid):
            if time.monotonic() > deadline:
                _kill_session(pid)
                return
            await asyncio.sleep(_LOOK_S)

    def _report(self, pause: float) -> None:
        self._become("backing off", retry_s=pause)
        status = self.status
        failure = status.last_exit, status.reason
        self._is_repeating = bool(status.reason) and failure == self._reported
        self._reported = failure
        if self._is_repeating:
            return  # the log has it once; the status has the number of restarts
        if status.last_exit is None:
            log.error(
                "worker.not_started",
                worker=status.name,
                error=status.reason,
                retry_seconds=pause,
            )
        else:
            log.warning(
                "worker.ended",
                worker=status.name,
                exit_code=status.last_exit,
                reason=status.reason,
                retry_seconds=pause,
            )


def _has_processes(session: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-session, os.WNOHANG)  # in a container, the broker can be their new parent
    try:
        os.killpg(session, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _kill_session(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


async def _restart(worker: Worker) -> None:
    with contextlib.suppress(WorkerNotNeededError):  # the supervisor is stopping
        await worker.restart()


TIMING = Timing()
LIMITS = OutputLimits()


class Supervisor:
    """Runs workers. ``start`` it in a running event loop when they can do their work.

    Args:
        specs: the workers. Their names are different.
        copy: writes their output to the broker's log.
        timing: pauses.
        limits: of their output.
    """

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        copy: Copy = to_stderr,
        timing: Timing = TIMING,
        limits: OutputLimits = LIMITS,
    ) -> None:
        self._workers = {
            spec.name: Worker(spec, timing, WorkerLog(spec.name, copy, limits)) for spec in specs
        }
        self._tasks: list[asyncio.Task[None]] = []
        self._restarts: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start all workers that are wanted."""
        self._tasks = [asyncio.create_task(each.run()) for each in self._workers.values()]

    async def stop(self) -> None:
        """Stop all workers together, and wait until they have ended."""
        for worker in self._workers.values():
            worker.stop()
        await asyncio.gather(*self._tasks)

    def statuses(self) -> list[WorkerStatus]:
        """Return the status of each worker."""
        return [each.status for each in self._workers.values()]

    def restart_all(self, why: str) -> None:
        """Stop all processes, each in its time, and start them again.

        Args:
            why: the reason, for the log.
        """
        for worker in self._workers.values():
            if worker.status.state in ("running", "backing off"):
                log.warning("worker.restarting", worker=worker.status.name, why=why)
                task = asyncio.create_task(_restart(worker))
                self._restarts.add(task)
                task.add_done_callback(self._restarts.discard)

    def worker(self, name: str) -> Worker:
        """Return a worker.

        Raises:
            UnknownWorkerError: there is none with this name.
        """
        if name not in self._workers:
            names = ", ".join(self._workers) or "none"
            raise UnknownWorkerError(f"worker {name} does not exist", hint=f"Workers: {names}.")
        return self._workers[name]
