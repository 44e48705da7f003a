"""The settings as a list: for the reference, ``config show`` and the reader of settings."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic.fields import FieldInfo

from tidemill.settings.section import Section

ENV_PREFIX = "TIDEMILL_"
"""An environment variable is this prefix and the key, with '_' for '.': TIDEMILL_KAFKA_PORT."""


@dataclass(frozen=True, slots=True)
class SettingDef:
    """A setting, as the reference and ``config show`` present it.

    Attributes:
        key: the dotted name, as in ``tidemill.toml``.
        env: its environment variable.
        type: the type and limits, for people.
        default: the default value.
        description: what it does.
        is_map: whether it is a table of free keys (topic configs).
        is_path: whether it is a path. A relative path in a file is relative to that file.
    """

    key: str
    env: str
    type: str
    default: object
    description: str
    is_map: bool = False
    is_path: bool = False


def keys_of(model: type[Section], prefix: str = "") -> Iterator[SettingDef]:
    """Yield the settings that a section has itself, in the order of their declaration."""
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if annotation == tuple[Section, ...] or (
            isinstance(annotation, type) and issubclass(annotation, Section)
        ):
            continue
        key = prefix + name
        yield SettingDef(
            key=key,
            env=ENV_PREFIX + key.replace(".", "_").upper(),
            type=_type_text(field),
            default=field.get_default(call_default_factory=True),
            description=field.description or "",
            is_map=typing.get_origin(annotation) is dict,
            is_path=Path in (annotation, *typing.get_args(annotation)),
        )


def _type_text(field: FieldInfo) -> str:
    annotation = field.annotation
    options = typing.get_args(annotation)
    if typing.get_origin(annotation) is Literal:
        return ", ".join(str(option) for option in options)
    if typing.get_origin(annotation) is dict:
        return "table of text"
    if isinstance(annotation, types.UnionType):
        annotation = next(option for option in options if option is not type(None))
    names = {int: "integer", bool: "true or false", str: "text", Path: "path"}
    text = names[typing.cast(type, annotation)]
    low = next((m.ge for m in field.metadata if hasattr(m, "ge")), None)
    high = next((m.le for m in field.metadata if hasattr(m, "le")), None)
    if low is not None and high is not None:
        return f"{text}, {low} to {high}"
    return f"{text}, at least {low}" if low is not None else text
