"""The definition of a bridge: what a user writes, and what workers read.

It contains no secret: ``${env:NAME}`` and ``${file:PATH}`` refer to them. This module is imported
when a broker starts. Must not know: Kafka, or a kind of bridge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from tidemill.connect.base import definitions
from tidemill.connect.base.secrets import find_plain
from tidemill.connect.direct.errors import DefinitionError
from tidemill.settings.section import Section

_DOCS = "docs/guide-direct.md"


class Definition(Section):
    """A bridge between [direct messaging](guide-direct.md) and a topic.

    One worker, `bridges`, runs all of them.
    """

    key = "bridge"
    is_repeated = True

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="Identifies the bridge."
    )
    kind: str = Field(
        min_length=1,
        description="statsd, multicast, zeromq, zeromq-in, or the name of an entry point in the "
        "group tidemill.bridges.",
    )
    topic: str = Field(
        pattern=r"^[A-Za-z0-9._-]{1,249}$",
        description="The topic that the bridge writes or reads. One that is written is created.",
    )
    partitions: int = Field(1, ge=1, le=10_000, description="Partitions of a topic it creates.")
    managed: bool = Field(
        True, description="Whether the worker of tidemill dev and tidemill serve runs it."
    )
    options: dict[str, Any] = Field({}, description="Options of the kind; see the guide.")

    @model_validator(mode="before")
    @classmethod
    def _refuse_plain_secrets(cls, values: dict[str, Any]) -> dict[str, Any]:
        if plain := find_plain(values):
            raise DefinitionError(
                f"{plain[0]} contains a secret as plain text, and definitions are stored and shown",
                hint='Refer to it: "${env:NAME}" or "${file:/path}".',
            )
        return values

    def encode(self) -> bytes:
        """Return the definition as a record's value."""
        return self.model_dump_json(exclude_defaults=True).encode()

    @classmethod
    def decode(cls, value: bytes) -> Definition:
        """Return the definition of a record.

        Raises:
            DefinitionError: it is invalid.
        """
        return definitions.decode(cls, value, DefinitionError, _DOCS)


def read_file(path: Path) -> Definition:
    """Read a definition from a TOML file.

    Raises:
        DefinitionError: the file can't be read, or is invalid.
    """
    return definitions.read_file(Definition, path, DefinitionError, _DOCS)
