"""The formats of the small files in a data folder."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.support.logs import TP
from tidemill.log.disk.checkpoints import (
    ManifestEntry,
    decode_checkpoint,
    decode_manifest,
    decode_metadata,
    decode_partition,
    encode_checkpoint,
    encode_manifest,
    encode_metadata,
)
from tidemill.log.names import TopicPartition

TOPIC_ID = UUID("0f4c5a1e-3d07-4d7c-8a47-7b1a2b3c4d5e")


OFFSETS = {TopicPartition("a", 0): 17, TopicPartition("b.c-d", 12): 1 << 40}


def test_a_checkpoint_is_lines_with_a_name_and_a_crc() -> None:
    data = encode_checkpoint("name", OFFSETS)
    assert data.startswith(b"1\n2\na 0 17\nb.c-d 12 1099511627776\nname ")
    assert decode_checkpoint("name", data) == (OFFSETS, True)


def test_a_checkpoint_of_an_earlier_version_is_read() -> None:
    data = b"0\n2\na 0 17\nb.c-d 12 1099511627776\n"
    assert decode_checkpoint("name", data) == (OFFSETS, False)


def test_any_changed_bit_of_a_checkpoint_is_noticed() -> None:
    data = encode_checkpoint("name", OFFSETS)
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            found = decode_checkpoint("name", bytes(changed))
        except ValueError:
            continue
        assert found == (OFFSETS, True), bit


def test_a_checkpoint_in_the_place_of_another_is_refused() -> None:
    with pytest.raises(ValueError, match="not the file log-starts"):
        decode_checkpoint("log-starts", encode_checkpoint("name", OFFSETS))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1\n0\n",
        b"1\n0\nname 00000000\n",
        b"2\n0\n",
        b"0\n2\na 0 17\n",
        b"0\n1\na 0\n",
        b"0\nx\n",
        b"0\n1\na 0 9223372036854775808\n",
        b"\xff\xfe",
    ],
)
def test_a_checkpoint_that_is_not_well_formed_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - int() and unpacking raise it as well
        decode_checkpoint("name", data)


def test_kafka_layout_of_partition_metadata() -> None:
    data = encode_metadata(TOPIC_ID, 7)
    assert data.startswith(b"version: 0\ntopic_id: D0xaHj0HTXyKR3saKzxNXg\npartition: 7\ncrc32c: ")
    assert decode_partition(data) == 7
    with pytest.raises(ValueError, match="checksum"):
        decode_partition(data.replace(b"partition: 7", b"partition: 5"))
    data = b"version: 0\ntopic_id: D0xaHj0HTXyKR3saKzxNXg"  # of Apache Kafka
    assert decode_partition(data) is None
    assert decode_metadata(data + b"\n") == TOPIC_ID
    for bad in (b"", b"version: 1\ntopic_id: x", b"version: 0\ntopic_id: x"):
        with pytest.raises(ValueError):  # noqa: PT011 - UUID() raises it as well
            decode_metadata(bad)


def test_a_manifest_is_read_back_or_refused() -> None:
    entry = ManifestEntry(TP, TOPIC_ID, 1, 9, 9, [(0, 100, 5, 7, 34), (5, 50, -1, 8, 0)], True)
    data = encode_manifest([entry])
    read = decode_manifest(data)[TP]
    assert read._replace(segments=[]) == entry._replace(segments=[])
    assert [tuple(each) for each in read.segments] == entry.segments
    with pytest.raises(ValueError, match="CRC"):
        decode_manifest(data[:-1])
