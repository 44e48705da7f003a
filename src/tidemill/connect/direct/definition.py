"""The definition of a bridge: what a user writes, and what workers read.

It contains no secret: ``${env:NAME}`` and ``${file:PATH}`` refer to them. This module is imported
when a broker starts. Must not know: Kafka, or a kind of bridge.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tidemill.connect.base.definitions import StoredSection
from tidemill.connect.direct.errors import DefinitionError


class Definition(StoredSection):
    """A bridge between [direct messaging](guide-direct.md) and a topic.

    One worker, `bridges`, runs all of them.
    """

    key = "bridge"
    docs = "docs/guide-direct.md"
    invalid = DefinitionError
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


read_file = Definition.read_file
