"""A broker and the members of a share group are killed under load."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", minversion="2.16", reason="needs ShareConsumer")

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.conftest import BrokerFactory
from tests.crash.ledger import Ledger
from tests.crash.load import Load
from tests.crash.shares.member import number_of
from tests.crash.shares.processes import Members
from tests.support.effort import chosen_seed, rounds
from tests.support.processes import poll_until
from tidemill.cli.client import Cluster
from tidemill.cli.group.shares import share_starts
from tidemill.cli.options import Brokers
from tidemill.errors import TidemillError

pytestmark = [pytest.mark.crash, pytest.mark.disk, pytest.mark.separate, pytest.mark.timeout(1700)]

KILLS = rounds("CRASH_KILLS", 2, nightly=60)
"""Of the broker, and as many of members."""
TOPIC, GROUP, PARTITIONS = "tasks", "workers", 2
CONFIGS = {
    "share.auto.offset.reset": "earliest",
    # A slow machine takes no record from a member; a record of a killed one is returned at once.
    "share.record.lock.duration.ms": "3600000",
    "share.delivery.count.limit": "10",
}
SETTINGS = {
    # A killed member keeps its partitions for so long.
    "groups.share_session_timeout_ms": "5000",
    "groups.share_heartbeat_interval_ms": "500",
}
DEADLINE_S = 600


def prepare(bootstrap: str) -> None:
    """Create the topic, and the configs of the group."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(DEADLINE_S)
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in CONFIGS.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(DEADLINE_S)


def is_finished(bootstrap: str) -> bool:
    """Return whether the group has finished all records."""
    try:
        starts = share_starts(Cluster.at(Brokers(bootstrap)), GROUP)
    except TidemillError:
        return False
    return len(starts) == PARTITIONS and all(each.lag == 0 for each in starts.values())


def test_nothing_is_lost_or_accepted_twice_when_broker_and_members_are_killed(
    start_broker: BrokerFactory, tmp_path: Path
) -> None:
    seed = chosen_seed(15)
    dice = random.Random(seed)
    broker = start_broker(settings=SETTINGS)
    prepare(broker.bootstrap)
    ledger = Ledger()
    load = Load(broker.bootstrap, ledger)
    members = Members(broker.bootstrap, GROUP, TOPIC, tmp_path)
    victims = [True] * KILLS + [False] * KILLS
    dice.shuffle(victims)
    try:
        try:
            load.produce("idem", TOPIC, PARTITIONS, promised=True, **{"enable.idempotence": True})
            for _ in range(2):
                members.start()
            for is_broker in victims:
                wanted = len(members.answered()) + dice.randint(1, 250)
                poll_until(
                    lambda n=wanted: len(members.answered()) > n,  # type: ignore[misc]
                    DEADLINE_S,
                    "records are accepted",
                )
                if is_broker:
                    broker.kill()
                    broker.start(DEADLINE_S)
                else:
                    members.replace()
        finally:
            load.stop()
        members.kill()
        members.start()
        poll_until(lambda: is_finished(broker.bootstrap), DEADLINE_S, "all finished", 0.1)
    except (AssertionError, TimeoutError) as error:
        raise AssertionError(f"{error}\nseed {seed}\n{broker.log()}") from error
    finally:
        members.kill()
    confirmed = {number_of(value) for value in ledger.acknowledged.values() if value}
    assert len(confirmed) > KILLS
    members.check(confirmed)
