"""A table in which contenders are compared: they take turns, and a cell is a median of the rounds.

With another checkout (``--against``), the contenders are ``Run.versions``: that one, that one
again, which shows the noise of the run, and this one. Must not know: servers, clients, loads.
"""

from __future__ import annotations

import statistics
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from bench.report import Aim, Cell, Table
from bench.run import Run

Figures = Mapping[str, float]
"""Name of a figure with its unit -> value."""
OTHERS = ("kafka", "rabbitmq")
"""Names of contenders that are not ours begin with these: a turn of theirs can fail."""
NOISY = ("p10 ", "p99", "max ", "client ", "idle", "disk ")
"""Figures that contain these are not compared with another checkout."""
LIMIT = 1.05
"""How much worse than another checkout a median of all cases can be, beyond what the other one
shows against itself. Single cases vary more."""


class Comparison:
    """A table with a row for each case and contender.

    Args:
        run: The run, whose rounds are the number of turns.
        title: Title of the table.
        figures: The figures to show, in their order.
        about: Names of the columns that describe a case.
        base: The contender whose figures the others are compared with, or the beginning of its
            name; empty for none.
        by: Figures that are shown as a ratio to those of ``base``, the median of the rounds.
        to_first: A figure that is also shown as a ratio to that of the first case.
        note: Text below the table.
    """

    def __init__(
        self,
        run: Run,
        title: str,
        figures: Sequence[str],
        *,
        about: Sequence[str] = ("load",),
        base: str = "",
        by: Sequence[str] = (),
        to_first: str = "",
        note: str = "",
    ) -> None:
        self._run = run
        self._title = title
        self._figures = list(figures)
        self._about = list(about)
        self._base, self._by = base, list(by) if base else []
        if run.options.against is not None:
            self._base = "before"
            self._by = [each for each in figures if not any(part in each for part in NOISY)]
        self._ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._to_first = to_first
        self._note = note
        self._first: dict[str, float] = {}
        self._rows: list[list[Cell]] = []

    def measure(
        self,
        about: Sequence[Cell],
        turns: Mapping[str, Callable[[], Figures]],
        rounds: int | None = None,
    ) -> dict[str, list[Figures]]:
        """Let contenders take turns with one case, and add their rows.

        Returns:
            The figures of each contender, in the order of the rounds. A contender of which no turn
            succeeded has none.
        """
        guarded = {who: partial(self._guarded, who, turn) for who, turn in turns.items()}
        found = {
            who: [each for each in results if each is not None]
            for who, results in self._run.take_turns(guarded, rounds).items()
        }
        self.add(about, found)
        return found

    def add(self, about: Sequence[Cell], found: Mapping[str, Sequence[Figures]]) -> None:
        """Add the rows of a case whose turns were taken elsewhere.

        Args:
            found: Contender -> the figures of its turns, in the order of the rounds.
        """
        base = next((who for who in found if self._base and who.startswith(self._base)), "")
        for who, results in found.items():
            row: list[Cell] = [*about, who, *(typical(results, each) for each in self._figures)]
            for figure in self._by:
                ratio = ratio_of(results, found.get(base, ()), figure)
                row.append(ratio)
                if ratio is not None:
                    self._ratios[who, figure].append(ratio)
            if self._to_first:
                value = typical(results, self._to_first)
                first = self._first.setdefault(who, value) if value is not None else None
                row.append(value / first if value is not None and first else None)
            self._rows.append(row)

    def _guarded(self, who: str, turn: Callable[[], Figures]) -> Figures | None:
        """Run a turn. If one of others fails, report it and return None: the run continues."""
        try:
            return turn()
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            if not who.startswith(OTHERS):
                raise
            self._run.say(f"note: a turn of {who} has failed: {error}")
            return None

    def regressions(self) -> list[Aim]:
        """Return the median of all cases' ratios to another checkout, for each figure."""
        aims = []
        for figure in self._by if self._base == "before" else ():
            if not self._ratios["now", figure]:
                continue
            now, noise = (
                statistics.median(self._ratios[who, figure]) for who in ("now", "before, again")
            )
            what = f"{self._title}: {figure}, now to before (before to itself: {noise:.3f})"
            is_rate = "/s" in figure
            limit = min(1.0, noise) / LIMIT if is_rate else max(1.0, noise) * LIMIT
            aims.append(Aim(what, now, limit, "", at_most=not is_rate))
        return aims

    def table(self) -> Table:
        """Return the table, without columns that have no figures."""
        columns = [*self._about, "who", *self._figures]
        columns += [f"{each} to {self._base}" for each in self._by]
        columns += [f"{self._to_first} to the first case"] if self._to_first else []
        kept = [
            index
            for index in range(len(columns))
            if index <= len(self._about) or any(row[index] is not None for row in self._rows)
        ]
        rows = [[row[index] for index in kept] for row in self._rows]
        return Table(self._title, [columns[index] for index in kept], rows, self._note)


def typical(results: Iterable[Figures], figure: str) -> float | None:
    """Return the median of a figure over all rounds, or None if there is none."""
    values = [each[figure] for each in results if figure in each]
    return statistics.median(values) if values else None


def ratio_of(ours: Sequence[Figures], theirs: Sequence[Figures], figure: str) -> float | None:
    """Return the median of the rounds' ratios of a figure; None if one of the turns has failed."""
    if len(ours) != len(theirs):
        return None
    pairs = [
        (a[figure], b[figure])
        for a, b in zip(ours, theirs, strict=True)
        if figure in a and b.get(figure)
    ]
    return statistics.median(a / b for a, b in pairs) if pairs else None
