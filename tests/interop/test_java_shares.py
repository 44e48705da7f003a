"""The Java client's share consumer: ``java/ShareConsumers.java``, a scenario per test."""

from __future__ import annotations

import pytest

from tests.interop.java_client import JavaClient

SCENARIOS = ["accept", "settle", "renew", "timeout", "committed", "admin"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_java_share_consumer(java: JavaClient, bootstrap: str, scenario: str) -> None:
    java.run("ShareConsumers", scenario, bootstrap)
