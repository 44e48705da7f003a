"""Damages files as a power cut does: loses, tears or zeroes what was not promised to any client.

Works on the folder of a stopped broker. Knows the formats of batches and checkpoints only.
"""

from __future__ import annotations

import random
from pathlib import Path

from tidemill.log.disk.checkpoints import RECOVERY_POINTS, decode_checkpoint
from tidemill.log.format.batch import iter_headers
from tidemill.log.names import TopicPartition


def cut_power(folder: Path, floor: int, dice: random.Random) -> str:
    """Damage the last segment of a partition at or above offset ``floor``.

    Returns:
        What was done, for the failure report.
    """
    log = sorted(folder.glob("*.log"))[-1]
    data = log.read_bytes()
    safe = 0
    for position, header in iter_headers(data):
        if header.base_offset >= floor:
            break
        safe = position + header.size
    if int(log.stem) > floor or safe == len(data):
        return "nothing unpromised there"
    cut = dice.randint(safe, len(data))
    kind = dice.choice(["lost", "zeros", "torn"])
    tail = b""
    if kind == "zeros":
        tail = bytes(dice.randint(0, len(data) - cut))
    elif kind == "torn":
        # Sectors of a batch that never got its last bytes, or garbage of a deleted file.
        tail = dice.randbytes(dice.randint(0, min(300, len(data) - cut)))
    log.write_bytes(data[:cut] + tail)
    return f"{kind} at {cut} of {len(data)} (promised up to {safe}) in {log.name}"


def lose_an_index(folder: Path, dice: random.Random) -> str:
    """Remove or truncate one index file."""
    indexes = sorted([*folder.glob("*.index"), *folder.glob("*.timeindex")])
    if not indexes:
        return "no index there"
    victim = dice.choice(indexes)
    if dice.random() < 0.5:
        victim.unlink()
        return f"lost {victim.name}"
    data = victim.read_bytes()
    victim.write_bytes(data[: dice.randint(0, len(data))])
    return f"cut {victim.name}"


def recovery_point(data_dir: Path, topic: str, partition: int) -> int:
    """Return the recovery point that the broker stored for a partition."""
    checkpoint = data_dir / RECOVERY_POINTS
    if not checkpoint.exists():
        return 0
    stored = decode_checkpoint(RECOVERY_POINTS, checkpoint.read_bytes())
    return stored.offsets.get(TopicPartition(topic, partition), 0)
