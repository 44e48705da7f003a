"""Find the class of a bridge by its kind: built in, or an entry point of another package.

Must not know: how a bridge works.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.definitions import parse
from tidemill.connect.base.secrets import resolve
from tidemill.connect.direct.contract import Place
from tidemill.connect.direct.errors import DefinitionError
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.connect.direct.contract import Bridge
    from tidemill.connect.direct.definition import Definition

GROUP = "tidemill.bridges"
"""The group of entry points. Each is a subclass of ``Bridge``."""

BUILT_IN = {
    "statsd": ("tidemill.connect.direct.statsd", "StatsdBridge", ""),
    "multicast": ("tidemill.connect.direct.multicast", "MulticastBridge", ""),
    "zeromq": ("tidemill.connect.direct.zeromq", "ZeroMqBridge", "zeromq,arrow"),
    "zeromq-in": ("tidemill.connect.direct.zeromq_in", "ZeroMqInBridge", "zeromq"),
}
"""For each kind its module, its class and the extras that it needs."""


def kinds() -> list[str]:
    """Return the kinds of bridges that are installed."""
    return sorted({*BUILT_IN, *(each.name for each in entry_points(group=GROUP))})


def bridge_class(kind: str) -> type[Bridge]:
    """Return the class of a kind.

    Raises:
        DefinitionError: there is no such kind, or its package is not installed.
    """
    for entry in entry_points(group=GROUP):
        if entry.name == kind:
            return _loaded(entry)
    if kind not in BUILT_IN:
        raise DefinitionError(
            f"unknown kind of bridge {kind!r}", hint=f"Installed kinds: {', '.join(kinds())}."
        )
    module, name, extra = BUILT_IN[kind]
    try:
        found: type[Bridge] = getattr(import_module(module), name)
    except ImportError as error:
        raise DefinitionError(
            f"bridges of kind {kind} can't be used here: {error}",
            hint=f"Install what they need: pip install 'tidemill[{extra}]'",
        ) from error
    return found


def _loaded(entry: EntryPoint) -> type[Bridge]:
    try:
        found: type[Bridge] = entry.load()
    except Exception as error:  # what a module of another package raises
        raise DefinitionError(
            f"bridges of kind {entry.name} can't be loaded: {type(error).__name__}: {error}",
            hint=f"The entry point is {entry.value}.",
        ) from error
    return found


def check_options(definition: Definition) -> None:
    """Check the options of a definition, as far as that is possible without the secrets in them.

    Raises:
        DefinitionError: the kind or an option is invalid.
    """
    kind = bridge_class(definition.kind)
    options = _options(kind, definition.options)
    if "${" not in definition.encode().decode():
        _make(kind, Place(definition.name, definition.topic, 1, Kafka("")), options)


def make_bridge(definition: Definition, place: Place) -> Bridge:
    """Return the bridge of a definition.

    Raises:
        DefinitionError: the kind or an option is invalid.
        SettingsError: a reference to a secret can't be resolved.
    """
    kind = bridge_class(definition.kind)
    return _make(kind, place, _options(kind, resolve(definition.options)))


def _make(kind: type[Bridge], place: Place, options: Any) -> Bridge:
    try:
        return kind(place, options)
    except TidemillError as error:
        raise DefinitionError(str(error), hint=error.hint) from error


def _options(kind: type[Bridge], options: dict[str, Any]) -> Any:
    return parse(kind.options_type, options, DefinitionError, "docs/guide-direct.md")
