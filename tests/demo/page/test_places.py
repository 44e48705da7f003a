"""Where airports are on the map."""

from __future__ import annotations

from datetime import date

import pytest

from tests.demo.support import skip_without_data_set
from tidemill.demo.flights import Stretch, flights
from tidemill.demo.page.places import HEIGHT, WIDTH, Spot, bend, country, places, project


@pytest.fixture(autouse=True)
def data_set() -> None:
    skip_without_data_set()


def test_the_projection_has_equal_areas_and_north_is_up() -> None:
    west, east = project(40, -120), project(40, -75)
    assert west.x < east.x
    assert abs(west.y - project(40, -72).y) < 0.2  # as far from the middle: as high
    assert project(48, -96).y < project(30, -96).y
    # A degree of latitude is equally long along the meridian in the middle, between the parallels.
    south = project(30, -96).y - project(31, -96).y
    north = project(44, -96).y - project(45, -96).y
    assert north == pytest.approx(south, rel=0.03)


def test_every_destination_is_on_the_map() -> None:
    near = flights(Stretch(date(2013, 3, 6), 5))
    destinations = {each.destination for each in near}
    assert len(destinations) > 80
    known = places()
    assert destinations <= known.keys()
    for name in {*destinations, "EWR", "JFK", "LGA"}:
        assert 0 < known[name].x < WIDTH, name
        assert 0 < known[name].y < HEIGHT, name


def test_new_york_s_airports_can_be_told_apart() -> None:
    known = places()
    spots = [known[each] for each in ("EWR", "JFK", "LGA")]
    for a, b in zip(spots, [*spots[1:], spots[0]], strict=True):
        assert abs(a.x - b.x) + abs(a.y - b.y) > 20


def test_the_country_is_made_of_dots() -> None:
    assert country().count("M") > 1000
    assert len(country()) < 30_000


def test_routes_bend_upwards_in_both_directions() -> None:
    new_york, west, south = Spot(800, 200), Spot(100, 200), Spot(800, 500)
    assert bend(new_york, west).y < 200
    assert bend(west, new_york).y < 200
    assert bend(new_york, south).x != 800
