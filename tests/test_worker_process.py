"""A worker of the tests is there again after it has ended by itself, and stays away when killed."""

from __future__ import annotations

from pathlib import Path

from tests.support.ports import reserve_port
from tests.support.processes import poll_until
from tests.support.worker_process import WorkerProcess


def test_a_worker_whose_broker_is_not_there_yet_is_started_again(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{reserve_port()}"
    worker = WorkerProcess(["source", "run", "shop", "-b", nobody], tmp_path / "log")
    worker.start()
    poll_until(lambda: worker.log().count("no broker answers") > 1, 60, "it has started twice")
    worker.kill()
    assert worker._process is None
