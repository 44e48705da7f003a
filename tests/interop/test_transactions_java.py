"""The Java client's transactions: ``java/Transactions.java``, scenarios in their order.

It speaks the second protocol (KIP-890): no AddPartitionsToTxn, and an epoch for each transaction.
"""

from __future__ import annotations

import pytest

from tests.interop.java_client import JavaClient

SCENARIOS = [
    "readers,held,large",
    "offsets,member",
    "fencing,timeout,recovery,limit",
    "operator,features",
]
"""Several to a JVM: each takes seconds to start."""


@pytest.mark.parametrize("scenarios", SCENARIOS)
def test_transactions_of_the_java_client(java: JavaClient, bootstrap: str, scenarios: str) -> None:
    java.run("Transactions", scenarios, bootstrap)
