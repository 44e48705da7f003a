"""Place airports on the demo's map, by Albers' conic projection of the United States.

The map has no borders. All airports of the data set are its dots, and they show the country. Must
not know: records, HTTP. Source of the projection: Snyder, Map Projections (USGS 1395), page 98.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.demo.flights import data_folder

WIDTH, HEIGHT = 1000, 600
"""The size of the map in its own units."""
_PARALLELS, _ORIGIN = (29.5, 45.5), (37.5, -96.0)
_SCALE, _CENTER = 1190.0, (487.0, 292.0)
_NEW_YORK = {"EWR": (-17.0, 2.0), "LGA": (0.0, -15.0), "JFK": (17.0, 8.0)}
"""New York's airports are 20 km apart: they are drawn further from each other."""
_AWAY = {"ANC": (70.0, 470.0), "HNL": (110.0, 545.0)}
"""Airports on another map, drawn at its edge."""
_CARIBBEAN = {
    "BQN": (18.49, -67.13),
    "PSE": (18.01, -66.56),
    "SJU": (18.44, -66.0),
    "STT": (18.34, -64.97),
}
"""Those that the data set's table lacks."""
_NEARER = (-165.0, -25.0)
"""The Caribbean is drawn nearer to the coast."""
_BEND = 0.16
"""How far a route bends from the straight line, as a share of its length."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A place on the map."""

    x: float
    y: float


def project(latitude: float, longitude: float) -> Spot:
    """Return the place of a point, given in degrees."""
    first, second = (math.radians(each) for each in _PARALLELS)
    n = (math.sin(first) + math.sin(second)) / 2
    c = math.cos(first) ** 2 + 2 * n * math.sin(first)
    theta = n * math.radians(longitude - _ORIGIN[1])
    rho, rho_0 = (
        math.sqrt(c - 2 * n * math.sin(math.radians(each))) / n for each in (latitude, _ORIGIN[0])
    )
    x, y = rho * math.sin(theta), rho_0 - rho * math.cos(theta)
    return Spot(round(_CENTER[0] + _SCALE * x, 1), round(_CENTER[1] - _SCALE * y, 1))


@functools.cache
def places() -> Mapping[str, Spot]:
    """Return the place of each airport that is on the map.

    Raises:
        DataSetMissingError: the data set is not installed.
    """
    found: dict[str, Spot] = {}
    with (data_folder() / "airports.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            latitude, longitude = float(row["lat"]), float(row["lon"])
            if 24 < latitude < 50 and -126 < longitude < -66:
                found[row["faa"]] = project(latitude, longitude)
    for name, place in _CARIBBEAN.items():
        spot = project(*place)
        found[name] = Spot(spot.x + _NEARER[0], spot.y + _NEARER[1])
    center = found["LGA"]
    found |= {name: Spot(center.x + x, center.y + y) for name, (x, y) in _NEW_YORK.items()}
    return found | {name: Spot(*place) for name, place in _AWAY.items()}


@functools.cache
def country() -> str:
    """Return all airports as one path of dots."""
    dots = (f"M{spot.x:g} {spot.y:g}h0" for name, spot in places().items() if name not in _NEW_YORK)
    return "".join(dots)


def bend(origin: Spot, destination: Spot) -> Spot:
    """Return the control point of a route, which is a quadratic curve."""
    x, y = (origin.x + destination.x) / 2, (origin.y + destination.y) / 2
    side = -1 if destination.x < origin.x else 1
    return Spot(
        round(x + side * _BEND * (destination.y - origin.y), 1),
        round(y - side * _BEND * (destination.x - origin.x), 1),
    )
