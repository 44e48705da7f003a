"""The rows of the table of recovery, with MySQL (``docs/operations.md``)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connect.cdc.recovery import assert_rows_are_tested
from tests.contracts.recovery import ALIKE, CASES, PASSWORD, SECTION, run_case
from tests.support.mysql import MySql, mysql
from tests.support.processes import skip_if_missing
from tidemill.confluent.clients import Kafka
from tidemill.connect.cdc.mysql import dialect


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MySql]:
    with skip_if_missing(), mysql(tmp_path_factory.mktemp("mysql") / "log") as found:
        yield found


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(state, marks=[pytest.mark.nightly] if test in ALIKE else [])
        for state, test in CASES.items()
    ],
)
def test_recovery(
    server: MySql, shop: str, kafka: Kafka, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("mysql", PASSWORD)
    monkeypatch.setattr(dialect, "_COMMIT_WAIT_S", 1)
    run_case("mysql", "RESET BINARY LOGS AND GTIDS", server, shop, kafka, state)


def test_each_row_is_tested() -> None:
    assert_rows_are_tested(SECTION, CASES)
