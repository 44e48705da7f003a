"""The mistakes of a pipeline, each with its line in the user's file.

Must not know: how mistakes are found, Spark, Kafka clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemill.spark.errors import PipelineError
from tidemill.spark.pipelines.declared import Place


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake.

    Attributes:
        place: the line of the user's file that has the mistake.
        message: what is wrong.
        hint: what to do, or an empty string.
    """

    place: Place
    message: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f"\n    hint: {self.hint}" if self.hint else ""
        return f"{self.place}: {self.message}{hint}"


class PipelineProblemsError(PipelineError):
    """A pipeline has mistakes.

    Attributes:
        problems: all mistakes that were found, in the order of the file.
    """

    def __init__(self, name: str, problems: Iterable[Problem]) -> None:
        self.problems = sorted(problems, key=lambda each: (each.place.file, each.place.line))
        count = len(self.problems)
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        what = "a mistake" if count == 1 else f"{count} mistakes"
        super().__init__(f"pipeline {name} has {what}:\n{lines}")


def invalid_topic(what: str, name: str, place: Place) -> Problem:
    """Return the problem of a topic's name that no broker accepts."""
    return Problem(
        place,
        f"{what}: invalid topic name {name!r}",
        "Use letters, digits, '.', '_' and '-', at most 249 of them.",
    )
