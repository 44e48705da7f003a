"""The supervisor starts workers, restarts them with pauses, and stops them with their children."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import structlog

from tests.support.logged import logged
from tests.support.processes import poll_until
from tests.workers.running import FAST, Log, lives, only, python, supervised, until
from tidemill.workers.errors import UnknownWorkerError, WorkerNotNeededError
from tidemill.workers.spec import Timing, WorkerSpec

WAITS = "print('up'); import time; time.sleep(600)"
DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up')\n"
    "time.sleep(600)"
)
WITH_CHILD = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print('child', child.pid); time.sleep(600)"
)
FAILS = "import sys; print('working'); sys.exit('error: no such file\\nhint: create it')"


async def test_a_worker_runs_until_it_is_stopped_and_its_lines_have_its_name() -> None:
    log = Log()
    async with supervised([python("a", WAITS), python("b", WAITS)], log=log) as supervisor:
        await until(lambda: sorted(log.lines) == ["[a] up", "[b] up"], "both have started")
        statuses = supervisor.statuses()
        assert [(each.name, each.state) for each in statuses] == [
            ("a", "running"),
            ("b", "running"),
        ]
        pids = [each.pid for each in statuses]
    assert [each.state for each in supervisor.statuses()] == ["stopped", "stopped"]
    assert [each.pid for each in supervisor.statuses()] == [None, None]
    assert not any(lives(pid or 0) for pid in pids)


async def test_a_worker_knows_its_name() -> None:
    log = Log()
    program = "import os, time; print(os.environ['TIDEMILL_WORKER']); time.sleep(600)"
    async with supervised([python("pipeline/a", program)], log=log):
        await until(lambda: log.lines == ["[pipeline/a] pipeline/a"], "it has written its name")


async def test_a_worker_that_fails_is_started_again_with_growing_pauses_and_its_error_is_kept() -> (
    None
):
    with structlog.testing.capture_logs() as events:
        async with supervised([python("a", FAILS)]) as supervisor:
            status = only(supervisor)
            await until(lambda: status.restarts >= 4, "restarts")
            await until(lambda: status.state == "backing off", "its end")
            assert (status.last_exit, status.reason) == (1, "error: no such file")
            assert (status.pid, status.retry_s) == (None, FAST.longest_pause)
    ended = [each for each in events if each["event"] == "worker.ended"]
    assert [(each["worker"], each["reason"], each["retry_seconds"]) for each in ended] == [
        ("a", "error: no such file", 0.01)
    ]


async def test_a_worker_that_fails_again_and_again_is_logged_once_for_each_reason(
    tmp_path: Path,
) -> None:
    told, log = tmp_path / "reason", Log()
    told.write_text("first")
    (tmp_path / "next").write_text("second")
    fails = f"import sys; sys.exit('error: ' + open({str(told)!r}).read() + '\\nhint: do it')"
    with logged() as events:
        async with supervised([python("a", fails)], log=log) as supervisor:
            status = only(supervisor)
            for reason in ("first", "second"):
                if reason == "second":
                    (tmp_path / "next").replace(told)
                await until(lambda: status.reason == f"error: {reason}", reason)  # noqa: B023
                several = status.restarts + 3
                await until(lambda: status.restarts >= several, "restarts")  # noqa: B023
    ended = [each["reason"] for each in events if each["event"] == "worker.ended"]
    assert ended == ["error: first", "error: second"]
    assert len([each for each in events if each["event"] == "worker.started"]) == 3
    assert log.lines == [
        *("[a] error: first", "[a] hint: do it"),
        *("[a] error: second", "[a] hint: do it"),
    ]


async def test_a_worker_that_works_after_repeated_failures_is_logged(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    program = (
        f"import os, sys, time; os.path.exists({str(allowed)!r}) or sys.exit('error: no')\n"
        "time.sleep(600)"
    )
    timing = Timing(first_pause=0.01, longest_pause=0.01, steady=1, look=0.01)
    with logged() as events:
        async with supervised([python("a", program)], timing) as supervisor:
            status = only(supervisor)
            await until(lambda: status.restarts >= 2, "restarts")
            allowed.touch()
            await until(lambda: status.state == "running", "it works")
            await until(lambda: events[-1].get("pid") == status.pid, "that is logged")
    assert len([each for each in events if each["event"] == "worker.ended"]) == 1


async def test_after_a_steady_time_the_pauses_begin_again() -> None:
    timing = Timing(first_pause=0.01, longest_pause=60, steady=0, look=0.01)
    with structlog.testing.capture_logs() as events:
        async with supervised([python("a", FAILS)], timing) as supervisor:
            await until(lambda: only(supervisor).restarts >= 3, "restarts")
    pauses = {each["retry_seconds"] for each in events if each["event"] == "worker.ended"}
    assert pauses == {0.01}


async def test_a_worker_that_is_killed_is_started_again_and_takes_nothing_with_it() -> None:
    async with supervised([python("a", WAITS), python("b", WAITS)]) as supervisor:
        a, b = supervisor.statuses()
        await until(lambda: a.state == b.state == "running", "both run")
        first, other = a.pid, b.pid
        os.kill(first or 0, signal.SIGKILL)
        await until(lambda: a.state == "running" and a.pid != first, "the restart")
        assert (a.restarts, a.last_exit) == (1, -signal.SIGKILL)
        assert (b.pid, b.restarts) == (other, 0)


async def test_all_that_runs_is_restarted_for_a_reason() -> None:
    idle = python("c", WAITS, wanted=lambda: False)
    with structlog.testing.capture_logs() as events:
        async with supervised([python("a", WAITS), python("b", WAITS), idle]) as supervisor:
            a, b, c = supervisor.statuses()
            await until(lambda: a.state == b.state == "running", "both have started")
            pids = a.pid, b.pid
            supervisor.restart_all("new certificate")
            await until(lambda: a.restarts == b.restarts == 1, "both were started again")
            await until(lambda: a.state == b.state == "running", "both run")
            assert c.state == "waiting"
            assert not {a.pid, b.pid} & {*pids}
    found = [each for each in events if each["event"] == "worker.restarting"]
    assert [(each["worker"], each["why"]) for each in found] == [
        ("a", "new certificate"),
        ("b", "new certificate"),
    ]


async def test_a_program_that_does_not_exist_is_tried_again() -> None:
    spec = WorkerSpec("a", ["/does/not/exist"])
    async with supervised([spec]) as supervisor:
        status = only(supervisor)
        await until(lambda: status.state == "backing off" and status.restarts > 1, "retries")
        assert "/does/not/exist" in status.reason or "No such file" in status.reason


async def test_a_system_without_processes_for_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    descriptors = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    with structlog.testing.capture_logs() as events:
        async with supervised([python("a", WAITS)]) as supervisor:
            status = only(supervisor)
            await until(lambda: status.restarts > 2, "retries")
            assert "temporarily unavailable" in status.reason
            monkeypatch.undo()
            await until(lambda: status.state == "running", "a start")
    assert events[0]["event"] == "worker.not_started"
    await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, "no leak")


async def test_a_worker_that_ignores_sigterm_is_killed_after_its_time() -> None:
    log = Log()
    with structlog.testing.capture_logs() as events:
        async with supervised([python("a", DEAF, stop_s=0.2)], log=log) as supervisor:
            await until(lambda: log.lines == ["[a] up"], "it runs")
            pid = only(supervisor).pid
    assert not lives(pid or 0)
    assert events[-1]["event"] == "worker.killed"
    assert only(supervisor).last_exit == -signal.SIGKILL


async def test_the_children_of_a_worker_that_was_killed_end_before_it_is_started_again() -> None:
    log = Log()
    timing = Timing(first_pause=0.01, leftovers=0.2)
    async with supervised([python("a", WITH_CHILD)], timing, log) as supervisor:
        await until(lambda: len(log.lines) == 1, "the child runs")
        child = int(log.lines[0].rpartition(" ")[2])
        os.kill(only(supervisor).pid or 0, signal.SIGKILL)
        await until(lambda: len(log.lines) == 2, "the second start")
        assert not lives(child)


async def test_a_worker_waits_until_there_is_something_to_do() -> None:
    wanted = False
    spec = python("a", WAITS, wanted=lambda: wanted)
    async with supervised([spec]) as supervisor:
        status = only(supervisor)
        with pytest.raises(WorkerNotNeededError, match="it is waiting"):
            await supervisor.worker("a").restart()
        assert status.state == "waiting"
        wanted = True
        await until(lambda: status.state == "running", "the start")


async def test_a_restart_replaces_the_process_and_ends_a_pause() -> None:
    timing = Timing(first_pause=600, longest_pause=600)
    async with supervised([python("a", WAITS), python("b", FAILS)], timing) as supervisor:
        a, b = supervisor.statuses()
        await until(lambda: a.state == "running" and b.state == "backing off", "states")
        first = a.pid
        await supervisor.worker("a").restart()
        assert a.state == "running"
        assert a.pid != first
        assert not lives(first or 0)
        await supervisor.worker("b").restart()
        assert b.restarts == 1
        await until(lambda: b.state == "backing off", "its end")
        with pytest.raises(UnknownWorkerError) as caught:
            supervisor.worker("c")
        assert caught.value.hint == "Workers: a, b."
    with pytest.raises(WorkerNotNeededError, match="it is stopped"):
        await supervisor.worker("a").restart()


async def test_workers_stop_together() -> None:
    log = Log()
    specs = [python(f"w{number}", DEAF, stop_s=2) for number in range(6)]
    async with supervised(specs, log=log):
        await until(lambda: len(log.lines) == 6, "all run")
        began = time.monotonic()
    assert time.monotonic() - began < 11  # one after the other it is 12, together 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_workers_end_when_the_process_of_the_supervisor_is_killed() -> None:
    program = (
        "import asyncio, tidemill.telemetry; from tests.workers.running import *\n"
        "async def run():\n"
        f"    async with supervised([python('a', {WAITS!r})]) as supervisor:\n"
        "        await until(lambda: only(supervisor).pid is not None, 'a start')\n"
        "        print(only(supervisor).pid, flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(run())"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert lives(pid)
        process.kill()
    poll_until(lambda: not lives(pid), 60, "the worker has ended")
