"""The format of entries: what is written is read, and damage of any kind is not believed."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tidemill.clock import ManualClock
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import Buffer, RawFile, RealFileSystem
from tidemill.log.disk.index import MapCache
from tidemill.log.disk.log_file import HandlePool
from tidemill.log.format.crc import crc32c
from tidemill.log.journal.checkpoint import (
    CHECKPOINT,
    JournalCheckpoint,
    decode_journal_checkpoint,
    encode_journal_checkpoint,
)
from tidemill.log.journal.entry import (
    BLOCK,
    CRC_START,
    HEADER_BYTES,
    PIECE_BYTES,
    Entry,
    Piece,
    decode_entry,
    encode_entry,
    entry_bytes,
    padding,
    read_place,
)
from tidemill.log.journal.journal import Journal, write_through
from tidemill.log.journal.reading import read_journal
from tidemill.log.names import TopicPartition
from tidemill.native import extension

ID = bytes(range(16))
PIECES = [
    Piece(bytes(16), 3, 100, 5000, 120, 130, 6, (b"abc", b"def")),
    Piece(b"\xff" * 16, 0, 0, 0, 0, 7, 0),
    Piece(b"\x01" * 16, 1, 0, 0, 0, 2, 9000, (bytes(9000),)),
]


def encoded(pieces: list[Piece], sequence: int = 5, head: int = 2) -> bytearray:
    return sealed(*encode_entry(ID, sequence, head, pieces))


def sealed(header: bytearray, buffers: list[Buffer]) -> bytearray:
    """Return an entry with its CRC and padding."""
    data = header + b"".join(buffers)
    data[4:8] = crc32c(memoryview(data)[CRC_START:]).to_bytes(4, "big")
    return data + padding(len(data))


def test_pieces_are_encoded_as_they_are_described() -> None:
    largest = (1 << 64) - 1
    pieces = [
        *PIECES,
        Piece(bytes(16), (1 << 32) - 1, largest, largest, largest, largest, (1 << 32) - 1),
        Piece(bytes(16), 0, 0, 0, 0, 1, 3, [bytearray(b"abc")]),
    ]
    expected: list[object] = []
    for piece in pieces:
        expected += [struct.pack(">16sIQQQQI", *piece[:-1]), *piece.buffers]
    assert extension.encode_pieces(pieces) == expected
    assert extension.encode_pieces([]) == []


@pytest.mark.parametrize(
    "wrong",
    [
        PIECES[0]._replace(partition=-1),
        PIECES[0]._replace(partition=1 << 32),
        PIECES[0]._replace(position=1 << 64),
        PIECES[0]._replace(size=1 << 32),
        PIECES[0]._replace(topic_id=cast(bytes, "x" * 16)),
        PIECES[0][:-1],
        7,
    ],
)
def test_a_piece_that_does_not_fit_is_refused(wrong: Any) -> None:
    with pytest.raises((OverflowError, ValueError, TypeError, AttributeError, struct.error)):
        extension.encode_pieces([wrong])


def environment() -> Environment:
    fs = RealFileSystem()
    return Environment(fs, HandlePool(fs, 4), MapCache(fs), ManualClock())


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """A journal without entries, which can be used."""
    opened = Journal(environment(), str(tmp_path), 128 << 10)
    opened.prepare()
    yield opened
    opened.close()


def write(journal: Journal, *owners: str) -> None:
    """Write an entry for these owners."""
    entry = journal.begin([PIECES[0]])
    assert entry is not None
    entry.run()
    journal.finish(entry, owners)


def read(data: bytearray | bytes, position: int = 0) -> Entry | None:
    view = memoryview(data)
    place = read_place(view, position, ID)
    return None if place is None else decode_entry(view, position, place)


def test_an_entry_is_read_as_it_was_written() -> None:
    data = encoded(PIECES)
    assert len(data) == entry_bytes(PIECES)
    assert len(data) % BLOCK == 0
    entry = read(data)
    assert entry is not None
    assert (entry.sequence, entry.head, entry.size) == (5, 2, len(data))
    assert [piece[:-1] for piece in entry.pieces] == [piece[:-1] for piece in PIECES]
    assert [b"".join(map(bytes, piece.buffers)) for piece in entry.pieces] == [
        b"abcdef",
        b"",
        bytes(9000),
    ]


def test_an_entry_of_another_journal_is_not_read() -> None:
    assert read_place(memoryview(encoded(PIECES)), 0, bytes(16)) is None


def test_each_changed_byte_is_noticed() -> None:
    data = encoded(PIECES[:2])
    end = HEADER_BYTES + 2 * PIECE_BYTES + 6
    for position in range(end):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        assert read(changed) is None, position


@pytest.mark.parametrize("size", [0, 10, HEADER_BYTES, BLOCK, 2 * BLOCK])
def test_an_entry_that_was_cut_is_not_read(size: int) -> None:
    assert read(encoded(PIECES)[:size]) is None


@pytest.mark.parametrize(
    "piece",
    [
        PIECES[0]._replace(end_offset=120),
        PIECES[0]._replace(segment=121),
        PIECES[0]._replace(end_offset=1 << 63),
        PIECES[0]._replace(position=1 << 63),
        PIECES[0]._replace(size=1 << 31),
    ],
)
def test_a_piece_that_can_not_be_makes_the_entry_invalid(piece: Piece) -> None:
    """The CRC is right, so another program wrote it, or this one has a bug."""
    header, buffers = encode_entry(ID, 5, 2, [PIECES[0]])
    buffers[0] = encode_entry(ID, 5, 2, [piece])[1][0]
    assert read(sealed(header, buffers)) is None


@pytest.mark.parametrize("seed", range(40))
def test_a_journal_of_garbage_is_never_believed_and_never_an_error(
    seed: int, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    entries = [encoded(PIECES[dice.randrange(3) :], n, max(1, n - 3)) for n in range(1, 30)]
    data = bytearray(b"".join(entries))
    for _ in range(dice.randrange(1, 20)):
        at = dice.randrange(len(data))
        length = dice.choice([1, 4, 100, 5000])
        data[at : at + length] = dice.randbytes(len(data[at : at + length]))
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "00000001.journal").write_bytes(data)
    checkpoint = encode_journal_checkpoint(JournalCheckpoint(ID, 29))
    (tmp_path / CHECKPOINT).write_bytes(checkpoint)
    env = environment()
    content = read_journal(env, str(tmp_path))
    ends = {piece.topic_id: piece.end_offset for piece in PIECES}
    for (topic_id, _), proof in content.proofs.items():
        assert proof.end_offset == ends[topic_id]
    if not content.is_whole:
        assert env.reports


# --- write_through --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 1500])
def test_an_entry_is_written_as_it_is_encoded(count: int, tmp_path: Path) -> None:
    pieces = [PIECES[0]._replace(partition=n) for n in range(count)]
    header, buffers = encode_entry(ID, 5, 2, pieces)
    buffers.append(padding(HEADER_BYTES + sum(PIECE_BYTES + each.size for each in pieces)))
    raw: RawFile = RealFileSystem().open(str(tmp_path / "file"), create=True)
    write_through(raw, header, buffers, BLOCK)
    raw.close()
    data = (tmp_path / "file").read_bytes()
    assert data[BLOCK:] == encoded(pieces)
    assert data[:BLOCK] == bytes(BLOCK)


def test_a_file_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    header, buffers = encode_entry(ID, 5, 2, PIECES)
    buffers.append(b"")
    raw = RealFileSystem().open(str(tmp_path / "file"), create=True)
    raw.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        write_through(raw, header, buffers, 0)


# --- the checkpoint -------------------------------------------------------------------------------


def test_a_checkpoint_is_read_as_it_was_written() -> None:
    for without in (frozenset[TopicPartition](), frozenset({TopicPartition("a.b", 3)})):
        checkpoint = JournalCheckpoint(ID, 77, without)
        assert decode_journal_checkpoint(encode_journal_checkpoint(checkpoint)) == checkpoint


def test_each_changed_byte_of_a_checkpoint_is_noticed() -> None:
    data = encode_journal_checkpoint(JournalCheckpoint(ID, 77, frozenset({TopicPartition("t", 1)})))
    for position in range(len(data) - 1):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises((ValueError, IndexError)):
            decode_journal_checkpoint(bytes(changed))


# --- which entries are needed ---------------------------------------------------------------------


def test_the_head_advances_with_the_segments_of_all_owners(journal: Journal) -> None:
    write(journal, "a", "b")
    write(journal, "b")
    write(journal, "c")
    assert journal.head == 1
    first = journal.begin_store("a")
    journal.finish_store(first)
    assert journal.head == 1
    second = journal.begin_store("b")
    write(journal, "b")  # comes after the sync has begun, so the sync does not cover it
    assert journal.head == 1
    journal.finish_store(second)
    assert journal.head == 3
    journal.forget("c")
    assert journal.head == 4
    journal.finish_store(journal.begin_store("b"))
    assert journal.head == journal.next_sequence == 5
    assert journal.begin_store("d") == -1


def test_the_entries_of_a_sync_that_is_retried_are_needed_again(journal: Journal) -> None:
    for owner in ("a", "b", "c"):
        write(journal, owner)
    failed = journal.begin_store("a")
    journal.finish_store(journal.begin_store("b"))
    journal.fail_store("a", failed)
    assert list(journal.oldest()) == ["a", "c"]
    assert journal.head == 1
    journal.finish_store(journal.begin_store("a"))
    assert journal.head == 3
