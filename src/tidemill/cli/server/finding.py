"""The result of one check of ``tidemill doctor``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        status: ok, warn or fail.
        check: the name of the check.
        text: the result, for people.
        hint: what to do about it, or an empty string.
    """

    status: str
    check: str
    text: str
    hint: str = ""
