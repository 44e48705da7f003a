"""Secrets in definitions: references to variables or files, and values that hide themselves.

A definition is stored in a topic and shown to users. So it contains ``${env:NAME}`` or
``${file:PATH}``, and only the worker puts the values in. Must not know: a connector.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidemill.errors import SettingsError

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")
_PASSWORD_IN_URL = re.compile(
    r"(?P<start>[a-z][a-z0-9+.-]*://[^/@\s:]*:)(?P<secret>[^@/\s]+)@", re.I
)
_PASSWORD_IN_DSN = re.compile(r"(?P<start>\bpassword\s*=\s*)(?P<secret>'[^']*'|\S+)", re.I)
_SECRET_NAME = re.compile(r"password|passwd|secret|token|salt|hash_key", re.I)
HIDDEN = "********"


class Secret(str):
    """A text that neither ``repr`` nor a format of a containing object shows.

    It is a ``str`` so that client libraries take it. ``str(secret)`` and ``f"{secret}"`` give
    asterisks; use ``reveal`` where the text is needed.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Secret({HIDDEN!r})"

    def __str__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return format(HIDDEN, spec)

    def reveal(self) -> str:
        """Return the text."""
        return "".join(self)


def references(value: Any) -> list[str]:
    """Return the names of the environment variables that a definition refers to."""
    if isinstance(value, Mapping):
        return [name for each in value.values() for name in references(each)]
    if isinstance(value, list | tuple):
        return [name for each in value for name in references(each)]
    if not isinstance(value, str):
        return []
    return [found[2].strip() for found in _REFERENCE.finditer(value) if found[1] == "env"]


def resolve(value: Any) -> Any:
    """Replace the references in a definition's values by what they refer to.

    A text that contains a reference becomes a ``Secret``.

    Raises:
        SettingsError: a variable is not set, or a file can't be read.
    """
    if isinstance(value, Mapping):
        return {key: resolve(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(each) for each in value]
    if not isinstance(value, str) or not _REFERENCE.search(value):
        return value
    return Secret(_REFERENCE.sub(_value_of, value))


def is_reference(text: str) -> bool:
    """Return whether a text is nothing but a reference."""
    return _REFERENCE.fullmatch(text) is not None


def _value_of(reference: re.Match[str]) -> str:
    kind, name = reference[1], reference[2].strip()
    if kind == "env":
        if name not in os.environ:
            raise SettingsError(
                f"the environment variable {name} is not set, and a definition refers to it",
                hint=f"Set {name} in the environment of the worker. Those of tidemill dev and "
                "tidemill serve have the environment with which the broker was started; a file "
                "can change while it runs: ${file:/path}",
            )
        return os.environ[name]
    try:
        return Path(name).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SettingsError(f"the file {name} of a secret can't be read: {reason}") from error


def find_plain(values: Mapping[str, Any], path: str = "") -> list[str]:
    """Return the keys whose values contain a secret as plain text instead of a reference."""
    found: list[str] = []
    for key, value in values.items():
        name = f"{path}{key}"
        if isinstance(value, Mapping):
            found += find_plain(value, f"{name}.")
        elif isinstance(value, str):
            named = _SECRET_NAME.search(key) is not None and not _REFERENCE.search(value)
            if (named and value) or redact(value) != value:
                found.append(name)
    return found


def redact(text: str) -> str:
    """Return a text without the passwords of URLs and of ``password=...`` in it."""

    def hide(match: re.Match[str]) -> str:
        rest = match[0][len(match["start"]) + len(match["secret"]) :]
        shown = match["secret"] if _REFERENCE.fullmatch(match["secret"]) else HIDDEN
        return match["start"] + shown + rest

    return _PASSWORD_IN_DSN.sub(hide, _PASSWORD_IN_URL.sub(hide, text))
