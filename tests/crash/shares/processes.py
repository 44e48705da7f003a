"""Processes of members of a share group, and what they told."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from pathlib import Path

from tests.support.processes import ServerProcess

ROOT = Path(__file__).parents[3]


class MemberProcess:
    """One member. Its lines can be read after its death."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, output: Path, mode: str = "work"
    ) -> None:
        self._output = output
        self.process = ServerProcess(
            "share member",
            [sys.executable, "-m", "tests.crash.shares.member", bootstrap, group, topic, mode],
            output.with_suffix(".log"),
            stdout_path=output,
            cwd=ROOT,
            forked=True,
        )

    def lines(self, kind: str) -> list[list[int]]:
        """Return the fields of all complete lines of a kind."""
        complete = self._output.read_text().split("\n")[:-1]
        found = [line.split() for line in complete]
        return [[int(each) for each in fields] for name, *fields in found if name == kind]

    def kinds(self) -> set[str]:
        """Return the kinds of lines that there are."""
        return {line.split()[0] for line in self._output.read_text().split("\n")[:-1]}

    def numbers(self, kind: str) -> list[int]:
        """Return the numbers of all complete lines of a kind."""
        return [number for number, *_ in self.lines(kind)]

    def kill(self) -> None:
        """Kill the process; it must have been alive."""
        assert self.process.exit_code is None, self.process.output()
        self.process.kill()


class Members:
    """The members of a group, of which some are killed and replaced."""

    def __init__(self, bootstrap: str, group: str, topic: str, folder: Path) -> None:
        self._where = bootstrap, group, topic
        self._folder = folder
        self._names = itertools.count()
        self._all: list[MemberProcess] = []
        self._running: list[MemberProcess] = []
        self._fresh: list[tuple[MemberProcess, frozenset[int]]] = []

    def start(self) -> None:
        """Start a member."""
        before = frozenset(self.answered())
        output = self._folder / f"member-{next(self._names)}.out"
        member = MemberProcess(*self._where, output)
        self._all.append(member)
        self._running.append(member)
        self._fresh.append((member, before))

    def replace(self) -> None:
        """Kill the oldest member, and start another."""
        self._running.pop(0).kill()
        self.start()

    def kill(self) -> None:
        """Kill all members."""
        while self._running:
            self._running.pop().kill()

    def numbers(self, kind: str) -> list[int]:
        """Return the numbers in all lines of a kind."""
        return [number for member in self._all for number in member.numbers(kind)]

    def answered(self) -> list[int]:
        """Return the numbers whose acknowledgement was answered."""
        return self.numbers("A")

    def check(self, confirmed: set[int]) -> None:
        """Check what must hold at the end, when the group has finished all records."""
        missing = confirmed - set(self.numbers("S"))
        assert not missing, f"confirmed and never accepted: {sorted(missing)[:5]}"
        twice = [number for number, count in Counter(self.answered()).items() if count > 1]
        assert not twice, f"accepted twice, and both were answered: {twice[:5]}"
        # A member that runs already can have records in its buffers, a new one has none.
        for member, before in self._fresh:
            again = before & set(member.numbers("D"))
            assert not again, (
                f"delivered after its acknowledgement was answered: {sorted(again)[:5]}"
            )
