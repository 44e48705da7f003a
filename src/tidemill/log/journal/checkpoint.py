"""The file that says which journal is in use, and which files it has.

It has lines of text and a CRC, as the other checkpoints::

    journal <id in hex>               or none: no journal is in use
    epoch <n>                         higher than that of each journal before
    sequence <n>                      every entry up to n was written
    file <name> <bytes>               a file of the journal
    without <topic> <partition>       the pieces of this partition don't count: it was repaired
    accepted                          the damage of the journal was accepted by a repair
    journal-checkpoint <crc>

A folder of format 2 always has the file. Earlier versions wrote neither ``epoch`` nor ``file``, and
removed the file when no journal was in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.log.disk.checkpoints import seal, unseal
from tidemill.log.disk.files import FileSystem
from tidemill.log.names import TopicPartition

CHECKPOINT = "journal-checkpoint"
MISSING = "is missing"
_NONE = "none"


@dataclass(frozen=True, slots=True)
class JournalCheckpoint:
    """The content of the file.

    Attributes:
        journal: the id of the journal, 16 bytes; empty if none is in use.
        sequence: every entry up to this sequence was written.
        without: the partitions whose pieces don't count.
        epoch: the number of the journal, higher than that of each one before; 0 if an earlier
            version of tidemill wrote the file.
        files: the sizes of the journal's files by name. Each of them must be there.
        is_accepted: whether a repair has accepted the damage of the journal.
    """

    journal: bytes
    sequence: int = 0
    without: frozenset[TopicPartition] = frozenset()
    epoch: int = 0
    files: Mapping[str, int] = field(default_factory=dict)
    is_accepted: bool = False


def encode_journal_checkpoint(checkpoint: JournalCheckpoint) -> bytes:
    """Return the content of the file."""
    lines = [f"journal {checkpoint.journal.hex() or _NONE}", f"epoch {checkpoint.epoch}"]
    lines.append(f"sequence {checkpoint.sequence}")
    lines += [f"file {name} {size}" for name, size in sorted(checkpoint.files.items())]
    lines += [f"without {tp.topic} {tp.partition}" for tp in sorted(checkpoint.without)]
    lines += ["accepted"] if checkpoint.is_accepted else []
    return seal(CHECKPOINT, lines)


def decode_journal_checkpoint(data: bytes) -> JournalCheckpoint:
    """Return the content of the file.

    Raises:
        ValueError: it is damaged or malformed.
    """
    names: dict[str, list[list[str]]] = {}
    for line in unseal(CHECKPOINT, data):
        name, *words = line.split(" ")
        names.setdefault(name, []).append(words)
    try:
        ((text,),) = names["journal"]
        journal = b"" if text == _NONE else bytes.fromhex(text)
        ((sequence,),) = names["sequence"]
        ((epoch,),) = names.get("epoch", [["0"]])
        files = {name: int(size) for name, size in names.get("file", [])}
        without = {TopicPartition(topic, int(n)) for topic, n in names.get("without", [])}
        found = JournalCheckpoint(
            journal, int(sequence), frozenset(without), int(epoch), files, "accepted" in names
        )
    except KeyError as error:
        raise ValueError(f"the file has no {error}") from error
    if len(journal) not in (0, 16) or found.sequence < 0 or found.epoch < 0:
        raise ValueError("the file is not complete")
    return found


def read_checkpoint(fs: FileSystem, data_dir: str) -> tuple[JournalCheckpoint | None, str]:
    """Return the content of a folder's file, or what is wrong with it, for example ``MISSING``."""
    path = f"{data_dir}/{CHECKPOINT}"
    if not fs.exists(path):
        return None, MISSING
    try:
        return decode_journal_checkpoint(fs.read_bytes(path)), ""
    except ValueError as error:
        return None, f"is damaged ({error})"


def is_in_use(fs: FileSystem, data_dir: str) -> bool:
    """Return whether a folder's file names a journal."""
    found, _ = read_checkpoint(fs, data_dir)
    return found is not None and found.journal != b""
