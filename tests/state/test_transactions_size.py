"""How large a transaction may grow, and that one which may not grow can still be ended."""

from __future__ import annotations

import pytest

from tests.state.transactions_desk import ID, TIMEOUT_MS, V1, V2, S, TransactionDesk
from tidemill.errors import TransactionAbortableError
from tidemill.log.names import TopicPartition
from tidemill.log.validate import BUILT_BYTES
from tidemill.settings import Settings
from tidemill.state import transactions_checks
from tidemill.state.types import ProducerIdentity, TransactionVersion

SMALL = 2000
Full = tuple[TransactionDesk, ProducerIdentity, int]
both = pytest.mark.parametrize("version", [V1, V2])


def partition(number: int) -> TopicPartition:
    """With the longest name that a topic may have."""
    return TopicPartition(f"{number:05}" + "x" * 244, 0)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Full:
    """A desk, a producer whose transaction can't grow, and how many partitions that has."""
    monkeypatch.setattr(transactions_checks, "LARGEST_VALUE", SMALL)
    desk = TransactionDesk()
    producer = desk.init()
    for number in range(7):
        assert desk.write(producer, partition(number)) == 1
    with pytest.raises(TransactionAbortableError) as refused:
        desk.write(producer, partition(7))
    assert "fewer partitions" in (refused.value.hint or "")
    return desk, producer, 7


@both
def test_a_transaction_that_is_full_takes_no_partition_but_those_it_has(
    full: Full, version: TransactionVersion
) -> None:
    desk, producer, number = full
    before = desk.value
    with pytest.raises(TransactionAbortableError):
        desk.add(producer, partition(0), partition(number), version=version)
    assert desk.value == before
    assert desk.add(producer, partition(0), version=version) == 0
    assert desk.write(producer, partition(number - 1), version) == 0


@both
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_is_full_ends_as_others(
    full: Full, version: TransactionVersion, commit: bool
) -> None:
    desk, producer, number = full
    following = desk.end(producer, commit=commit, version=version)
    assert desk.state is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)
    assert desk.write(following, partition(number)) == 1


def test_a_transaction_that_is_full_times_out(full: Full) -> None:
    desk, _, _ = full
    desk.now += TIMEOUT_MS
    desk.run(desk.machine.expire(ID, desk.now))
    assert desk.state is S.PREPARE_ABORT


def test_a_transaction_may_have_all_partitions_that_a_broker_has_by_default() -> None:
    desk = TransactionDesk()
    producer = desk.init()
    most = Settings().limits.partitions
    assert desk.add(producer, *map(partition, range(most))) == 1
    assert len(desk.value.partitions) == most


def test_what_a_full_transaction_may_need_to_end_fits_the_log() -> None:
    """Its name, at most, and a few tagged fields are not counted."""
    assert transactions_checks.LARGEST_VALUE + (1 << 15) + 256 < BUILT_BYTES
