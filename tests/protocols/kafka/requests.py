"""Random requests of any API: valid ones of the schema, with absurd values, and damaged ones."""

from __future__ import annotations

import random
import struct
from typing import Any
from uuid import UUID

from tests.kafka_codec.test_parity import ADVERTISED
from tests.protocols.kafka.messages import BITS, one_batch
from tests.protocols.kafka.wire import request_bytes
from tidemill.kafka_codec.fields import Field, Structure
from tidemill.kafka_codec.messages import encode_request
from tidemill.kafka_codec.primitives import FIXED_FORMATS
from tidemill.kafka_codec.schema import request_type, structure_of

NAMES = ["t", "u", "g", "x", "m", "range", "consumer", "retention.ms", "", "__consumer_offsets"]
"""Names that exist, or are special."""
ODD_NAMES = [".", "..", "a/b", "\0", "ä" * 100, "n" * 249, "n" * 300, "l" * 32_000, "-1", " ", "*"]


class Requests:
    """A source of random requests.

    Args:
        seed: two sources with the same seed make the same requests.
    """

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._made = 0

    def frame(self) -> bytes:
        """Return the next request, framed."""
        chance = self._chance
        key, version = chance.choice(ADVERTISED)
        structure = structure_of(request_type(key, version))
        body = bytes(encode_request(key, version, self._tree(structure, depth=0)))
        self._made += 1
        frame = request_bytes(key, version, body, self._made, chance.choice(["c", None, "ä" * 50]))
        return self._damaged(frame) if chance.random() < 0.3 else frame

    # --- trees -----------------------------------------------------------------------------------

    def _tree(self, structure: Structure, depth: int) -> dict[str, Any]:
        return {
            field.name: self._field(field, depth)
            for field in structure.fields
            if field.tag is None or self._chance.random() < 0.3
        }

    def _field(self, field: Field, depth: int) -> Any:
        chance = self._chance
        if field.nullable and field.kafka_type != "datetime_i64" and chance.random() < 0.15:
            return None
        if not field.is_array:
            return self._value(field, depth)
        counts = [0, 1, 1, 2, 3] if depth else [0, 1, 1, 2, 3, 3, 40]
        values = [self._value(field, depth) for _ in range(chance.choice(counts))]
        if chance.random() < 0.02 and depth == 0:
            values = values * chance.choice([100, 1000])  # the same over and over
        return values

    def _value(self, field: Field, depth: int) -> Any:
        chance = self._chance
        if field.structure is not None:
            return self._tree(field.structure, depth + 1)
        kind = field.kafka_type
        if kind == "string":
            odd = chance.random() < 0.15
            return chance.choice(ODD_NAMES if odd else [*NAMES, "t", "u", "g", "x"])
        if kind == "records":
            return chance.choice([one_batch(), one_batch(b"", records=1000), b"", b"x" * 100])
        if kind == "bytes":
            return chance.choice([b"", b"\0", chance.randbytes(50), b"\0\1" + b"\x7f" * 8])
        if kind == "uuid":
            return UUID(int=chance.choice([0, 1, chance.getrandbits(128)]))
        if kind == "bool":
            return chance.random() < 0.5
        if kind == "float64":
            return chance.choice([0.0, -1.0, float("inf"), float("nan")])
        return self._number(FIXED_FORMATS[kind])

    def _number(self, code: str) -> int:
        chance = self._chance
        top: int = 2 ** BITS[code]
        low = 0 if code.isupper() else -top
        number: int = chance.choice(
            [0, 0, 0, 1, 1, 2, -1, -1, -2, 3, 100, 6000, 30_000, top - 1, low]
        )
        return min(max(number, low), top - 1)

    # --- damage ----------------------------------------------------------------------------------

    def _damaged(self, frame: bytes) -> bytes:
        chance, stream = self._chance, bytearray(frame)
        for _ in range(chance.randint(1, 5)):
            if len(stream) < 16:
                break
            position = chance.randrange(4, len(stream))
            kind = chance.choice(["byte", "length32", "varint", "cut", "insert", "end", "version"])
            if kind == "byte":
                stream[position] = chance.randrange(256)
            elif kind == "length32":
                value = chance.choice([-1, -2, 0, 2**31 - 1, -(2**31), 65_536])
                stream[position : position + 4] = struct.pack(">i", value)
            elif kind == "varint":
                stream[position : position + 5] = b"\xff\xff\xff\xff\x0f"
            elif kind == "cut":
                del stream[position : position + chance.randint(1, 8)]
            elif kind == "insert":
                stream[position:position] = chance.randbytes(chance.randint(1, 8))
            elif kind == "end":
                del stream[position:]
            else:
                stream[6:8] = struct.pack(">h", chance.randint(-1, 20))
        stream[:4] = struct.pack(">i", len(stream) - 4)
        return bytes(stream)
