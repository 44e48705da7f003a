"""``tidemill source run NAME`` as a process that tests kill and start again."""

from __future__ import annotations

from pathlib import Path

from tests.support.worker_process import WorkerProcess


class SourceWorker(WorkerProcess):
    """The worker of one source.

    Args:
        name: the source.
        servers: the address of the brokers.
        log: file that gets the output of all its processes.
    """

    def __init__(self, name: str, servers: str, log: Path) -> None:
        super().__init__(["source", "run", name, "-b", servers], log)
