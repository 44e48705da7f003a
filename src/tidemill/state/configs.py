"""Rules of configs: how they are altered, which values are in force, and where those come from.

Pure functions over maps of strings. Three layers, strongest first: a topic's own configs; the
broker's dynamic ones (altered by clients, kept in the catalog); the broker's static ones (its
settings file). Topic configs are declared in ``log.config``; a broker config that is the default
of a topic config goes under Kafka's broker name (``log.retention.ms`` of ``retention.ms``).

Source: KIP-226 (dynamic configs, synonyms), KIP-339 (incremental alteration).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tidemill.errors import InvalidConfigError, InvalidRequestError
from tidemill.log.config import DEFINITIONS, LogConfig, definition, topic_defaults
from tidemill.log.configdef import ConfigDef
from tidemill.state.types import AlterOp, ConfigChange, ConfigEntry, ConfigSource, ConfigType

DYNAMIC_BROKER_CONFIGS: dict[str, str] = {
    each.synonyms[0].name: name for name, each in DEFINITIONS.items() if each.synonyms
}
"""Broker configs that clients may alter -> the topic config that they are the default of."""


# --- altering ------------------------------------------------------------------------------------


def checked_overrides(
    configs: Mapping[str, str | None], defaults: Mapping[str, str]
) -> dict[str, str]:
    """A topic's own configs, proven to be valid together with the defaults.

    Raises:
        InvalidConfigError: a config is unknown, null, malformed or in conflict with another.
    """
    checked = {}
    for name, value in configs.items():
        if value is None:
            raise InvalidConfigError(f"config {name!r} has no value (null)")
        checked[name] = value
    LogConfig.parse(checked, defaults)
    return checked


def altered(
    configs: Mapping[str, str], changes: Sequence[ConfigChange], defaults: Mapping[str, str]
) -> dict[str, str]:
    """A topic's own configs after incremental changes; ``defaults`` under topic names.

    Raises:
        InvalidConfigError: a config is unknown or malformed, or a list operation is asked of one
            that is no list.
        InvalidRequestError: a config is named twice.
    """
    _refuse_repeated(changes)
    result = dict(configs)
    for change in changes:
        found = definition(change.name)
        current = result.get(change.name, defaults.get(change.name, found.default))
        _apply(result, change, found, current)
    return checked_overrides(result, defaults)


def altered_broker(
    configs: Mapping[str, str], changes: Sequence[ConfigChange], static: Mapping[str, str]
) -> dict[str, str]:
    """The broker's dynamic configs after incremental changes.

    Raises:
        InvalidConfigError: a config is unknown, malformed or can't be altered while running.
        InvalidRequestError: a config is named twice.
    """
    _refuse_repeated(changes)
    result = dict(configs)
    for change in changes:
        found = _dynamic(change.name)
        in_force = merged_defaults(static, result).get(found.name, found.default)
        _apply(result, change, found, in_force)
    check_broker(result, static)
    return result


def check_broker(configs: Mapping[str, str], static: Mapping[str, str]) -> None:
    """Prove the broker's dynamic configs.

    Raises:
        InvalidConfigError: one is unknown, malformed, in conflict with another, or can't be
            altered while running.
    """
    for name in configs:
        _dynamic(name)
    LogConfig.parse({}, merged_defaults(static, configs))


def merged_defaults(static: Mapping[str, str], dynamic: Mapping[str, str]) -> dict[str, str]:
    """Defaults of topic configs under topic names; dynamic ones are stronger.

    Raises:
        InvalidConfigError: a name is unknown.
    """
    return topic_defaults(static) | topic_defaults(dynamic)


def _apply(
    configs: dict[str, str], change: ConfigChange, found: ConfigDef, current: str | None
) -> None:
    if change.op is AlterOp.DELETE:
        configs.pop(change.name, None)
        return
    if change.value is None:
        raise InvalidConfigError(f"config {change.name!r} can't be set to null; delete it instead")
    if change.op is AlterOp.SET:
        configs[change.name] = change.value
        return
    if found.type is not ConfigType.LIST:
        raise InvalidConfigError(
            f"{change.op.name} is not possible: {change.name!r} is not a list", hint="Use SET."
        )
    items = _items(current)
    given = _items(change.value)
    if change.op is AlterOp.APPEND:
        items += [item for item in given if item not in items]
    else:
        items = [item for item in items if item not in given]
    configs[change.name] = ",".join(items)


def _items(text: str | None) -> list[str]:
    return [item.strip() for item in (text or "").split(",") if item.strip()]


def _refuse_repeated(changes: Sequence[ConfigChange]) -> None:
    names = [change.name for change in changes]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidRequestError(f"config {repeated[0]!r} is changed twice in one request")


def _dynamic(name: str) -> ConfigDef:
    topic_name = DYNAMIC_BROKER_CONFIGS.get(name)
    if topic_name is None:
        raise InvalidConfigError(
            f"broker config {name!r} can't be altered while the broker runs",
            hint="Alterable are the defaults of topic configs under their broker names, such as "
            "log.retention.ms; others stand in the broker's settings.",
        )
    return DEFINITIONS[topic_name]


# --- describing ----------------------------------------------------------------------------------


def topic_entries(
    overrides: Mapping[str, str], dynamic: Mapping[str, str], static: Mapping[str, str]
) -> list[ConfigEntry]:
    """All configs of a topic with value, source and synonyms, as Apache Kafka describes them."""
    entries = []
    for name, each in DEFINITIONS.items():
        if each.internal and name not in overrides:
            continue
        chain = list(_default_chain(each, dynamic, static))
        if name in overrides:
            chain.insert(0, (name, overrides[name], ConfigSource.DYNAMIC_TOPIC))
        value, source = each.default, ConfigSource.DEFAULT
        if chain and chain[0][2] is not ConfigSource.DEFAULT:
            first, text, source = chain[0]
            value = text if first == name else topic_defaults({first: text})[name]
        entries.append(
            ConfigEntry(
                name,
                value,
                source,
                each.type,
                doc=each.doc,
                synonyms=tuple(chain),
            )
        )
    return entries


def _default_chain(
    each: ConfigDef, dynamic: Mapping[str, str], static: Mapping[str, str]
) -> Iterator[tuple[str, str, ConfigSource]]:
    """Where a topic config's default comes from, strongest first, under broker names."""
    for layer, source in (
        (dynamic, ConfigSource.DYNAMIC_BROKER),
        (static, ConfigSource.STATIC_BROKER),
    ):
        if each.name in layer:  # the settings file may use the topic's name for the default
            shown = each.synonyms[0].name if each.synonyms else each.name
            yield shown, layer[each.name], source
        for synonym in each.synonyms:
            if synonym.name in layer and synonym.name != each.name:
                yield synonym.name, layer[synonym.name], source
    if each.synonyms and each.default is not None:
        name, default = default_synonym(each)
        yield name, default, ConfigSource.DEFAULT


def default_synonym(each: ConfigDef) -> tuple[str, str]:
    """The broker config that carries Kafka's default (the weakest synonym), in its own unit."""
    synonym = each.synonyms[-1]
    default = each.default or ""
    if synonym.factor != 1:
        default = str(int(default) // synonym.factor)
    return synonym.name, default
