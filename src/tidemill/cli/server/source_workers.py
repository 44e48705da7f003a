"""Supervises the worker process of change data capture beside the broker.

The worker is ``tidemill source run --all``, a client like any other. It starts when the topic of
the sources exists, is started again with growing pauses if it ends, and ends before the broker. It
never takes the broker down. Must not know: what a source is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Mapping

import structlog

from tidemill.engine.engine import Engine
from tidemill.errors import TidemillError
from tidemill.settings import Settings

SOURCES_TOPIC = "tidemill.sources"
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
STEADY_S = 60.0
"""A worker that ran for so long has started well: the pauses begin at the first one again."""
STOP_S = 8.0
_LOOK_S = 0.5

# Runs in the child before it becomes the worker. On Linux the kernel sends SIGTERM when the broker
# ends, also if it was killed.
_LAUNCHER = """\
import os, sys
from tidemill.system import end_with_parent
end_with_parent()
if os.getppid() != int(sys.argv[1]):
    sys.exit("the broker has ended")
os.execv(sys.executable, [sys.executable, "-m", "tidemill", *sys.argv[2:]])
"""

log = structlog.get_logger("tidemill.server")


class SourceWorkers:
    """Runs the worker process while the broker runs.

    Args:
        engine: the broker, to see whether the topic of the sources exists.
        settings: the broker's settings.
        client: the properties of a Kafka client of this broker.
    """

    def __init__(self, engine: Engine, settings: Settings, client: Mapping[str, str]) -> None:
        self._engine = engine
        self._settings = settings
        self._client = client
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    def start(self) -> None:
        """Begin to supervise, unless the settings say otherwise."""
        if self._settings.sources.run:
            self._task = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """Stop the worker: it ends its transaction while the broker still answers."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                log.warning("source_worker.killed", pid=process.pid, after_seconds=STOP_S)
                process.kill()
                await process.wait()

    async def _supervise(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            if not self._wanted():
                await asyncio.sleep(_LOOK_S)
                continue
            started = time.monotonic()
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command(), stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr
                )
            except OSError as error:
                log.error("source_worker.not_started", error=str(error), retry_seconds=pause)
            else:
                log.info("source_worker.started", pid=self._process.pid)
                code = await self._process.wait()
                if time.monotonic() - started > STEADY_S:
                    pause = FIRST_PAUSE_S
                log.warning("source_worker.ended", exit_code=code, retry_seconds=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _wanted(self) -> bool:
        """Return whether there is a topic of sources."""
        try:
            self._engine.door().topics.get(SOURCES_TOPIC)
        except TidemillError:
            return False
        return True

    def _command(self) -> list[str]:
        properties = dict(self._client)
        servers = properties.pop("bootstrap.servers")
        given = [text for each in properties.items() for text in ("-X", "=".join(each))]
        return [
            *(sys.executable, "-c", _LAUNCHER, str(os.getpid())),
            *("source", "run", "--all", "--bootstrap-servers", servers, *given),
        ]
