"""Match messages with the bindings of one exchange: by key, by pattern, or by headers.

Each matcher holds the bindings of one exchange. Knows no other exchanges.

Source: AMQP 0-9-1, section 3.1.3 "Exchange Types"; RabbitMQ's documentation of ``x-match``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from tidemill.state.routing.types import Binding, Destination

HeaderSource = Callable[[], Mapping[str, object]] | None
MAX_WORDS = 128
"""Words of a routing key that a topic exchange compares. Longer keys match ``#`` only."""


class Matcher(Protocol):
    """The bindings of one exchange."""

    def add(self, binding: Binding) -> None:
        """Add a binding."""

    def remove(self, binding: Binding) -> None:
        """Remove a binding that was added."""

    def match(self, routing_key: str, headers: HeaderSource) -> Iterator[Destination]:
        """Yield the destinations; the same can come several times."""


class DirectMatcher:
    """Bindings whose key equals the message's."""

    def __init__(self) -> None:
        self._by_key: dict[str, list[Destination]] = {}

    def add(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.routing_key, []).append(binding.destination)

    def remove(self, binding: Binding) -> None:
        found = self._by_key[binding.routing_key]
        found.remove(binding.destination)
        if not found:
            del self._by_key[binding.routing_key]

    def match(self, routing_key: str, headers: HeaderSource) -> Iterator[Destination]:
        yield from self._by_key.get(routing_key, ())


class FanoutMatcher:
    """Bindings that always match."""

    def __init__(self) -> None:
        self._all: list[Destination] = []

    def add(self, binding: Binding) -> None:
        self._all.append(binding.destination)

    def remove(self, binding: Binding) -> None:
        self._all.remove(binding.destination)

    def match(self, routing_key: str, headers: HeaderSource) -> Iterator[Destination]:
        yield from self._all


class _Node:
    """A word of the patterns. ``ends`` are the bindings whose pattern ends here."""

    __slots__ = ("children", "ends")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.ends: list[Destination] = []


class TopicMatcher:
    """Bindings whose pattern matches: ``*`` is one word, ``#`` any number of words.

    The patterns are in a trie. The positions that one message reaches are a set, so the work is at
    most (nodes) x (words), whatever the patterns are.
    """

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, binding: Binding) -> None:
        node = self._root
        for word in binding.routing_key.split("."):
            node = node.children.setdefault(word, _Node())
        node.ends.append(binding.destination)

    def remove(self, binding: Binding) -> None:
        path = [self._root]
        words = binding.routing_key.split(".")
        for word in words:
            path.append(path[-1].children[word])
        path[-1].ends.remove(binding.destination)
        for word, node, parent in zip(
            reversed(words), reversed(path[1:]), reversed(path[:-1]), strict=True
        ):
            if node.children or node.ends:
                return
            del parent.children[word]

    def match(self, routing_key: str, headers: HeaderSource) -> Iterator[Destination]:
        words = routing_key.split(".")
        if len(words) > MAX_WORDS:
            tail = self._root.children.get("#")
            yield from tail.ends if tail is not None else ()
            return
        nodes = _with_hashes({id(self._root): (self._root, False)})
        for word in words:
            reached: dict[int, tuple[_Node, bool]] = {}
            for node, is_hash in nodes.values():
                if is_hash:
                    reached[id(node)] = (node, True)
                for name in (word, "*"):
                    child = node.children.get(name)
                    # The words of a key are literal: '#' and '*' in it match only by pattern.
                    if child is not None and (name == "*" or word not in ("#", "*")):
                        reached.setdefault(id(child), (child, False))
            nodes = _with_hashes(reached)
            if not nodes:
                return
        for node, _ in nodes.values():
            yield from node.ends


def _with_hashes(nodes: dict[int, tuple[_Node, bool]]) -> dict[int, tuple[_Node, bool]]:
    """Add the nodes that are reached because ``#`` also matches no word."""
    waiting = [node for node, _ in nodes.values()]
    while waiting:
        child = waiting.pop().children.get("#")
        if child is not None and not nodes.get(id(child), (child, False))[1]:
            nodes[id(child)] = (child, True)
            waiting.append(child)
    return nodes


class HeadersMatcher:
    """Bindings whose arguments match the message's headers."""

    def __init__(self) -> None:
        self._bindings: list[Binding] = []

    def add(self, binding: Binding) -> None:
        self._bindings.append(binding)

    def remove(self, binding: Binding) -> None:
        self._bindings.remove(binding)

    def match(self, routing_key: str, headers: HeaderSource) -> Iterator[Destination]:
        if not self._bindings:
            return
        found = {} if headers is None else headers()
        for binding in self._bindings:
            if _headers_match(binding.arguments, found):
                yield binding.destination


def _headers_match(wanted: Mapping[str, object], found: Mapping[str, object]) -> bool:
    how = wanted.get("x-match", "all")
    with_x = how in ("all-with-x", "any-with-x")
    results = (
        name in found and (value is None or _equal(value, found[name]))
        for name, value in wanted.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    )
    return any(results) if how in ("any", "any-with-x") else all(results)


def _equal(wanted: object, found: object) -> bool:
    if isinstance(wanted, bool) is not isinstance(found, bool):
        return False
    return wanted == found


MATCHERS: Mapping[str, Callable[[], Matcher]] = {
    "direct": DirectMatcher,
    "fanout": FanoutMatcher,
    "topic": TopicMatcher,
    "headers": HeadersMatcher,
}
