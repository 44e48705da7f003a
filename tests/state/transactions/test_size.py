"""The largest size of a transaction. A full transaction can still end."""

from __future__ import annotations

import pytest

from tests.state.transactions.driver import ID, TIMEOUT_MS, V1, V2, S, TransactionsDriver
from tidemill.log.format.validate import BUILT_BYTES
from tidemill.log.names import TopicPartition
from tidemill.settings import Settings
from tidemill.state.errors import TransactionAbortableError
from tidemill.state.transactions import checks as transactions_checks
from tidemill.state.types import ProducerIdentity, TransactionVersion

SMALL = 2000
Full = tuple[TransactionsDriver, ProducerIdentity, int]
both = pytest.mark.parametrize("version", [V1, V2])


def partition(number: int) -> TopicPartition:
    """With the longest name that a topic may have."""
    return TopicPartition(f"{number:05}" + "x" * 244, 0)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Full:
    """A driver, a producer whose transaction can't grow, and how many partitions that has."""
    monkeypatch.setattr(transactions_checks, "LARGEST_VALUE", SMALL)
    driver = TransactionsDriver()
    producer = driver.init()
    for number in range(7):
        assert driver.write(producer, partition(number)) == 1
    with pytest.raises(TransactionAbortableError) as refused:
        driver.write(producer, partition(7))
    assert "fewer partitions" in (refused.value.hint or "")
    return driver, producer, 7


@both
def test_a_transaction_that_is_full_takes_no_partition_but_those_it_has(
    full: Full, version: TransactionVersion
) -> None:
    driver, producer, number = full
    before = driver.value
    with pytest.raises(TransactionAbortableError):
        driver.add(producer, partition(0), partition(number), version=version)
    assert driver.value == before
    assert driver.add(producer, partition(0), version=version) == 0
    assert driver.write(producer, partition(number - 1), version) == 0


@both
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_is_full_ends_as_others(
    full: Full, version: TransactionVersion, commit: bool
) -> None:
    driver, producer, number = full
    following = driver.end(producer, commit=commit, version=version)
    assert driver.state is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)
    assert driver.write(following, partition(number)) == 1


def test_a_transaction_that_is_full_times_out(full: Full) -> None:
    driver, _, _ = full
    driver.now += TIMEOUT_MS
    driver.run(driver.machine.upkeep.expire(ID, driver.now))
    assert driver.state is S.PREPARE_ABORT


def test_a_transaction_may_have_all_partitions_that_a_broker_has_by_default() -> None:
    driver = TransactionsDriver()
    producer = driver.init()
    most = Settings().limits.partitions
    assert driver.add(producer, *map(partition, range(most))) == 1
    assert len(driver.value.partitions) == most


def test_what_a_full_transaction_may_need_to_end_fits_the_log() -> None:
    """Its name, at most, and a few tagged fields are not counted."""
    assert transactions_checks.LARGEST_VALUE + (1 << 15) + 256 < BUILT_BYTES
