"""What a checkpoint's position is worth at other brokers, as the guide to pipelines says it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.spark.conftest import broker_at
from tests.support.broker_process import BrokerProcess
from tidemill.spark.errors import OtherTopicError
from tidemill.spark.source.cluster import KafkaCluster
from tidemill.spark.source.planning.options import Position, parse_source_options
from tidemill.spark.source.planning.planner import Planner


def planner(broker: BrokerProcess) -> Planner:
    options = parse_source_options(
        {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "moved"}
    )
    cluster = KafkaCluster({"bootstrap.servers": broker.bootstrap}, deadline_s=10)
    return Planner(options, cluster, Position("earliest"))


def fill(broker: BrokerProcess, count: int) -> None:
    broker_at(broker.bootstrap).produce("moved", [str(number) for number in range(count)])


def create(broker: BrokerProcess) -> None:
    broker_at(broker.bootstrap).topic(name="moved")


@pytest.mark.slow
def test_a_position_moves_with_the_data_folder_and_not_with_a_copied_topic(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "old") as old:
        create(old)
        fill(old, 3)
        first = planner(old)
        position = first.next_end(first.initial(), None)
    sockets = shutil.ignore_patterns("*.sock")
    shutil.copytree(tmp_path / "old" / "data", tmp_path / "new" / "data", ignore=sockets)

    with BrokerProcess(tmp_path / "new") as moved:
        fill(moved, 2)
        later = planner(moved)
        [new] = later.ranges(position, later.next_end(position, None))
        assert (new.start, new.end) == (3, 5)

    with BrokerProcess(tmp_path / "other") as other:
        create(other)
        fill(other, 5)  # as many records as in the old one, at the same offsets
        with pytest.raises(OtherTopicError, match="not the topic that the checkpoint has read"):
            planner(other).next_end(position, None)
