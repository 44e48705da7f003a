"""The format of the file that says which journal a data folder has. Does no I/O.

The file has lines of text and a CRC, as the other checkpoints::

    journal <id in hex>
    sequence <n>                      every entry up to n was written
    without <topic> <partition>       the pieces of this partition don't count: it was repaired
    journal-checkpoint <crc>
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.log.format.crc import crc32c
from tidemill.log.names import TopicPartition

CHECKPOINT = "journal-checkpoint"


@dataclass(frozen=True, slots=True)
class JournalCheckpoint:
    """The content of the file.

    Attributes:
        journal: the id of the journal, 16 bytes.
        sequence: every entry up to this sequence was written.
        without: the partitions whose pieces don't count.
    """

    journal: bytes
    sequence: int
    without: frozenset[TopicPartition] = frozenset()


def encode_journal_checkpoint(checkpoint: JournalCheckpoint) -> bytes:
    """Return the content of the file."""
    lines = [f"journal {checkpoint.journal.hex()}", f"sequence {checkpoint.sequence}"]
    lines += [f"without {tp.topic} {tp.partition}" for tp in sorted(checkpoint.without)]
    body = "\n".join([*lines, f"{CHECKPOINT} "]).encode()
    return body + b"%08x\n" % crc32c(body)


def decode_journal_checkpoint(data: bytes) -> JournalCheckpoint:
    """Return the content of the file.

    Raises:
        ValueError: it is damaged or malformed.
    """
    body, crc = data[:-9], data[-9:]
    if not body.endswith(f"{CHECKPOINT} ".encode()) or int(crc, 16) != crc32c(body):
        raise ValueError(f"wrong CRC, or not the file {CHECKPOINT}")
    journal = b""
    sequence = -1
    without = set()
    for line in body.decode().splitlines()[:-1]:
        name, *words = line.split(" ")
        if name == "journal":
            journal = bytes.fromhex(words[0])
        elif name == "sequence":
            sequence = int(words[0])
        elif name == "without":
            without.add(TopicPartition(words[0], int(words[1])))
    if len(journal) != 16 or sequence < 0:
        raise ValueError("the file is not complete")
    return JournalCheckpoint(journal, sequence, frozenset(without))
