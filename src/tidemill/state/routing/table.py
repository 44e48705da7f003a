"""Hold what is declared now, and find the queues of a message.

``replay`` is the only way to change it. Knows no rule about what can be declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from tidemill.state.routing.format import (
    BINDING,
    EXCHANGE,
    decode_binding,
    decode_exchange,
    decode_key,
    decode_queue,
)
from tidemill.state.routing.matching import MATCHERS, HeaderSource, Matcher
from tidemill.state.routing.types import (
    DEFAULT_EXCHANGE,
    QUEUE,
    Binding,
    Destination,
    ExchangeSpec,
    QueueDefinition,
)

PREDECLARED = {
    DEFAULT_EXCHANGE: ExchangeSpec("direct"),
    "amq.direct": ExchangeSpec("direct"),
    "amq.fanout": ExchangeSpec("fanout"),
    "amq.topic": ExchangeSpec("topic"),
    "amq.headers": ExchangeSpec("headers"),
    "amq.match": ExchangeSpec("headers"),
}
"""The exchanges that always exist."""


class Route(NamedTuple):
    """The queues that a message goes to.

    Attributes:
        queues: their names, each once.
        is_fixed: whether the result depends on exchange and key only, so that it can be kept until
            the table changes.
    """

    queues: tuple[str, ...]
    is_fixed: bool


class RoutingTable:
    """Exchanges, queues and bindings.

    Attributes:
        exchanges, queues: by name.
        version: grows with each change.
    """

    def __init__(self) -> None:
        self.exchanges: dict[str, ExchangeSpec] = dict(PREDECLARED)
        self.queues: dict[str, QueueDefinition] = {}
        self.version = 0
        self._bindings: dict[str, Binding] = {}
        self._by_source: dict[str, dict[str, Binding]] = {}
        self._by_destination: dict[Destination, dict[str, Binding]] = {}
        self._matchers: dict[str, Matcher] = {
            name: MATCHERS[each.type]() for name, each in PREDECLARED.items()
        }

    # --- changes ---------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a record."""
        kind, name = decode_key(key)
        self.version += 1
        if kind == BINDING:
            self._remove_binding(name)
            if value is not None:
                self._add_binding(decode_binding(value))
        elif kind == EXCHANGE:
            if value is None:
                self.exchanges.pop(name, None)
                self._matchers.pop(name, None)
            else:
                exchange = self.exchanges[name] = decode_exchange(name, value)
                self._matchers.setdefault(name, MATCHERS[exchange.type]())
        elif value is None:
            self.queues.pop(name, None)
        else:
            self.queues[name] = decode_queue(name, value)

    def _add_binding(self, binding: Binding) -> None:
        identity = binding.identity
        matcher = self._matchers.get(binding.source)
        if matcher is None:
            return  # its exchange is gone: a crash between the records of one deletion
        matcher.add(binding)
        self._bindings[identity] = binding
        self._by_source.setdefault(binding.source, {})[identity] = binding
        self._by_destination.setdefault(binding.destination, {})[identity] = binding

    def _remove_binding(self, identity: str) -> None:
        binding = self._bindings.pop(identity, None)
        if binding is None:
            return
        _discard(self._by_source, binding.source, identity)
        _discard(self._by_destination, binding.destination, identity)
        matcher = self._matchers.get(binding.source)
        if matcher is not None:
            matcher.remove(binding)

    # --- look up ---------------------------------------------------------------------------------

    def has_binding(self, identity: str) -> bool:
        """Return whether a binding exists."""
        return identity in self._bindings

    def bindings(self) -> list[Binding]:
        """Return all bindings."""
        return list(self._bindings.values())

    def bindings_from(self, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange as the source."""
        return list(self._by_source.get(exchange, {}).values())

    def bindings_to(self, destination: Destination) -> list[Binding]:
        """Return the bindings to a queue or an exchange."""
        return list(self._by_destination.get(destination, {}).values())

    # --- routing ---------------------------------------------------------------------------------

    def route(self, exchange: str, keys: Sequence[str], headers: HeaderSource) -> Route:
        """Return the queues of a message that was published to an exchange that exists.

        Each exchange on the way compares all keys of the message with its bindings. The default
        exchange is not included: its queue is the one that the key names.
        """
        queues: dict[str, None] = {}
        is_fixed = True
        seen = {exchange}
        waiting = [exchange]
        while waiting:
            name = waiting.pop()
            definition = self.exchanges.get(name)
            if definition is None:
                continue
            if definition.type == "headers":
                is_fixed = False
            found = False
            for key in keys:
                for kind, destination in self._matches(name, key, headers):
                    found = True
                    if kind == QUEUE:
                        queues[destination] = None
                    elif destination not in seen:
                        seen.add(destination)
                        waiting.append(destination)
            alternate = definition.alternate
            if not found and alternate is not None and alternate not in seen:
                seen.add(alternate)
                waiting.append(alternate)
        return Route(tuple(queues), is_fixed)

    def _matches(
        self, exchange: str, routing_key: str, headers: HeaderSource
    ) -> Iterator[Destination]:
        if exchange == DEFAULT_EXCHANGE:
            if routing_key in self.queues:
                yield Destination(QUEUE, routing_key)
            return
        yield from self._matchers[exchange].match(routing_key, headers)


K = TypeVar("K")


def _discard(index: dict[K, dict[str, Binding]], key: K, identity: str) -> None:
    found = index[key]
    del found[identity]
    if not found:
        del index[key]
