"""The parts of which messages of Kafka's protocol consist. Knows no message, and no bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, TypeVar, cast

from tidemill.kafka_codec.primitives import FIXED_FORMATS

F = TypeVar("F", bound=Callable[..., Any])


def cached(function: F) -> F:
    """Decorate with ``functools.cache`` and keep the signature."""
    return cast(F, cache(function))


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a structure."""

    name: str
    kafka_type: str
    """kio's ``kafka_type``, or ``struct``. Of an array: the type of its elements."""
    structure: Structure | None
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any
    """The value on the wire where none is given: a number for times, None, "", b"", () or {}."""

    @property
    def is_number(self) -> bool:
        """Whether it is one value of a fixed format."""
        return self.kafka_type in FIXED_FORMATS and not self.is_array

    @property
    def size(self) -> int | None:
        """Bytes that one value always takes, or None."""
        if self.kafka_type == "uuid":
            return 16
        code = FIXED_FORMATS.get(self.kafka_type)
        return None if code is None else _SIZES[code]


_SIZES = {"b": 1, "B": 1, "?": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "Q": 8, "d": 8}


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """A message, or a structure inside of one."""

    name: str
    """kio's class name."""
    flexible: bool
    """Whether lengths are compact and tagged fields follow (KIP-482)."""
    fields: tuple[Field, ...]
    """In wire order; tagged fields may be anywhere among them."""

    @property
    def plain(self) -> list[Field]:
        """The fields that are always on the wire."""
        return [field for field in self.fields if field.tag is None]

    def runs(self) -> Iterator[tuple[bool, list[Field]]]:
        """Yield the plain fields in runs of numbers, and of others: (whether numbers, fields)."""
        for is_number, run in groupby(self.plain, key=lambda field: field.is_number):
            yield is_number, list(run)

    @property
    def tagged(self) -> list[tuple[int, Field]]:
        """(tag, field) of the optional fields, in ascending order."""
        found = [(field.tag, field) for field in self.fields if field.tag is not None]
        return sorted(found, key=lambda entry: entry[0])

    @property
    def least_size(self) -> int:
        """Bytes that the structure takes at least: one, so that it bounds an array's length."""
        return max(1, sum(map(_least_size, self.plain), start=int(self.flexible)))

    def field(self, name: str) -> Field | None:
        """Return the field of this name, or None."""
        return next((field for field in self.fields if field.name == name), None)


def _least_size(field: Field) -> int:
    if field.is_array:
        return 1
    if field.structure is not None:
        return 1 if field.nullable else field.structure.least_size
    return field.size or 1
