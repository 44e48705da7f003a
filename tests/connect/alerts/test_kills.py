"""Worker and broker are killed at random, while metrics change and the receiver fails at times."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.connect.alerts.conftest import Page
from tests.support.broker_process import BrokerProcess
from tests.support.effort import chosen_seed, rounds
from tests.support.processes import ServerProcess, poll_until
from tests.support.receiver import Receiver, Request
from tidemill.confluent.clients import Kafka
from tidemill.connect.alerts.model import Alert, Group
from tidemill.connect.alerts.store import read_alerts

KILLS = rounds("ALERT_KILLS", 15, 60)
SERIES = ("a", "b", "c", "d")
RULES = """
[alerts]
interval_ms = 50
scrape = "{page}"

[[alert_receiver]]
name = "ops"
url = "{hook}"
allow_private = true
group_by = {group_by}
group_wait_s = 0
group_interval_s = 0

[[alert]]
name = "high"
metric = "m"
above = 0
"""


class Worker:
    """``tidemill alert run`` as a process."""

    def __init__(self, servers: str, folder: Path) -> None:
        self._command = [sys.executable, "-m", "tidemill", "alert", "run", "-b", servers]
        self._command += ["--config", str(folder / "tidemill.toml")]
        self.log = folder / "worker.log"
        self._process: ServerProcess | None = None

    def start(self) -> None:
        self._process = ServerProcess("worker", self._command, self.log, forked=True)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def check(self) -> None:
        """Start it again if it ended: the broker was possibly not there when it started."""
        if self._process is not None and self._process.exit_code is not None:
            self.start()


def believed(requests: list[Request]) -> dict[str, str]:
    """Return what a receiver believes to fire that leaves out ids that it has seen."""
    bodies: dict[str, Any] = {}
    firing: dict[str, str] = {}
    for request in requests:
        body = request.json
        if request.id in bodies:
            assert bodies[request.id] == body  # an id never has two bodies
            continue
        bodies[request.id] = body
        for alert in body["alerts"]:
            name, since = alert["labels"]["group"], alert["startsAt"]
            if alert["status"] == "firing":
                firing[name] = since
            else:
                assert firing.pop(name) == since  # no end of what it does not know
    print(f"{len(bodies)} notices, {len(requests) - len(bodies)} repeated")
    return firing


@pytest.mark.nightly
@pytest.mark.crash
@pytest.mark.parametrize("group_by", ['["alertname"]', '["..."]'], ids=["together", "alone"])
def test_no_notice_is_lost_and_ids_are_stable(tmp_path: Path, group_by: str) -> None:
    seed = chosen_seed(11)
    print(f"CRASH_SEED={seed} ALERT_KILLS={KILLS}")
    chance = random.Random(seed)
    accepted: list[Request] = []

    def reply(request: Request) -> int:
        if chance.random() < 0.2:
            return 503
        accepted.append(request)  # an answer can be lost when the worker is killed
        return 200

    with Page() as page, Receiver(reply=reply) as hook, BrokerProcess(tmp_path / "b") as broker:
        text = RULES.format(page=page.url, hook=hook.url, group_by=group_by)
        (tmp_path / "tidemill.toml").write_text(text)
        worker = Worker(broker.bootstrap, tmp_path)

        def set_values(values: dict[str, int]) -> None:
            page.text = "".join(f'm{{group="{name}"}} {each}\n' for name, each in values.items())

        set_values(dict.fromkeys(SERIES, 0))
        worker.start()
        try:
            for _ in range(KILLS):
                for _ in range(chance.randrange(6)):
                    set_values({name: chance.randrange(2) for name in SERIES})
                    time.sleep(chance.uniform(0.0, 0.4))  # the moment of a kill is random
                if chance.random() < 0.7:
                    worker.kill()
                    worker.start()
                else:
                    broker.kill()
                    broker.start()
                time.sleep(chance.uniform(0.5, 4.0))
                worker.check()
            last = {name: number % 2 for number, name in enumerate(SERIES)}
            set_values(last)
            wanted = {name for name, value in last.items() if value}

            def settled() -> bool:
                """Return whether the worker knows the last values, and has nothing to send."""
                worker.check()
                found = read_alerts(Kafka(broker.bootstrap)).values()
                firing = {a.labels["group"] for a in found if isinstance(a, Alert) and a.is_firing}
                groups = [each for each in found if isinstance(each, Group)]
                told = {name for each in groups for name in each.told}
                waiting = any(each.notice is not None for each in groups)
                return firing == wanted and len(told) == len(wanted) and not waiting

            try:
                poll_until(settled, 120, "all is sent", 0.5)
                assert believed(list(accepted)).keys() == wanted
            except (TimeoutError, AssertionError) as error:
                raise AssertionError(f"{error}: {worker.log.read_text()[-4000:]}") from None
        finally:
            worker.kill()
