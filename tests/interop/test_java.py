"""The Java client: ``java/Interop.java``, a scenario per test. Its jars: see ``java_client``."""

from __future__ import annotations

import pytest

from tests.interop.java_client import JavaClient

SCENARIOS = [
    "produce",
    "idempotent",
    "positions",
    "range",
    "roundrobin",
    "sticky",
    "cooperative",
    "static",
    "topics",
    "groups",
    "cluster",
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_java_client(java: JavaClient, bootstrap: str, scenario: str) -> None:
    java.run("Interop", scenario, bootstrap)
