"""Reads the settings: flags beat the environment, that beats the file, that beats the defaults.

Each value keeps its origin, so that ``config show`` can name it and an error can say where the
wrong value stands. Unknown keys are errors with a suggestion. Written by hand rather than with
pydantic-settings, which knows no origins, ignores unknown variables and takes 100 ms to import.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tidemill.errors import SettingsError
from tidemill.settings import ENV_PREFIX, SettingDef, Settings, definitions

CONFIG_VARIABLE = "TIDEMILL_CONFIG"
OTHER_VARIABLES = {
    CONFIG_VARIABLE: "The settings file, where --config names none.",
    "TIDEMILL_BOOTSTRAP_SERVERS": "The broker that client commands talk to, where -b names none.",
    "TIDEMILL_DEBUG": "Set: an error shows its stack trace, as with --debug.",
}
"""Variables with our prefix that are not settings of the broker."""
DEFAULT_FILE = Path("tidemill.toml")
"""Read from the working folder where no file is named and this one exists."""


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings with the origin of each value.

    Attributes:
        settings: the values in force.
        file: the settings file that was read, if any.
        origins: dotted key -> "default", a file's name, a variable's name or a flag.
    """

    settings: Settings
    file: Path | None
    origins: Mapping[str, str]

    def entries(self) -> Iterator[tuple[str, object, str]]:
        """(key, value, origin) of each setting; a table of free keys gives a line per key."""
        for definition in definitions():
            value: Any = self.settings
            for part in definition.key.split("."):
                value = getattr(value, part)
            if definition.is_map and value:
                for name, inner in sorted(value.items()):
                    key = f"{definition.key}.{name}"
                    yield key, inner, self.origins[key]
            else:
                yield definition.key, value, self.origins.get(definition.key, "default")


def load(
    file: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, tuple[str, object]] | None = None,
) -> LoadedSettings:
    """Read the settings.

    Args:
        file: a ``tidemill.toml``; None means the one that ``TIDEMILL_CONFIG`` names, or else the
            one in the working folder if there is one.
        environ: the environment; None means the process's own.
        flags: dotted key -> (flag's name, value); None values are flags that were not given.

    Raises:
        SettingsError: a file can't be read, a key is unknown, or a value is not possible.
    """
    environ = os.environ if environ is None else environ
    known = {definition.key: definition for definition in definitions()}
    if file is None and environ.get(CONFIG_VARIABLE):
        file = Path(environ[CONFIG_VARIABLE])
    if file is None and DEFAULT_FILE.is_file():
        file = DEFAULT_FILE
    layers = [_from_environ(environ, known), _from_flags(flags or {}, known)]
    if file is not None:
        layers.insert(0, _from_file(file, known))
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for key, (origin, value) in layer.items():
            values[key], origins[key] = value, origin
    return LoadedSettings(_validated(values, origins, known), file, origins)


Layer = dict[str, tuple[str, object]]
"""Dotted key -> (origin, value)."""


def _from_file(file: Path, known: Mapping[str, SettingDef]) -> Layer:
    try:
        with file.open("rb") as stream:
            document = tomllib.load(stream)
    except OSError as error:
        raise SettingsError(
            f"settings file {file}: {(error.strerror or str(error)).lower()}",
            hint="Name an existing file with --config, or leave the flag away for the defaults.",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings file {file} is not valid TOML: {error}") from error
    layer: Layer = {}
    for key, value in _flatten(document):
        definition = _definition_of(key, known)
        if definition is None:
            raise SettingsError(
                f"settings file {file}: unknown key {key}", hint=_suggestion(key, known)
            )
        if definition.is_path and isinstance(value, str):
            value = str(file.parent / Path(value).expanduser())
        layer[key] = (str(file), value)
    return layer


def _flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _definition_of(key: str, known: Mapping[str, SettingDef]) -> SettingDef | None:
    if key in known and not known[key].is_map:
        return known[key]
    return next((d for d in known.values() if d.is_map and key.startswith(d.key + ".")), None)


def _from_environ(environ: Mapping[str, str], known: Mapping[str, SettingDef]) -> Layer:
    by_variable = {definition.env: definition for definition in known.values()}
    layer: Layer = {}
    for name, text in sorted(environ.items()):
        if not name.startswith(ENV_PREFIX) or name in OTHER_VARIABLES or not text:
            continue
        definition = by_variable.get(name)
        if definition is None:
            close = _close(name, by_variable)
            hint = f"Did you mean {close[0]}?" if close else _SEE_ALL
            raise SettingsError(f"unknown environment variable {name}", hint=hint)
        if not definition.is_map:
            layer[definition.key] = (name, text)
            continue
        try:
            table = json.loads(text)
            layer.update({f"{definition.key}.{k}": (name, v) for k, v in table.items()})
        except (ValueError, AttributeError) as error:
            raise SettingsError(
                f"{name} is not a JSON object", hint=f"""For example {name}='{{"a.b": "1"}}'."""
            ) from error
    return layer


def _from_flags(flags: Mapping[str, tuple[str, object]], known: Mapping[str, SettingDef]) -> Layer:
    for key, (origin, _) in flags.items():
        if _definition_of(key, known) is None:
            raise SettingsError(f"{origin}: unknown key {key}", hint=_suggestion(key, known))
    return {key: flag for key, flag in flags.items() if flag[1] is not None}


_SEE_ALL = "See all settings with: tidemill config show"


def _close(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> list[str]:
    import difflib  # only where something is wrong: not on the way to a broker's start

    return difflib.get_close_matches(word, list(candidates), 1, cutoff)


def _suggestion(key: str, known: Mapping[str, SettingDef]) -> str:
    close = _close(key, known, 0.7)
    last = key.rsplit(".")[-1]
    close = close or [name for name in known if name.rsplit(".")[-1] == last]
    close = close or _close(key, known, 0.5)
    return f"Did you mean {close[0]}?" if close else _SEE_ALL


def _validated(
    values: Mapping[str, object], origins: Mapping[str, str], known: Mapping[str, SettingDef]
) -> Settings:
    document: dict[str, Any] = {}
    for key, value in values.items():
        definition = _definition_of(key, known)
        name = definition.key if definition and definition.is_map else key
        *path, leaf = name.split(".")
        table = document
        for part in path:
            table = table.setdefault(part, {})
        if name == key:
            table[leaf] = value
        else:
            table.setdefault(leaf, {})[key[len(name) + 1 :]] = _config_text(value)
    try:
        return Settings.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        origin = origins.get(key, "settings")
        raise SettingsError(
            f"{origin}: {key}: {_lower_first(first['msg'])}, got {first['input']!r}",
            hint=_type_hint(key, known),
        ) from error


def _config_text(value: object) -> object:
    """Topic configs are text to Kafka; a TOML file may well say 86400000 or true."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _type_hint(key: str, known: Mapping[str, SettingDef]) -> str:
    definition = _definition_of(key, known)
    return f"{definition.key} is: {definition.type}." if definition else _SEE_ALL
