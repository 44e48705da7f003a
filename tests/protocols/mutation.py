"""Random damage to bytes of a protocol."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

LENGTHS = [0, 1, 65536, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]


def mutated(data: st.DataObject, sample: bytes, start: int = 0) -> bytearray:
    """Return a sample with some bytes changed, cut or inserted, from ``start`` on."""
    stream = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(start, len(stream) - 1))
        kind = data.draw(st.sampled_from(["byte", "length32", "varint", "cut", "insert"]))
        if kind == "byte":
            stream[position] = data.draw(st.integers(0, 255))
        elif kind == "length32":
            value = data.draw(
                st.sampled_from([0, 1, 2**32 - 1, 2**32 - 2, 2**31, 2**31 - 1, 65536])
            )
            stream[position : position + 4] = struct.pack(">I", value)
        elif kind == "varint":  # its first byte is the longest length of one byte, too
            stream[position : position + 5] = b"\xff\xff\xff\xff\x0f"
        elif kind == "cut":
            del stream[position : position + data.draw(st.integers(1, 8))]
        else:
            stream[position:position] = data.draw(st.binary(min_size=1, max_size=8))
        if len(stream) < 6:
            break
    return stream
