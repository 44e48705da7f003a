"""The options of ``tidemill doctor --repair``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RepairOptions:
    """The repair that the command line asks for."""

    what: str
    at: int | None
    yes: bool
    as_json: bool

    def next_step(self) -> str:
        """Return what a user does after a dry run."""
        return "Nothing was changed. Copy the data folder first, then repeat this with --yes."
