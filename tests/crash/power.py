"""What a power cut may do to files: lose, tear or zero what nobody was promised.

Works on a stopped broker's folder, through the batch format only.
"""

from __future__ import annotations

import random
from pathlib import Path

from tidemill.log.batch import iter_headers


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
    """What the broker itself says was synced of a partition (Kafka's checkpoint format)."""
    checkpoint = data_dir / "recovery-point-offset-checkpoint"
    if not checkpoint.exists():
        return 0
    for line in checkpoint.read_text().splitlines()[2:]:
        name, number, offset = line.split()
        if (name, int(number)) == (topic, partition):
            return int(offset)
    return 0
