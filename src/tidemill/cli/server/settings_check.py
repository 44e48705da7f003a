"""Checks the settings that were read, and says for each error where the value is and what is valid.

The defaults of topic configs are checked here too, so that ``config show`` and ``serve`` refuse the
same. This module must not read a file or the environment.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from tidemill.errors import SettingsError, TidemillError, lower_first
from tidemill.settings import Section, SettingDef, Settings

S = TypeVar("S", bound=Section)
SEE_ALL = "See all settings with: tidemill config show"
_SHOWN_CHARACTERS = 80
_SEARCHED_LINES = 2000


@dataclass(frozen=True, slots=True)
class PlaceInFile:
    """The place of a key in a settings file. Its line is only looked for when it is printed."""

    file: str
    text: str
    key: str

    def __str__(self) -> str:
        line = _line_of(self.key, self.text)
        return f"{self.file}, line {line}" if line else self.file


@dataclass(frozen=True, slots=True)
class Given:
    """A value that was given for a setting.

    Attributes:
        origin: its source, as ``config show`` lists it: a file, a variable or a flag.
        place: its source for an error, possibly with a line.
        value: text, or any type that TOML has.
    """

    origin: str
    place: str | PlaceInFile
    value: object


def _line_of(key: str, text: str) -> int | None:
    """Return the line on which a key's value ends, or None if it can't be found.

    TOML has many ways to write a key, and tomllib reports no lines. So this parses longer and
    longer beginnings of the file, until one contains the key.
    """
    lines = text.splitlines()
    for number in range(1, min(len(lines), _SEARCHED_LINES) + 1):
        try:
            table: Any = tomllib.loads("\n".join(lines[:number]))
        except tomllib.TOMLDecodeError:
            continue  # it ends inside of a value
        if _contains(table, key):
            return number
    return None


def _contains(table: Any, key: str) -> bool:
    """Return whether a TOML document has a dotted key. A part of it can itself have dots."""
    if not isinstance(table, dict):
        return False
    return any(
        name == key or (key.startswith(f"{name}.") and _contains(inner, key[len(name) + 1 :]))
        for name, inner in table.items()
    )


def definition_of(key: str, known: Mapping[str, SettingDef]) -> SettingDef | None:
    """Return the setting that a key belongs to. A table of free keys is not a key itself."""
    if key in known and not known[key].is_map:
        return known[key]
    return next((d for d in known.values() if d.is_map and key.startswith(d.key + ".")), None)


def shown(value: object) -> str:
    """Return a value for an error message, cut if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


# --- unknown keys --------------------------------------------------------------------------------


def unknown_key(
    key: str,
    place: str | PlaceInFile,
    known: Mapping[str, SettingDef],
    lists: Iterable[str] = (),
) -> SettingsError:
    """Return the error for a key that is not a setting. ``lists`` are keys of lists of tables."""
    if key in known or any(name.startswith(key + ".") for name in known):
        example = key if key in known else next(n for n in known if n.startswith(key + "."))
        return SettingsError(
            f"{place}: {key} is a table and not a value",
            hint=f"Write its keys below [{key}], or use one with a dot: {example}."
            if key not in known
            else f"Write its keys below [{key}].",
        )
    parent = next((name for name in known if key.startswith(name + ".")), None)
    if parent is not None:
        return SettingsError(
            f"{place}: {parent} is a value and not a table",
            hint=f"{parent} is: {known[parent].type}.",
        )
    return SettingsError(f"{place}: unknown key {key}", hint=_suggestion(key, [*known, *lists]))


