"""Writes record batches with the encoders of kafka-python and aiokafka, as JSON.

    python -m tests.golden.make.make_batches > tests/golden/batches_python.json

kafka-python compresses gzip only unless more libraries are installed; aiokafka does all codecs.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from kafka.record.default_records import DefaultRecordBatchBuilder

T = 1_700_000_000_000
RECORDS: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (T, b"k1", b"v1", []),
    (T + 5, None, b"no key", [("h", b"x"), ("h", None)]),
    (T - 300, b"k2", None, []),
    (T + 1, b"", b"", [("ü", b"")]),
    (T + 2, b"k1", b"v" * 200, []),
    (T + 3, b"k3", b"v" * 200, []),
]


def _case(library: str, builder: Any, codec: int, producer: tuple[int, int, int]) -> dict[str, Any]:
    batch = builder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        batch_size=1 << 20,
    )
    for offset, (timestamp, key, value, headers) in enumerate(RECORDS):
        batch.append(offset, timestamp, key, value, headers)
    return {
        "name": f"{library}, codec {codec}, producer {producer[0]}",
        "hex": bytes(batch.build()).hex(),
        "meaning": {
            "base_offset": 0,
            "last_offset": len(RECORDS) - 1,
            "codec": codec,
            "log_append_time": False,
            "transactional": False,
            "control": False,
            "delete_horizon": None,
            "base_timestamp": T,
            "max_timestamp": T + 5,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "base_sequence": producer[2],
            "count": len(RECORDS),
            "records": [
                {
                    "offset": offset,
                    "timestamp": timestamp,
                    "key": None if key is None else key.hex(),
                    "value": None if value is None else value.hex(),
                    "headers": [
                        [name.encode().hex(), None if content is None else content.hex()]
                        for name, content in headers
                    ],
                }
                for offset, (timestamp, key, value, headers) in enumerate(RECORDS)
            ],
        },
    }


def main() -> None:
    cases = []
    for producer in ((-1, -1, -1), (4711, 3, 20)):
        cases += [
            _case("kafka-python", DefaultRecordBatchBuilder, codec, producer) for codec in (0, 1)
        ]
        cases += [
            _case("aiokafka", _DefaultRecordBatchBuilderPy, codec, producer) for codec in range(5)
        ]
    json.dump({"made_by": "kafka-python 3.0.12, aiokafka 0.14.0", "batches": cases}, sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
