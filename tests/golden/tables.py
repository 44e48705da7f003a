"""The golden tables: raw bytes of record batches and what they mean.

``batches_java.json`` was written by Apache Kafka's own builders and its log cleaner's filter,
``batches_python.json`` by kafka-python and aiokafka (see ``make/``); ``BY_HAND`` was derived byte
by byte from the format's description.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent


class Golden(NamedTuple):
    """A batch and its meaning (see ``make/MakeBatches.java`` for the fields)."""

    name: str
    data: bytes
    meaning: dict[str, Any]


def _load(name: str) -> Any:
    return json.loads((HERE / name).read_text())


def batches() -> list[Golden]:
    """All batches that real clients wrote."""
    return [
        Golden(f"{source}: {each['name']}", bytes.fromhex(each["hex"]), each["meaning"])
        for source, name in (("java", "batches_java.json"), ("python", "batches_python.json"))
        for each in _load(name)["batches"]
    ]


def filtered() -> list[dict[str, Any]]:
    """Batches before and after Kafka's cleaner, with the offsets that it had to keep."""
    cases: list[dict[str, Any]] = _load("batches_java.json")["filtered"]
    return cases


BY_HAND = bytes.fromhex(
    "0000000000000064"  # base offset 100
    "0000004b"  # batch length 75 = 87 - 12
    "00000002"  # leader epoch 2
    "02"  # magic
    "89d52d04"  # CRC-32C of all that follows
    "0000"  # attributes: no codec, CreateTime
    "00000002"  # last offset delta 2
    "00000000000003e8"  # base timestamp 1000
    "00000000000003ea"  # max timestamp 1002
    "0000000000000007"  # producer id 7
    "0001"  # producer epoch 1
    "0000000a"  # base sequence 10
    "00000003"  # 3 records
    # record 0: key "a", value "b", no headers
    "10"  # length 8 (zigzag 16)
    "00"  # attributes
    "00"  # timestamp delta 0
    "00"  # offset delta 0
    "0261"  # key: length 1 (zigzag 2), "a"
    "0262"  # value: length 1, "b"
    "00"  # no headers
    # record 1: no key, no value, timestamp 2 later
    "0c"  # length 6
    "00"
    "04"  # timestamp delta 2
    "02"  # offset delta 1
    "01"  # null key: length -1 (zigzag 1)
    "01"  # null value
    "00"
    # record 2: empty key and value, timestamp 1 earlier, a header "h" = null
    "12"  # length 9
    "00"
    "01"  # timestamp delta -1
    "04"  # offset delta 2
    "00"  # empty key
    "00"  # empty value
    "02"  # 1 header
    "0268"  # name "h"
    "01"  # null
)
"""One batch, derived by hand."""
