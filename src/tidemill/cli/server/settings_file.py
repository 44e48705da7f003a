"""Reads the settings. Flags override the environment, which overrides the file, then defaults.

Each value keeps its origin, so that ``config show`` and error messages can name it. Unknown keys
are errors with a suggestion. ``settings_check`` checks the values. This is written by hand because
pydantic-settings has no origins, ignores unknown variables and takes 100 ms to import. This module
must not know a command.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tidemill.cli.server.service_variables import service_variables
from tidemill.cli.server.settings_check import (
    SEE_ALL,
    Given,
    PlaceInFile,
    checked_entries,
    definition_of,
    shown,
    similar,
    unknown_key,
    validated,
)
from tidemill.cli.server.worker_kinds import KINDS
from tidemill.cli.server.worker_logins import WorkerLogin
from tidemill.errors import SettingsError
from tidemill.protocols.table import SECTIONS, protocols
from tidemill.settings import ENV_PREFIX, Section, SettingDef, Settings, definitions

CONFIG_VARIABLE = "TIDEMILL_CONFIG"
OTHER_VARIABLES = {
    CONFIG_VARIABLE: "The settings file, if there is no --config.",
    "TIDEMILL_BOOTSTRAP_SERVERS": "The broker that client commands connect to, if there is no -b.",
    "TIDEMILL_CLIENT_CONFIG": "A file with librdkafka's properties, KEY=VALUE in each line, for "
    "client commands: a password there is not visible in the list of processes, as with -X.",
    "TIDEMILL_AMQP_URL": "The broker that commands about queues connect to, if there is no -a.",
    "TIDEMILL_ADMIN": "A super user whom the broker creates when it starts, as name:password.",
    "TIDEMILL_DEBUG": "If set, errors show their stack trace, as with --debug.",
    "TIDEMILL_SINK_CLIENT": "With librdkafka, pipelines write topics with librdkafka and not with "
    "tidemill's own client, which is faster.",
    "TIDEMILL_SOURCE_CLIENT": "With librdkafka, pipelines read topics with librdkafka and not with "
    "tidemill's own client, which is faster.",
    "TIDEMILL_WORKER": "The name of a worker, which the broker sets when it starts the worker. In "
    "pages and metrics, a newer process of the same name and host replaces an older one.",
    "TIDEMILL_SPARK_ARCHIVE": "The folder of the archives of Spark's classes; 0 for no archives.",
    "TIDEMILL_SPARK_FORK_SERVER": "If 0, each Python process of Spark imports for itself.",
}
"""Variables with tidemill's prefix that are not settings of the broker."""
DEFAULT_FILE = Path("tidemill.toml")
"""The settings file in the working folder, if no other file is named."""


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings with the origin of each value.

    Attributes:
        settings: the values that are in force.
        file: the settings file that was read, if any.
        origins: dotted key -> "default", the name of a file or variable, or a flag.
        ignored: variables with tidemill's prefix that describe a service (Kubernetes, Docker).
    """

    settings: Settings
    file: Path | None
    origins: Mapping[str, str]
    ignored: Sequence[str] = ()

    def entries(self) -> Iterator[tuple[str, object, str]]:
        """Yield (key, value, origin) of each setting, and of each key in a table of free keys.

        After them come the keys of each entry for a worker, like ``source[shop].kind``.
        """
        for definition in known_settings().values():
            value = self.settings.value(definition.key)
            if definition.is_map and value:
                for name, inner in sorted(value.items()):
                    key = f"{definition.key}.{name}"
                    yield key, inner, self.origins[key]
            else:
                yield definition.key, value, self.origins.get(definition.key, "default")
        for section in self.settings.sections:
            if section.is_repeated:
                given = section.model_dump(mode="json", exclude_unset=True, by_alias=True)
                prefix = f"{section.key}[{section.entry_name}]."
                if section.is_named:
                    prefix = f"{section.key}.{given.pop('name')}."
                for key, value in _flatten(given, prefix):
                    yield key, value, str(self.file)


def known_settings() -> dict[str, SettingDef]:
    """Return all settings by key, also of protocols and workers. Lists of tables have none."""
    single = [kind for kind in declared_sections() if not kind.is_repeated]
    return {each.key: each for each in definitions(single)}


def declared_sections() -> list[type[Section]]:
    """Return the sections of protocols and kinds of worker, in the order of ``config show``."""
    own = (protocol.section for protocol in protocols())
    return [*own, *SECTIONS, *(kind.section for kind in KINDS), WorkerLogin]


def load(
    file: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, tuple[str, object]] | None = None,
) -> LoadedSettings:
    """Read the settings.

    Args:
        file: the settings file; None: the file that ``TIDEMILL_CONFIG`` names, or else
            ``tidemill.toml`` in the working folder if it exists.
        environ: the environment; None: that of this process.
        flags: dotted key -> (name of the flag, value). The value None is a flag that is not set.

    Raises:
        SettingsError: a file can't be read, a key is unknown, or a value is invalid.
    """
    environ = os.environ if environ is None else environ
    known = known_settings()
    source = ""
    if file is None and environ.get(CONFIG_VARIABLE):
        file, source = Path(environ[CONFIG_VARIABLE]), f"{CONFIG_VARIABLE}: "
    if file is None and DEFAULT_FILE.is_file():
        file = DEFAULT_FILE
    ignored = service_variables(environ)
    environ = {name: text for name, text in environ.items() if name not in ignored}
    layers = [_from_environ(environ, known), _from_flags(flags or {}, known)]
    declared = declared_sections()
    entries: list[Section] = []
    if file is not None:
        layer, entries = _from_file(file, known, declared, source)
        layers.insert(0, layer)
    given: dict[str, Given] = {}
    for layer in layers:
        given.update(layer)
    origins = {key: each.origin for key, each in given.items()}
    settings = validated(given, known, declared, entries)
    return LoadedSettings(settings, file, origins, ignored)


S = TypeVar("S", bound=Section)
Layer = dict[str, Given]
"""The values of one source by dotted key."""


def _from_file(
    file: Path, known: Mapping[str, SettingDef], declared: Sequence[type[Section]], source: str
) -> tuple[Layer, list[Section]]:
    """Return the values in a file, and its entries of lists of tables.

    ``source`` is the variable that names the file, if there is one.
    """
    document, text = _read(file, source)
    entries: list[Section] = []
    for kind in declared:
        if kind.is_repeated and kind.key in document:
            entries += checked_entries(kind, document.pop(kind.key), file)
    layer: Layer = {}
    for key, value in _flatten(document):
        place = PlaceInFile(str(file), text, key)
        definition = definition_of(key, known)
        if definition is None:
            lists = [kind.key for kind in declared if kind.is_repeated]
            raise unknown_key(key, place, known, lists)
        if definition.is_path and isinstance(value, str) and value:
            value = str(file.parent / Path(value).expanduser())
        layer[key] = Given(str(file), place, value)
    return layer, entries


def entries_in(file: Path, kind: type[S]) -> list[S]:
    """Return the entries of one list of tables in a settings file. Nothing else of it is checked.

    Raises:
        SettingsError: the file can't be read, or an entry is invalid.
    """
    document, _ = _read(file)
    return checked_entries(kind, document.get(kind.key, []), file)


def _read(file: Path, source: str = "") -> tuple[dict[str, Any], str]:
    """Return the document in a file, and its text."""
    try:
        text = file.read_text("utf-8")
        return tomllib.loads(text), text
    except OSError as error:
        raise SettingsError(
            f"{source}settings file {file}: {(error.strerror or str(error)).lower()}",
            hint="Use an existing file with --config, or omit the flag to use the defaults.",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"settings file {file} is not valid TOML: {error}") from error


def _flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _from_environ(environ: Mapping[str, str], known: Mapping[str, SettingDef]) -> Layer:
    by_variable = {definition.env: definition for definition in known.values()}
    layer: Layer = {}
    for name, text in sorted(environ.items()):
        if not name.startswith(ENV_PREFIX) or name in OTHER_VARIABLES or not text:
            continue
        definition = by_variable.get(name)
        if definition is None:
            close = similar(name, by_variable)
            hint = f"Did you mean {close[0]}?" if close else SEE_ALL
            raise SettingsError(f"unknown environment variable {name}", hint=hint)
        if definition.is_map:
            example = f"{name}="
            layer.update(_from_json(text, definition, Given(name, name, None), example))
        else:
            layer[definition.key] = Given(name, name, text)
    return layer


def _from_flags(flags: Mapping[str, tuple[str, object]], known: Mapping[str, SettingDef]) -> Layer:
    layer: Layer = {}
    for key, (origin, value) in flags.items():
        definition = definition_of(key, known)
        given = Given(origin, origin, value)
        if key in known and known[key].is_map and isinstance(value, str):
            layer.update(_from_json(value, known[key], given, f"{origin} {key}="))
        elif definition is None:
            raise unknown_key(key, origin, known)
        elif value is not None:
            layer[key] = given
    return layer


def _from_json(text: str, definition: SettingDef, given: Given, example: str) -> Layer:
    """Return the keys of a table that is given as a JSON object. ``given`` has its source."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error)
    else:
        if isinstance(table, dict):
            return {f"{definition.key}.{k}": replace(given, value=v) for k, v in table.items()}
        reason = f"it is {shown(table)}"
    raise SettingsError(
        f"{given.place}: {definition.key} is not a JSON object: {reason}",
        hint=f"""For example {example}'{{"retention.ms": "86400000"}}'.""",
    )