def similar(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return the most similar candidate in a list, or an empty list."""
    import difflib  # only needed for an error, so it does not slow down the start of a broker

    return difflib.get_close_matches(word, list(candidates), 1, cutoff)


def _suggestion(key: str, known: Sequence[str]) -> str:
    close = similar(key, known, 0.7)
    last = key.rsplit(".")[-1]
    close = close or [name for name in known if name.rsplit(".")[-1] == last]
    close = close or similar(key, known, 0.5)
    return f"Did you mean {close[0]}?" if close else SEE_ALL


# --- values --------------------------------------------------------------------------------------


def validated(
    given: Mapping[str, Given],
    known: Mapping[str, SettingDef],
    declared: Iterable[type[Section]],
    entries: Iterable[Section] = (),
) -> Settings:
    """Return the settings. Each key of ``given`` is known, and ``entries`` are checked already."""
    document: dict[str, Any] = {}
    configs: dict[str, str] = {}
    for key, each in given.items():
        definition = definition_of(key, known)
        assert definition is not None, key
        *path, leaf = definition.key.split(".")
        table = document
        for part in path:
            table = table.setdefault(part, {})
        if definition.is_map:
            name = key[len(definition.key) + 1 :]
            configs[name] = _checked_config(key, name, each)
            table.setdefault(leaf, {})[name] = configs[name]
        else:
            _refuse_wrong_kind(definition, each)
            table[leaf] = each.value
    prefix = ""
    try:
        sections = list(entries)
        for kind in declared:
            if kind.is_repeated:
                continue
            prefix = f"{kind.key}."
            sections.append(kind.model_validate(document.pop(kind.key, {})))
        prefix = ""
        settings = Settings.model_validate({**document, "sections": sections})
    except ValidationError as error:
        raise _invalid(error, prefix, given, known) from error
    _check_together(settings, configs, given)
    _check_references(sections)
    return settings


def checked_entries(kind: type[S], tables: object, file: Path) -> list[S]:
    """Return the entries of a list of tables, ``[[key]]``, or of named ones, ``[key.NAME]``.

    Paths are relative to the file.
    """
    if kind.is_named:
        tables = _with_names(kind, tables, file)
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        place = PlaceInFile(str(file), file.read_text("utf-8"), kind.key)
        raise SettingsError(
            f"{place}: {kind.key} is not a list of tables",
            hint=f"Begin each entry with [[{kind.key}]].",
        )
    entries: dict[str, S] = {}
    for number, table in enumerate(tables, 1):
        where = f"{file}, [[{kind.key}]] {number}"
        if kind.is_named:
            where = f"{file}, [{kind.key}.{table['name']}]"
        try:
            entry = kind.model_validate(table)
        except ValidationError as error:
            raise _invalid_entry(kind, where, error) from error
        except TidemillError as error:
            raise SettingsError(f"{where}: {error}", hint=error.hint) from error
        name = entry.entry_name or str(number)
        if name in entries:
            raise SettingsError(
                f"{where}: another entry has the name {name}",
                hint="Give each entry a name of its own.",
            )
        entries[name] = entry.relative_to(file.parent)
    return list(entries.values())


def _with_names(kind: type[Section], tables: object, file: Path) -> list[dict[str, object]]:
    """Return tables with their names as keys of each."""
    if isinstance(tables, dict) and all(isinstance(each, dict) for each in tables.values()):
        return [{**table, "name": name} for name, table in tables.items()]
    place = PlaceInFile(str(file), file.read_text("utf-8"), kind.key)
    raise SettingsError(
        f"{place}: {kind.key} is not a table of tables", hint=f"Begin each with [{kind.key}.NAME]."
    )


def _invalid_entry(kind: type[Section], place: str, error: ValidationError) -> SettingsError:
    errors = error.errors(include_url=False)
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    key = ".".join(str(part) for part in first["loc"])
    fields = {field.alias or name: field for name, field in kind.model_fields.items()}
    if first["type"] == "extra_forbidden":
        close = similar(key, fields)
        hint = f"Did you mean {close[0]}?" if close else f"Valid: {', '.join(fields)}."
        return SettingsError(f"{place}: unknown key {key}", hint=hint)
    name = str(first["loc"][0]) if first["loc"] else ""
    about = (name in fields and fields[name].description) or ""
    hint = f"{name} is: {about}" if about else ""
    if first["type"] == "missing":
        return SettingsError(f"{place}: {key} is missing", hint=hint)
    reason = lower_first(first["msg"].removeprefix("Value error, "))
    if not key:
        return SettingsError(f"{place}: {reason}")
    return SettingsError(
        f"{place}: invalid value {key} = {_value(first['input'])}: {reason}", hint=hint
    )


def _refuse_wrong_kind(definition: SettingDef, given: Given) -> None:
    """Refuse what pydantic accepts and is a mistake: true for a number, and an empty text."""
    wrong = ""
    if isinstance(given.value, bool) and definition.type.startswith("integer"):
        wrong = "expected a number"
    elif given.value == "":
        wrong = "it is empty"
    if wrong:
        raise SettingsError(
            f"{given.place}: invalid value {definition.key} = {_value(given.value)}: {wrong}",
            hint=_allowed(definition),
        )


def _invalid(
    error: ValidationError,
    prefix: str,
    given: Mapping[str, Given],
    known: Mapping[str, SettingDef],
) -> SettingsError:
    first = error.errors(include_url=False)[0]
    key = prefix + ".".join(str(part) for part in first["loc"])
    place = given[key].place if key in given else "settings"
    reason = first["msg"].removeprefix("Value error, ")
    definition = definition_of(key, known)
    return SettingsError(
        f"{place}: invalid value {key} = {_value(first['input'])}: {lower_first(reason)}",
        hint=_allowed(definition) if definition else SEE_ALL,
    )


def _allowed(definition: SettingDef) -> str:
    return f"{definition.key} is: {definition.type}. {definition.description}"


def _value(value: object) -> str:
    return shown(str(value) if not isinstance(value, bool | int | float) else value)


def _checked_config(key: str, name: str, given: Given) -> str:
    """Return a default of a topic config as text, as Kafka has it.

    A TOML file may have 86400000, true or a list.
    """
    # Imported here: a command that only shows settings has none of these in general.
    from tidemill.log.config.parse import DEFINITIONS, parse_config
    from tidemill.log.errors import InvalidConfigError

    value = given.value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = ",".join(value)
    elif isinstance(value, bool):
        value = "true" if value else "false"
    elif isinstance(value, int | float):
        value = str(value)
    if not isinstance(value, str):
        raise SettingsError(
            f"{given.place}: invalid value {key} = {shown(value)}: it must be text or a number",
            hint=f'For example {key.removesuffix(name)}"retention.ms" = 86400000.',
        )
    try:
        parse_config({}, {name: value})
    except InvalidConfigError as error:
        definition = DEFINITIONS.get(name)
        hint = error.hint
        if not hint and definition is not None:
            valid = f", {definition.valid}" if definition.valid else ""
            hint = f"{name} is: {definition.type.name.lower()}{valid}. {definition.doc}"
        raise SettingsError(f"{given.place}: {key}: {error}", hint=hint) from error
    return value


def _check_together(
    settings: Settings, configs: Mapping[str, str], given: Mapping[str, Given]
) -> None:
    """Check values that are valid alone and not together."""
    low, high = "groups.min_session_timeout_ms", "groups.max_session_timeout_ms"
    groups = settings.groups
    if groups.min_session_timeout_ms > groups.max_session_timeout_ms:
        raise SettingsError(
            f"{_places(given, low, high)}: {low} = {groups.min_session_timeout_ms} is above "
            f"{high} = {groups.max_session_timeout_ms}",
            hint=f"Decrease {low}, or increase {high}.",
        )
    if configs:
        from tidemill.log.config.parse import parse_config
        from tidemill.log.errors import InvalidConfigError

        try:
            parse_config({}, configs)
        except InvalidConfigError as error:
            prefix = "log.topic_defaults."
            named = [prefix + name for name in configs if name in str(error)]
            raise SettingsError(
                f"{_places(given, *named)}: log.topic_defaults: {error}", hint=error.hint
            ) from error


def _check_references(sections: Sequence[Section]) -> None:
    """Check that entries exist which others name."""
    for each in sections:
        for field, key in each.refers_to.items():
            names = [other.entry_name for other in sections if other.key == key]
            unknown = next((name for name in getattr(each, field) if name not in names), None)
            if unknown is not None:
                raise SettingsError(
                    f"[[{each.key}]] {each.entry_name}: {field}: there is no [[{key}]] {unknown}",
                    hint=f"There are: {', '.join(sorted(names)) or 'none'}.",
                )


def _places(given: Mapping[str, Given], *keys: str) -> str:
    """Return the places of the keys that were given; the others have their defaults."""
    return " and ".join(dict.fromkeys(str(given[key].place) for key in keys if key in given))
