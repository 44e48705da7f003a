"""Lay out the graph of a pipeline: topics to the left, queries, and what they write to the right.

Sizes are in the units of the picture. Must not know: HTML, Kafka.
Source: Sugiyama's method, with longest paths as layers and one order by barycenters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 228, 66
"""The size of a node."""
_GAP_X, _GAP_Y = 84, 14
MOST_NODES = 400
"""Nodes of a picture. A pipeline that has more is shown as a table only."""


@dataclass(frozen=True)
class Node:
    """A box of the graph.

    Attributes:
        id: unique among the nodes.
        kind: ``stream``, ``table``, ``topic``, ``query`` or ``sink``.
        title: the name, in the first line.
        lines: further lines.
        state: of a query, or empty.
        url: the page about it, or empty.
    """

    id: str
    kind: str
    title: str
    lines: tuple[str, ...] = ()
    state: str = ""
    url: str = ""


@dataclass(frozen=True)
class Placed:
    """A node with its upper left corner."""

    node: Node
    x: float
    y: float


@dataclass(frozen=True)
class Picture:
    """The graph with its size: nodes, and edges as paths from a right side to a left side."""

    width: float
    height: float
    nodes: tuple[Placed, ...]
    edges: tuple[str, ...]


def picture(nodes: Sequence[Node], edges: Iterable[tuple[str, str]]) -> Picture | None:
    """Return the picture of a graph, or None if there are too many nodes.

    Args:
        edges: pairs of ids: from, to. Edges of a circle are drawn, and don't move anything.
    """
    if len(nodes) > MOST_NODES:
        return None
    known = {each.id for each in nodes}
    pairs = sorted({(a, b) for a, b in edges if a in known and b in known and a != b})
    layers = _layers([each.id for each in nodes], pairs)
    by_id = {each.id: each for each in nodes}
    height = max((len(layer) for layer in layers), default=1)
    placed: dict[str, Placed] = {}
    for number, layer in enumerate(layers):
        above = (height - len(layer)) * (HEIGHT + _GAP_Y) / 2
        for row, name in enumerate(layer):
            x, y = number * (WIDTH + _GAP_X), above + row * (HEIGHT + _GAP_Y)
            placed[name] = Placed(by_id[name], x, y)
    return Picture(
        max(1, len(layers)) * (WIDTH + _GAP_X) - _GAP_X,
        height * (HEIGHT + _GAP_Y) - _GAP_Y,
        tuple(placed[each.id] for each in nodes),
        tuple(_path(placed[a], placed[b]) for a, b in pairs),
    )


def _layers(names: Sequence[str], pairs: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Return the names by layer, each layer in an order in which few edges cross."""
    before: dict[str, list[str]] = {name: [] for name in names}
    for a, b in pairs:
        before[b].append(a)
    depth = dict.fromkeys(names, 0)
    for _ in names:  # longest paths; a circle ends here, too
        deeper = {
            b: depth[a] + 1 for a, b in pairs if depth[a] >= depth[b] and depth[a] < len(names) - 1
        }
        if not deeper or max(deeper.values()) > 12:
            break
        depth |= deeper
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for name in names:
        layers[depth[name]].append(name)
    layers = [layer for layer in layers if layer]
    row = {name: place for layer in layers for place, name in enumerate(layer)}
    for layer in layers[1:]:
        layer.sort(key=lambda name: _mean([row[each] for each in before[name]], row[name]))
        row |= {name: place for place, name in enumerate(layer)}
    return layers


def _mean(rows: Sequence[int], other: float) -> float:
    return sum(rows) / len(rows) if rows else other


def _path(a: Placed, b: Placed) -> str:
    x1, y1, x2, y2 = a.x + WIDTH, a.y + HEIGHT / 2, b.x, b.y + HEIGHT / 2
    bend = max(30.0, abs(x2 - x1) / 2)
    return f"M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
