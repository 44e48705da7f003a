"""The whole log is folded again, and what does not fit is named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidemill.confluent.clients import Kafka
from tidemill.eventstore import wire
from tidemill.eventstore.errors import UnsuitableTopicError
from tidemill.eventstore.events import NewEvent
from tidemill.eventstore.log import Log
from tidemill.eventstore.memory_store import MemoryStore
from tidemill.eventstore.verifying import Verified, verify


@pytest.fixture
def records() -> list[bytes]:
    """The records of a store: ten commits of one writer."""
    store = MemoryStore()
    for number in range(10):
        store.append("s", [NewEvent("e", str(number).encode()), NewEvent("f")], expected=2 * number)
    return store.log


def verified(kafka: Kafka, topic: str, records: list[bytes], *heads: tuple[int, bytes]) -> Verified:
    """Write records to a topic, whatever they are, and verify it."""
    log = Log(kafka, topic)
    log.prepare(create=True)
    producer = kafka.producer("tests")
    for value in records:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    log.close()
    return verify(kafka, topic, heads=heads)


def test_a_log_that_fits_together_has_no_break(
    kafka: Kafka, topic: str, records: list[bytes]
) -> None:
    void = wire.encode(wire.propose(b"i" * 16, [], seen=(0, bytes(32)), truncate=(("s", 99),)))
    found = verified(kafka, topic, [*records[:5], b"foreign", void, records[4], *records[5:]])
    assert found.first_break is None
    assert (found.accepted, found.repeated, found.void, found.foreign) == (10, 1, 1, 1)
    assert (found.head.position, found.head.offset, found.unchecked) == (20, 12, 0)
    again = verify(kafka, topic, heads=[found.head[:2]])
    assert again == found


def changed(records: list[bytes]) -> Iterator[tuple[str, list[bytes], int, int]]:
    yield "a removed commit", [*records[:4], *records[5:]], 4, 6
    other = MemoryStore()
    other.append("s", [NewEvent("e", b"forged"), NewEvent("f")])
    yield "a replaced commit", [other.log[0], *records[1:]], 1, 0
    assert records[6][-17:-16] == b"6"
    flipped = records[6][:-17] + b"7" + records[6][-16:]
    yield "changed data", [*records[:6], flipped, *records[7:]], 7, 12


@pytest.mark.parametrize("case", range(3))
def test_the_first_break_is_named(
    kafka: Kafka, topic: str, records: list[bytes], case: int
) -> None:
    what, forged, offset, after = list(changed(records))[case]
    found = verified(kafka, topic, forged)
    assert found.first_break is not None, what
    assert (found.first_break.after, found.first_break.offset) == (after, offset)


def test_an_exported_head_proves_what_no_commit_follows(
    kafka: Kafka, topic: str, records: list[bytes]
) -> None:
    """The last commit was changed: no later one can tell."""
    last = MemoryStore()
    for value in records[:9]:
        last._state.step(len(last.log), value, wire.decode(value), 0)
    real = MemoryStore()
    for value in records:
        real._state.step(len(real.log), value, wire.decode(value), 0)
    head = real._state.head()
    last.append("s", [NewEvent("e", b"forged"), NewEvent("f")])
    found = verified(kafka, topic, [*records[:9], last.log[-1]])
    assert found.first_break is None
    for noted in ((head.position, head.hash), (head.position + 5, head.hash)):
        again = verify(kafka, topic, heads=[noted])
        assert again.first_break is not None
        assert "noted hash" in again.first_break.why


def test_of_two_noted_heads_of_one_position_both_are_compared(
    kafka: Kafka, topic: str, records: list[bytes]
) -> None:
    found = verified(kafka, topic, records)
    real = (found.head.position, found.head.hash)
    assert verify(kafka, topic, heads=[real, real]).first_break is None
    assert verify(kafka, topic, heads=[(real[0], bytes(32)), real]).first_break is not None


def test_a_store_that_does_not_exist_is_not_created(kafka: Kafka, topic: str) -> None:
    with pytest.raises(UnsuitableTopicError):
        verify(kafka, topic)
    assert topic not in kafka.list_topics("tests")
