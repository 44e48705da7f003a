"""Declare configs with type, default, allowed values, synonyms and text, and parse their values.

Knows no config by name; ``topic`` declares them. The types and the notation of values are those of
Apache Kafka's ``ConfigDef``.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidemill.log.errors import InvalidConfigError

MAX_LONG = 2**63 - 1


class ConfigType(enum.Enum):
    """The type of a config's value, with Kafka's names."""

    BOOLEAN = enum.auto()
    STRING = enum.auto()
    INT = enum.auto()
    SHORT = enum.auto()
    LONG = enum.auto()
    DOUBLE = enum.auto()
    LIST = enum.auto()
    CLASS = enum.auto()
    PASSWORD = enum.auto()


class Synonym(NamedTuple):
    """A broker-level config that sets a topic config's default."""

    name: str
    factor: int = 1
    """The topic config's value is the synonym's value times this, as for hours and milliseconds."""


class Check(NamedTuple):
    """A rule for a parsed value, with its text in the documentation."""

    text: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class ConfigDef:
    """The declaration of one config: of a topic in ``LogConfig``, of a broker or of a group."""

    name: str
    type: ConfigType
    default: str | None
    """Kafka's default as a string."""
    default_value: Any
    """Kafka's default, parsed."""
    doc: str
    check: Check | None
    synonyms: tuple[Synonym, ...] = ()
    """Broker-level names, the one with the highest priority first."""
    fixed: bool = False
    """Whether only the default is accepted."""
    internal: bool = False
    """Whether clients do not see it in lists."""

    @property
    def field(self) -> str:
        """The attribute of ``LogConfig``."""
        return self.name.replace(".", "_")

    @property
    def valid(self) -> str:
        """The allowed values in Kafka's notation; empty if the type allows all."""
        return self.check.text if self.check else ""

    def parse(self, text: str) -> Any:
        """Return the value of ``text``.

        Raises:
            InvalidConfigError: the value has another type, or is not allowed.
        """
        value = _parse(self, text.strip())
        if self.check is not None and not self.check.holds(value):
            raise InvalidConfigError(
                f"invalid value {self.name}={text.strip()}: it must be {self.check.text}"
            )
        if self.fixed and value != self.default_value:
            raise InvalidConfigError(
                f"{self.name}={text.strip()} is not supported: one broker supports only "
                f"{self.default or 'none'!r}",
                hint=f"Leave {self.name} out. It has a meaning only in an Apache Kafka cluster.",
            )
        return value


_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_TRUTH = {"true": True, "false": False}
_INTEGER_BITS = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}


def _parse_integer(text: str, bits: int) -> int:
    if not _INTEGER.fullmatch(text):  # int() alone would take 1_000 and other scripts' digits
        raise ValueError(text)
    number = int(text)
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise ValueError(text)
    return number


def _parse(definition: ConfigDef, text: str) -> Any:
    kind = definition.type
    try:
        if kind is ConfigType.BOOLEAN:
            return _TRUTH[text.lower()]
        if kind in _INTEGER_BITS:
            return _parse_integer(text, _INTEGER_BITS[kind])
        if kind is ConfigType.DOUBLE:
            return float(text)
    except (KeyError, ValueError):
        raise InvalidConfigError(
            f"invalid value {definition.name}={text}: not of type {kind.name.lower()}"
        ) from None
    if kind is ConfigType.LIST:
        items = [item.strip() for item in text.split(",")] if text else []
        if len(set(items)) != len(items) or "" in items:
            raise InvalidConfigError(
                f"invalid value {definition.name}={text}: an item is empty or repeated"
            )
        return frozenset(items)
    return text


# --- rules ---------------------------------------------------------------------------------------


def at_least(low: int) -> Check:
    """Allow numbers from ``low`` on."""
    return Check(f"[{low},...]", lambda value: value >= low)


def between(low: float, high: float) -> Check:
    """Allow numbers from ``low`` to ``high``, both included."""
    return Check(f"[{low},...,{high}]", lambda value: low <= value <= high)


def one_of(*names: str) -> Check:
    """Allow one of these strings."""
    return Check(f"[{', '.join(names)}]", lambda value: value in names)


def some_of(*names: str) -> Check:
    """Allow a list of any of these strings."""
    return Check(f"[{', '.join(names)}]", lambda value: value <= set(names))


def config(
    kind: ConfigType,
    value: Any,
    doc: str,
    *,
    check: Check | None = None,
    synonyms: tuple[Synonym | str, ...] = (),
    fixed: bool = False,
    internal: bool = False,
) -> Any:
    """Declare one topic config as a dataclass field. ``value`` is Kafka's default."""
    metadata = {
        "type": kind,
        "default": text_of(value),
        "default_value": value,
        "doc": doc,
        "check": check,
        "synonyms": tuple(Synonym(s) if isinstance(s, str) else s for s in synonyms),
        "fixed": fixed,
        "internal": internal,
    }
    return dataclasses.field(default=value, metadata=metadata)


def text_of(value: Any) -> str | None:
    """Return a parsed value as a client writes it; None for None."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    return str(value)
