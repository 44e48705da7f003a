"""The result of one check of ``tidemill doctor``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of a check: ok, warn or fail, a text for people, and perhaps what to do."""

    status: str
    check: str
    text: str
    hint: str = ""
