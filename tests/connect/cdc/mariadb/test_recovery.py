"""The rows of the table of recovery, with MariaDB (``docs/operations.md``)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connect.cdc.recovery import assert_rows_are_tested
from tests.contracts.recovery import CASES, PASSWORD, SECTION, run_case
from tests.support.mariadb import MariaDb, mariadb
from tests.support.processes import skip_if_missing
from tidemill.confluent.clients import Kafka


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    with skip_if_missing(), mariadb(tmp_path_factory.mktemp("mariadb") / "log") as found:
        yield found


@pytest.mark.parametrize("state", CASES)
def test_recovery(
    server: MariaDb, shop: str, kafka: Kafka, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("mariadb", PASSWORD)
    run_case("mariadb", "RESET MASTER", server, shop, kafka, state)


def test_each_row_is_tested() -> None:
    assert_rows_are_tested(SECTION, CASES)
