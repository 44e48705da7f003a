"""The ShareFetch response written by hand agrees with the compiled codec, in every version."""

from __future__ import annotations

from typing import cast
from uuid import UUID

import pytest

from tests.protocols.kafka.messages import joined
from tidemill.kafka_codec.messages import encode_response
from tidemill.kafka_codec.shared import SharedPartition, encode_share_fetch
from tidemill.log.steps import run_steps

SHARE_FETCH = 78
TOPIC = UUID(int=77)
PARTITIONS = [
    SharedPartition(0, acquired=[(0, 9, 1), (12, 12, 5)], records=[b"abc", bytes(5000), b"d"]),
    SharedPartition(1, 3, "unknown", 121, "not acquired"),
    *(SharedPartition(number) for number in range(2, 200)),
]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("partitions", [[], PARTITIONS])
def test_the_bytes_are_those_of_the_compiled_codec(
    version: int, partitions: list[SharedPartition]
) -> None:
    body = joined(run_steps(encode_share_fetch([(TOPIC, partitions)], lock_ms=30_000)))
    tree = {
        "acquisition_lock_timeout": 30_000,
        "responses": [
            {
                "topic_id": TOPIC,
                "partitions": [
                    {
                        "partition_index": each.partition,
                        "error_code": each.error_code,
                        "error_message": each.error_message,
                        "acknowledge_error_code": each.acknowledge_error_code,
                        "acknowledge_error_message": each.acknowledge_error_message,
                        "current_leader": {"leader_id": -1, "leader_epoch": -1},
                        "records": b"".join(cast("list[bytes]", each.records)),
                        "acquired_records": [
                            {"first_offset": first, "last_offset": last, "delivery_count": count}
                            for first, last, count in each.acquired
                        ],
                    }
                    for each in partitions
                ],
            }
        ],
    }
    assert body == bytes(encode_response(SHARE_FETCH, version, tree))
