"""Fixtures for all tests: real broker processes, none of which outlives its test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import spark_archive
from tests.support.broker_process import BrokerProcess

# Also of the programs that tests start.
if "SPARK_CONF_DIR" not in os.environ:
    os.environ["SPARK_CONF_DIR"] = str(spark_archive.conf_dir())

# With several workers, what takes longest has to begin first.
_SLOW = (
    "tests/crash",
    "tests/demo",
    "tests/spark",
    "tests/docs",
    "tests/interop",
    "tests/test_bench",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow folders first; the order within a file stays as it is."""

    def rank(item: pytest.Item) -> int:
        places = (n for n, folder in enumerate(_SLOW) if item.nodeid.startswith(folder))
        return next(places, len(_SLOW))

    items.sort(key=rank)


class BrokerFactory:
    """Makes broker processes below one folder; ``close`` kills what still runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[BrokerProcess] = []

    def __call__(self, **options: Any) -> BrokerProcess:
        """A broker that is ready; options are ``BrokerProcess``'s."""
        broker = BrokerProcess(self._folder / f"broker-{len(self._made)}", **options)
        self._made.append(broker)
        return broker.start()

    def close(self) -> None:
        """Kill every broker that runs."""
        for broker in self._made:
            broker.__exit__()


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[BrokerFactory]:
    """Starts broker processes: ``broker = start_broker(settings={...})``."""
    factory = BrokerFactory(tmp_path)
    yield factory
    factory.close()
