"""A worker that stands still and comes back when another one has its place writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.transactions import checker
from tests.crash.transactions.clients import CLIENTS, Job
from tests.crash.transactions.conftest import Broker, make_topics
from tests.crash.transactions.pipeline import Feeder, Worker
from tests.support.processes import poll_until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

PARTITIONS = 2
RECORDS = 100


@pytest.mark.parametrize("step", ["begin", "sent", "offsets"])
@pytest.mark.parametrize("client", list(CLIENTS))
def test_a_worker_that_comes_back_too_late_is_fenced_and_writes_nothing(
    broker: Broker, tmp_path: Path, client: str, step: str
) -> None:
    make_topics(broker.bootstrap, PARTITIONS, "in", "out")
    feeder = Feeder(broker.bootstrap, "in", PARTITIONS)
    feeder.send(RECORDS)
    older = Worker(job(client, broker.bootstrap, tmp_path, "older", stop_at=step))
    newer = Worker(job(client, broker.bootstrap, tmp_path, "newer"))
    try:
        older.start()
        poll_until(lambda: older.count("stopped", "fatal") == 1, 60, "the older one stands still")
        assert older.count("fatal") == 0, older.tail()
        newer.start()
        await_all_committed(broker)
        before = checker.read(broker.bootstrap, "out", PARTITIONS, "read_uncommitted")
        older.resume()
        poll_until(older.ended, 60, "the older worker gives up")
        assert older.count("commit") == 0, older.tail()
        assert older.count("fatal") == 1, older.tail()
        feeder.send(RECORDS)
        await_all_committed(broker)
        assert newer.count("fatal", "abort") == 0, newer.tail()
    except BaseException as error:
        raise AssertionError(
            f"{error!r}\nolder {older.tail()}\nnewer {newer.tail()}\n{broker.log()}"
        ) from error
    finally:
        older.kill()
        newer.kill()
    outcome = checker.look(broker.bootstrap, "in", "out", PARTITIONS)
    checker.check(outcome, PARTITIONS)
    assert before.items() <= outcome.everything.items()
    assert len(outcome.everything) == len(before) + RECORDS, "the older worker wrote something"
    assert (outcome.aborted > 0) == (step != "begin")


def job(client: str, bootstrap: str, folder: Path, name: str, stop_at: str = "") -> Job:
    """Both have one transactional id and one place in the group."""
    return Job(
        client=client,
        bootstrap=bootstrap,
        source="in",
        target="out",
        group="workers",
        transactional_id="worker",
        events=str(folder / f"{name}.events"),
        output=str(folder / f"{name}.log"),
        instance="member",
        stop_at=stop_at,
    )


def await_all_committed(broker: Broker) -> None:
    """Wait until the group is through with the input."""
    wanted = checker.ends(broker.bootstrap, "in", PARTITIONS, "read_uncommitted")
    poll_until(
        lambda: checker.committed(broker.bootstrap, "workers", "in", PARTITIONS) == wanted,
        60,
        "all input is committed",
        interval=0.05,
    )
