"""The states of 4096 successive offsets.

A finished block is removed, so a million acknowledged records cost nothing. Knows neither owners'
names nor records.
"""

from __future__ import annotations

from array import array

from tidemill.log.errors import InvalidRecordError
from tidemill.state.primitives import Reader, Writer

SHIFT = 12
SIZE = 1 << SHIFT
MASK = SIZE - 1

UNTOUCHED, AVAILABLE, ACQUIRED, DONE = range(4)
"""Never acquired; returned and not acquired since; out to an owner; acknowledged or dropped."""

_VERSION = 0
_ONE_IF_DONE = bytes(0x31 if state == DONE else 0x30 for state in range(256))
_TO_STATE = bytes(DONE if byte == 0x31 else UNTOUCHED for byte in range(256))
_BITMAP = SIZE // 8


class Block:
    """The states and owners of 4096 offsets.

    Attributes:
        states: one byte for each offset.
        owners: the owner of each acquired offset.
        done: how many are done.
    """

    __slots__ = ("done", "owners", "states")

    def __init__(self) -> None:
        self.states = bytearray(SIZE)
        self.owners = array("I", bytes(4 * SIZE))
        self.done = 0

    def fill(self, first: int, end: int, state: int) -> None:
        """Give the indexes from ``first`` to ``end`` (exclusive) a state."""
        before = self.states.count(DONE, first, end)
        self.states[first:end] = bytes((state,)) * (end - first)
        self.done += (end - first if state == DONE else 0) - before

    def span(self, index: int, end: int, state: int) -> int:
        """Return how many successive offsets from ``index`` to ``end`` have the state."""
        part = self.states[index:end]
        return len(part) - len(part.lstrip(bytes((state,))))


FINISHED = bytes((_VERSION,))
"""The value of a block that is done as a whole, while records below it are not."""


def encode(block: Block, counts: list[tuple[int, int]]) -> bytes:
    """Return the value of a block's record: which offsets are done, and delivery counts.

    Args:
        counts: (index, delivery count) of the offsets that were returned.
    """
    digits = block.states.translate(_ONE_IF_DONE)
    out = Writer().i8(_VERSION)
    out.blob(int(digits, 2).to_bytes(_BITMAP, "big"))
    out.i32(len(counts))
    for index, count in counts:
        out.i16(index).i32(count)
    return out.done()


def decode(value: bytes) -> tuple[Block, list[tuple[int, int]]]:
    """Return a block with the offsets that are done, and the delivery counts."""
    reader = Reader(value)
    version = reader.i8()
    if version != _VERSION:
        raise InvalidRecordError(f"invalid version {version} of a queue's block")
    if not reader.remaining:
        block = Block()
        block.fill(0, SIZE, DONE)
        return block, []
    bitmap = reader.nullable_bytes()
    if bitmap is None or len(bitmap) != _BITMAP:
        raise InvalidRecordError("a queue's block has a bitmap of another size")
    block = Block()
    digits = format(int.from_bytes(bitmap, "big"), f"0{SIZE}b").encode()
    block.states[:] = digits.translate(_TO_STATE)
    block.done = block.states.count(DONE)
    counts = []
    for _ in range(reader.i32()):
        index, count = reader.i16(), reader.i32()
        if not 0 <= index < SIZE or count < 0:
            raise InvalidRecordError(f"a queue's block has index {index} with count {count}")
        counts.append((index, count))
    return block, counts
