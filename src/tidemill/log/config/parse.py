"""Parse topic configs from strings, and look up their definitions.

Knows the declarations in ``LogConfig``; stores nothing. The caller keeps the strings.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping

from tidemill.log.config.definition import ConfigDef, Synonym
from tidemill.log.config.topic import LogConfig
from tidemill.log.errors import InvalidConfigError

DEFINITIONS: dict[str, ConfigDef] = {
    name: ConfigDef(name, **field.metadata)
    for field in dataclasses.fields(LogConfig)
    for name in (field.name.replace("_", "."),)
}
"""All topic configs by name, in alphabetical order."""

_NAMED: dict[str, list[tuple[ConfigDef, int, Synonym]]] = {}
"""What a name can mean: the topic config, its priority among the names, and the conversion."""
for _definition in DEFINITIONS.values():
    for _rank, _synonym in enumerate((Synonym(_definition.name), *_definition.synonyms)):
        _NAMED.setdefault(_synonym.name, []).append((_definition, _rank, _synonym))

_REMOVED = ("message.format.version", "message.downconversion.enable")
"""Topic configs that Kafka 4.0 has removed."""


def parse_config(
    overrides: Mapping[str, str], defaults: Mapping[str, str] | None = None
) -> LogConfig:
    """Return the configs of a topic.

    ``internal.segment.bytes`` replaces ``segment_bytes``.

    Args:
        overrides: the topic's own configs by topic name.
        defaults: the broker's configs, by topic name or broker name (``log.retention.hours``).

    Raises:
        InvalidConfigError: a name is unknown, or a value is malformed, out of range or in conflict
            with another.
    """
    values = {
        DEFINITIONS[name].field: DEFINITIONS[name].parse(text)
        for name, text in topic_defaults(defaults or {}).items()
    }
    for name, text in overrides.items():
        found = definition(name)
        values[found.field] = found.parse(text)
    if values.get("internal_segment_bytes") is not None:
        values["segment_bytes"] = values["internal_segment_bytes"]
    config = LogConfig(**values)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidConfigError(
            f"min.compaction.lag.ms={config.min_compaction_lag_ms} is above "
            f"max.compaction.lag.ms={config.max_compaction_lag_ms}"
        )
    return config


def definition(name: str) -> ConfigDef:
    """Return the definition of a topic config.

    Raises:
        InvalidConfigError: the name is unknown. The hint suggests the most similar name.
    """
    found = DEFINITIONS.get(name)
    if found is None:
        raise InvalidConfigError(f"unknown topic config {name!r}", hint=_suggest(name))
    return found


def _suggest(name: str) -> str:
    if name in _REMOVED:
        return "Leave it out: Apache Kafka 4.0 removed it."
    synonyms = {s.name: d.name for d in DEFINITIONS.values() for s in d.synonyms}
    if name in synonyms:
        return f"On a topic it is called {synonyms[name]}."
    near = difflib.get_close_matches(name.replace("_", ".").lower(), DEFINITIONS, n=1, cutoff=0.6)
    return f"Did you mean {near[0]}?" if near else "See the reference of topic configs."


def topic_defaults(configs: Mapping[str, str]) -> dict[str, str]:
    """Convert broker-level configs to defaults of topic configs, with topic names and units.

    A topic name has priority over its synonyms. Of these, the first one that is set counts, as in
    Kafka.

    Raises:
        InvalidConfigError: a name is neither a topic config nor a synonym of one, or a number that
            must be converted is malformed.
    """
    found: dict[str, tuple[int, Synonym, str]] = {}
    for name in sorted(configs):
        if name not in _NAMED:
            raise InvalidConfigError(f"unknown topic default {name!r}", hint=_suggest(name))
        for each, rank, synonym in _NAMED[name]:
            if each.name not in found or rank < found[each.name][0]:
                found[each.name] = rank, synonym, configs[name]
    return {name: _convert(synonym, text) for name, (_, synonym, text) in sorted(found.items())}


def _convert(synonym: Synonym, text: str) -> str:
    if synonym.factor == 1:
        return text
    try:
        number = int(text)
    except ValueError:
        raise InvalidConfigError(
            f"invalid value {synonym.name}={text}: not a whole number"
        ) from None
    return str(number * synonym.factor if number >= 0 else -1)
