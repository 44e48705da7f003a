"""Check definitions that users write and that topics store, and word what is wrong with them.

Must not know: a kind of definition. This module is imported when a broker starts.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from tidemill.errors import TidemillError
from tidemill.settings.section import Section

S = TypeVar("S", bound=Section)


def parse(kind: type[S], values: Any, error: type[TidemillError], docs: str) -> S:
    """Check the values of a definition.

    Args:
        kind: the class of the definition.
        values: a JSON or TOML table.
        error: the class of the error.
        docs: the page that explains the keys.

    Raises:
        TidemillError: of the class ``error``: a key or a value is invalid.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as failure:
        raise _invalid(kind, failure, error, docs) from None


def decode(kind: type[S], value: bytes, error: type[TidemillError], docs: str) -> S:
    """Return the definition in a record's value. The arguments and errors are those of ``parse``.

    Raises:
        TidemillError: of the class ``error``: it is not JSON, or invalid.
    """
    try:
        return parse(kind, json.loads(value), error, docs)
    except ValueError as failure:
        raise error(f"the stored definition is not JSON: {failure}") from failure


def read_file(kind: type[S], path: Path, error: type[TidemillError], docs: str) -> S:
    """Read a definition from a TOML file. Its relative paths are relative to the file.

    Raises:
        TidemillError: of the class ``error``: the file can't be read, or is invalid.
    """
    try:
        values = tomllib.loads(path.read_text())
    except OSError as failure:
        raise error(f"can't read {path}: {failure.strerror}") from failure
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as failure:
        raise error(f"{path} is not valid TOML: {failure}") from failure
    try:
        return parse(kind, values, error, docs).relative_to(path.parent)
    except error as failure:
        raise error(f"{path}: {failure}", hint=failure.hint) from failure


def _invalid(
    kind: type[Section], failure: ValidationError, error: type[TidemillError], docs: str
) -> TidemillError:
    first = failure.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        from difflib import get_close_matches  # this module is imported when a broker starts

        close = get_close_matches(key, kind.model_fields, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"See {docs} for the keys."
        return error(f"unknown key {key}", hint=hint)
    if first["type"] == "missing":
        return error(f"the key {key} is missing")
    said = first["msg"].removeprefix("Value error, ")
    return error(f"invalid {key}: {said[:1].lower()}{said[1:]}")
