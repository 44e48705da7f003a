"""The Java client: the programs of ``java``, some scenarios per test. See ``java_client``.

``Transactions`` speaks the second protocol (KIP-890): no AddPartitionsToTxn, and an epoch for each
transaction.
"""

from __future__ import annotations

import pytest

from tests.interop.java_client import JavaClient

SCENARIOS = {
    "Interop": [
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
    ],
    "ShareConsumers": ["accept", "settle", "renew", "timeout", "committed", "start,admin"],
    # Several to a JVM: each takes seconds to start.
    "Transactions": [
        "readers,held,large",
        "offsets,member",
        "fencing,timeout,recovery,limit",
        "operator,features",
    ],
}


@pytest.mark.parametrize(
    ("program", "scenarios"), [(name, each) for name in SCENARIOS for each in SCENARIOS[name]]
)
def test_the_java_client(java: JavaClient, bootstrap: str, program: str, scenarios: str) -> None:
    java.run(program, scenarios, bootstrap)
