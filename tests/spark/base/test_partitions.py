"""The number of shuffle partitions follows the cores, on one machine and on a cluster."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tidemill.spark.base.partitions import (
    MAX_CLUSTER,
    UNKNOWN_CLUSTER,
    cluster_partitions,
    local_partitions,
)


class Cluster:
    """A cluster that registers executors at certain seconds.

    Args:
        steps: Pairs of a second and the cores that are registered from then on.
    """

    def __init__(self, *steps: tuple[float, int]) -> None:
        self.now = 0.0
        self.steps = steps

    def cores(self) -> int:
        return max((cores for at, cores in self.steps if at <= self.now), default=0)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def partitions(self, **settings: str) -> int:
        known = {f"spark.{key.replace('_', '.')}": value for key, value in settings.items()}
        return cluster_partitions(known, self.cores, clock=lambda: self.now, sleep=self.sleep)


@pytest.mark.parametrize(
    ("master", "partitions"),
    [
        ("local", 1),
        ("local[1]", 1),
        ("local[2]", 2),
        ("local[3,2]", 3),
        ("local[16]", 4),
        ("local-cluster[3,1,1024]", 3),
        ("local[what]", 1),  # Spark reports the mistake
    ],
)
def test_one_machine_has_few(master: str, partitions: int) -> None:
    assert local_partitions(master) == partitions


@pytest.mark.parametrize(
    ("steps", "partitions", "waited"),
    [
        ([(0, 8)], 8, 1.5),
        ([(2, 4), (2.5, 8), (3, 12)], 12, 4.5),
        ([(0, 4), (9, 400)], 4, 1.5),  # it does not wait for stragglers
        ([(9.5, 400)], MAX_CLUSTER, 10.5),
        ([(60, 8)], UNKNOWN_CLUSTER, 10.5),
        ([(0, 1)], 1, 1.5),
    ],
)
def test_a_cluster_has_one_for_each_registered_core(
    steps: Sequence[tuple[float, int]], partitions: int, waited: float
) -> None:
    cluster = Cluster(*steps)
    assert cluster.partitions() == partitions
    assert cluster.now <= waited


@pytest.mark.parametrize(
    ("settings", "partitions"),
    [
        ({"cores_max": "6"}, 6),
        ({"default_parallelism": "24", "cores_max": "6"}, 24),
        ({"executor_instances": "3", "executor_cores": "4"}, 12),
        (
            {
                "dynamicAllocation_enabled": "true",
                "dynamicAllocation_maxExecutors": "5",
                "executor_instances": "1",
                "executor_cores": "2",
            },
            10,
        ),
        ({"cores_max": "5000"}, MAX_CLUSTER),
    ],
)
def test_what_the_settings_ask_for_needs_no_waiting(
    settings: dict[str, str], partitions: int
) -> None:
    cluster = Cluster((0, 3))
    assert cluster.partitions(**settings) == partitions
    assert cluster.now == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"executor_instances": "3"},
        {"executor_cores": "3"},
        {"cores_max": "0"},
        {"cores_max": "many"},
        {
            "dynamicAllocation_enabled": "true",
            "dynamicAllocation_maxExecutors": "2147483647",
            "executor_cores": "2",
        },
    ],
)
def test_settings_that_set_no_number_leave_it_to_the_cluster(settings: dict[str, str]) -> None:
    assert Cluster((0, 7)).partitions(**settings) == 7
