"""Check definitions that users write and that topics store, and word what is wrong with them.

Must not know: a kind of definition. This module is imported when a broker starts.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import ValidationError, model_validator

from tidemill.connect.base.secrets import find_plain
from tidemill.errors import TidemillError, lower_first
from tidemill.settings.section import Section

S = TypeVar("S", bound=Section)


class StoredSection(Section):
    """A definition that a user writes, a topic stores, and workers read. It contains no secret.

    Attributes:
        docs: the page that explains the keys.
        invalid: the class of errors about it.
    """

    docs: ClassVar[str]
    invalid: ClassVar[type[TidemillError]]

    @model_validator(mode="before")
    @classmethod
    def _refuse_plain_secrets(cls, values: dict[str, Any]) -> dict[str, Any]:
        if plain := cls.plain_secrets(values):
            raise cls.invalid(
                f"{plain[0]} contains a secret as plain text, and definitions are stored and shown",
                hint='Refer to it: "${env:NAME}" or "${file:/path}".',
            )
        return values

    @classmethod
    def plain_secrets(cls, values: dict[str, Any]) -> list[str]:
        """Return the keys that contain a secret as plain text."""
        return find_plain(values)

    def encode(self) -> bytes:
        """Return the definition as a record's value."""
        return self.model_dump_json(exclude_defaults=True).encode()

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Return the definition in a record's value.

        Raises:
            TidemillError: of the class ``invalid``: it is not JSON, or invalid.
        """
        try:
            return cls.parse(json.loads(value))
        except (ValueError, RecursionError) as failure:
            raise cls.invalid(f"the stored definition is not JSON: {failure}") from failure

    @classmethod
    def parse(cls, values: Any) -> Self:
        """Check the values of a definition, a JSON or TOML table.

        Raises:
            TidemillError: of the class ``invalid``: a key or a value is invalid, or a secret is in
                it as plain text.
        """
        return parse(cls, values, cls.invalid, cls.docs)

    @classmethod
    def read_file(cls, path: Path) -> Self:
        """Read a definition from a TOML file. Its relative paths are relative to the file.

        Raises:
            TidemillError: of the class ``invalid``: the file can't be read, or is invalid.
        """
        try:
            values = tomllib.loads(path.read_text())
        except OSError as failure:
            raise cls.invalid(f"can't read {path}: {failure.strerror}") from failure
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as failure:
            raise cls.invalid(f"{path} is not valid TOML: {failure}") from failure
        try:
            return cls.parse(values).relative_to(path.parent)
        except cls.invalid as failure:
            raise cls.invalid(f"{path}: {failure}", hint=failure.hint) from failure


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
    return error(f"invalid {key}: {lower_first(said)}")
