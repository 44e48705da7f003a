"""Bytes of ``__transaction_state`` as Apache Kafka 4.3 writes them, and what they mean."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.log.errors import FormatVersionError, InvalidRecordError
from tidemill.log.names import TopicPartition
from tidemill.state.transactions.format import (
    TransactionValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from tidemill.state.transactions.types import TransactionState
from tidemill.state.types import ProducerIdentity, TransactionVersion

JAVA = json.loads((Path(__file__).parent / "transactions_java.json").read_text())
VALUES: list[dict[str, Any]] = JAVA["values"]


def meaning(golden: dict[str, Any]) -> TransactionValue:
    partitions = [name.rpartition("-") for name in golden["partitions"]]
    return TransactionValue(
        ProducerIdentity(golden["producer_id"], golden["epoch"]),
        golden["timeout_ms"],
        TransactionState(golden["state"]),
        frozenset(TopicPartition(topic, int(number)) for topic, _, number in partitions),
        golden["updated_ms"],
        golden["start_ms"],
        previous_producer_id=golden["previous"],
        next_producer_id=golden["next"],
        version=TransactionVersion.V2 if golden["client"] == 2 else TransactionVersion.V1,
    )


@pytest.mark.parametrize("golden", VALUES, ids=lambda golden: golden["name"])
def test_values_of_apache_kafka(golden: dict[str, Any]) -> None:
    assert decode_value(bytes.fromhex(golden["hex"])) == meaning(golden)


@pytest.mark.parametrize(
    "golden", [each for each in VALUES if each["version"] == 1], ids=lambda golden: golden["name"]
)
def test_values_are_written_as_apache_kafka_writes_them(golden: dict[str, Any]) -> None:
    """Byte by byte, except that Kafka leaves topics in no order: with several, by meaning."""
    ours = encode_value(meaning(golden))
    if len({name.rpartition("-")[0] for name in golden["partitions"]}) < 2:
        assert ours.hex() == golden["hex"]
    assert len(ours) == len(golden["hex"]) // 2
    assert decode_value(ours) == meaning(golden)


def test_keys() -> None:
    data = bytes.fromhex(JAVA["key"]["hex"])
    assert decode_key(data) == JAVA["key"]["id"]
    assert encode_key(JAVA["key"]["id"]) == data
    assert decode_key(b"\x00\x01" + data[2:]) is None
    with pytest.raises(InvalidRecordError):
        decode_key(b"\xff\xff" + data[2:])


def test_the_last_epoch_is_a_field_that_kafka_skips() -> None:
    value = meaning(VALUES[-1])
    data = encode_value(replace(value, last_epoch=32766))
    plain = bytes.fromhex(VALUES[-1]["hex"])
    tail = bytes.fromhex("e807" + "02" + "7ffe")  # tag 1000, two bytes, 32766
    assert data.endswith(tail)
    assert len(data) == len(plain) + len(tail)
    assert decode_value(data) == replace(value, last_epoch=32766)


def test_unknown_versions_and_states_are_refused() -> None:
    data = bytes.fromhex(VALUES[0]["hex"])
    with pytest.raises(FormatVersionError):
        decode_value(b"\x00\x02" + data[2:])
    for state in (6, 7, 8, 255):  # Dead and PrepareEpochFence are in memory only
        with pytest.raises(InvalidRecordError, match="state"):
            decode_value(data[:16] + bytes([state]) + data[17:])


def test_a_tag_of_the_wrong_size_is_refused() -> None:
    data = bytes.fromhex(next(v for v in VALUES if v["name"] == "v1 empty")["hex"])
    assert data.endswith(bytes.fromhex("010008" + "0000000000000007"))
    with pytest.raises(InvalidRecordError, match="tagged field 0"):
        decode_value(data[:-9] + b"\x07" + data[-7:])


@pytest.mark.parametrize("golden", VALUES, ids=lambda golden: golden["name"])
def test_every_cut_is_refused(golden: dict[str, Any]) -> None:
    for decode, each in ((decode_value, golden), (decode_key, JAVA["key"])):
        data = bytes.fromhex(each["hex"])
        for size in range(len(data)):
            with pytest.raises(InvalidRecordError):
                decode(data[:size])


@given(st.binary(max_size=120), st.sampled_from([b"", b"\x00\x00", b"\x00\x01"]))
def test_any_bytes_are_decoded_or_refused(data: bytes, version: bytes) -> None:
    for decode in (decode_key, decode_value):
        with suppress(InvalidRecordError, FormatVersionError):
            decode(version + data)


partitions = st.frozensets(
    st.builds(
        TopicPartition, st.text("abc._-é", min_size=1, max_size=130), st.integers(0, 2**31 - 1)
    ),
    max_size=200,
)


@given(
    st.builds(
        TransactionValue,
        st.builds(ProducerIdentity, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1)),
        st.integers(1, 2**31 - 1),
        st.sampled_from(
            [s for s in TransactionState if s.value not in ("Empty", "Dead", "PrepareEpochFence")]
        ),
        partitions,
        st.integers(0, 2**62),
        st.integers(-1, 2**62),
        previous_producer_id=st.integers(-1, 2**63 - 1),
        next_producer_id=st.integers(-1, 2**63 - 1),
        version=st.sampled_from(TransactionVersion),
        last_epoch=st.integers(-1, 2**15 - 1),
    )
)
def test_what_is_written_is_read(value: TransactionValue) -> None:
    assert decode_value(encode_value(value)) == value
