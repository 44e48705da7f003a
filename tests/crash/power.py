"""Damages files as a power cut does: loses, tears or zeroes what was not synced.

A disk keeps what was synced, also if no client got an acknowledgement. ``disk`` records how
much of each segment that is, and which writes to the journal are not. The broker's checkpoint
files are behind, and a test must not take the broker's word for it. Works on the folder of a
stopped broker, and knows the names of segments only.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.conftest import BrokerFactory
from tests.crash.disk import Entry, disk, synced_sizes, unsynced_entries
from tests.support.broker_process import BrokerProcess


class Power:
    """A broker whose power can be cut.

    Attributes:
        broker: the broker; it runs.
    """

    def __init__(
        self, start_broker: BrokerFactory, folder: Path, settings: dict[str, str] | None = None
    ) -> None:
        self._record = folder / "synced"
        self._record.touch()
        self._faults = folder / "faults"
        self.broker: BrokerProcess = start_broker(
            settings=settings or {},
            env=disk(folder, synced=self._record, faults=self._faults),
            fresh=True,
        )

    def let_journal_fail(self, fails: bool) -> None:
        """Let the writes to the journal fail from now on, or work again."""
        if fails:
            self._faults.write_text("journal")
        else:
            self._faults.unlink(missing_ok=True)

    def last_segment(self, folder: str) -> tuple[Path, int]:
        """Return the file of a partition's last segment, and how many bytes of it were synced."""
        log = max((self.broker.data_dir / folder).glob("*.log"))
        with self._record.open() as lines:
            return log, synced_sizes(lines).get(str(log), 0)

    def cut(self, dice: random.Random) -> list[str]:
        """Damage what was not synced of the partitions' last segments and of the journal.

        Returns:
            What was done, for the failure report.
        """
        folders = sorted({path.parent.name for path in self.broker.data_dir.glob("*/*.log")})
        damaged = [self._damage(folder, dice) for folder in folders if dice.random() < 0.7]
        damaged += [self._damage_journal(entry, dice) for entry in self._unsynced_entries()]
        return [what for what in damaged if what]

    def _unsynced_entries(self) -> list[Entry]:
        """Return the writes to the journal whose sync had not ended; the next life has its own."""
        with self._record.open() as lines:
            found = unsynced_entries(lines)
        with self._record.open("a") as lines:
            lines.writelines(f"stored 0+0 {path}\n" for path in {path for path, _, _ in found})
        return found

    def _damage_journal(self, entry: Entry, dice: random.Random) -> str:
        path, position, length = entry
        if not Path(path).exists():
            return ""
        kept = dice.choice([0, dice.randint(0, length)])
        with Path(path).open("r+b") as journal:
            journal.seek(position + kept)
            rest = length - kept
            journal.write(bytes(rest) if dice.random() < 0.5 else dice.randbytes(rest))
        return f"{kept} of {length} bytes of an entry at {position} in {Path(path).name}"

    def _damage(self, folder: str, dice: random.Random) -> str:
        log, synced = self.last_segment(folder)
        data = log.read_bytes()
        if synced >= len(data):
            return ""
        cut = dice.randint(synced, len(data) - 1)
        kind = dice.choice(["lost", "zeros", "torn"])
        tail = b""
        if kind == "zeros":
            tail = bytes(dice.randint(0, len(data) - cut))
        elif kind == "torn":
            # Sectors of a batch that never got its last bytes, or garbage of a deleted file.
            tail = dice.randbytes(dice.randint(0, min(300, len(data) - cut)))
        log.write_bytes(data[:cut] + tail)
        return f"{kind} at {cut} of {len(data)} (synced up to {synced}) in {folder}/{log.name}"


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
