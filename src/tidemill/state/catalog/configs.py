"""Rules for configs: how to alter them, which values are in force, and where those come from.

Pure functions over maps of strings. There are four layers, the strongest first:

- a topic's own configs
- the dynamic configs of this broker, which clients alter and the catalog stores
- the dynamic configs of all brokers, likewise
- the broker's static configs, from its settings

``log.config`` declares the topic configs. A broker config that is the default of a topic config
has Kafka's broker name: ``log.retention.ms`` is the default of ``retention.ms``. ``broker_rules``
has the lower layers.

This module must not know which topics exist.

Source: KIP-226 (dynamic configs, synonyms), KIP-339 (incremental alteration).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tidemill.log.config.definition import ConfigDef
from tidemill.log.config.parse import DEFINITIONS, definition, parse_config, topic_defaults
from tidemill.log.errors import InvalidConfigError
from tidemill.state.catalog.broker_rules import (
    BrokerLayers,
    check_values,
    dynamic_definition,
)
from tidemill.state.catalog.types import (
    AlterOp,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    ConfigType,
)
from tidemill.state.errors import InvalidRequestError

# --- altering ------------------------------------------------------------------------------------


def checked_overrides(
    configs: Mapping[str, str | None], defaults: Mapping[str, str]
) -> dict[str, str]:
    """Return a topic's own configs after checking them together with the defaults."""
    checked = {}
    for name, value in configs.items():
        if value is None:
            raise InvalidConfigError(f"config {name!r} can't be null")
        checked[name] = value
    parse_config(checked, defaults)
    return checked


def altered(
    configs: Mapping[str, str], changes: Sequence[ConfigChange], defaults: Mapping[str, str]
) -> dict[str, str]:
    """Return a topic's own configs after incremental changes.

    Args:
        defaults: the defaults of topic configs, under topic names.
    """
    result = _changed(configs, changes, definition, lambda _: defaults)
    return checked_overrides(result, defaults)


def altered_broker(
    layers: BrokerLayers, changes: Sequence[ConfigChange], *, all_brokers: bool
) -> dict[str, str]:
    """Return one dynamic layer of the broker's configs after incremental changes.

    Args:
        layers: the layers before.
        all_brokers: whether to change the configs of all brokers, and not of this one.
    """
    result = _changed(
        layers.cluster if all_brokers else layers.broker,
        changes,
        dynamic_definition,
        lambda configs: with_layer(layers, configs, all_brokers=all_brokers).defaults(),
    )
    check_broker(with_layer(layers, result, all_brokers=all_brokers))
    return result


def with_layer(
    layers: BrokerLayers, configs: Mapping[str, str], *, all_brokers: bool
) -> BrokerLayers:
    """Return the layers with one dynamic layer replaced."""
    return replace(layers, **{"cluster" if all_brokers else "broker": configs})


def check_broker(layers: BrokerLayers) -> None:
    """Check the broker's dynamic configs."""
    check_values(layers.cluster, all_brokers=True)
    check_values(layers.broker, all_brokers=False)
    for part in (replace(layers, broker={}), layers):  # an overridden value must be valid too
        parse_config({}, part.defaults())


def _changed(
    configs: Mapping[str, str],
    changes: Sequence[ConfigChange],
    define: Callable[[str], ConfigDef],
    defaults: Callable[[Mapping[str, str]], Mapping[str, str]],
) -> dict[str, str]:
    """Return configs after incremental changes, without a check of the new values.

    Args:
        define: returns the definition of a config.
        defaults: returns the defaults of topic configs, under topic names, given the configs.
    """
    names = [change.name for change in changes]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidRequestError(f"config {repeated[0]!r} is changed twice in one request")
    result = dict(configs)
    for change in changes:
        if change.op is AlterOp.DELETE:
            result.pop(change.name, None)  # of any name: tools delete what was never set
            continue
        found = define(change.name)
        current = result.get(change.name, defaults(result).get(found.name, found.default))
        _apply(result, change, found, current)
    return result


def _apply(
    configs: dict[str, str], change: ConfigChange, found: ConfigDef, current: str | None
) -> None:
    if change.value is None:
        raise InvalidConfigError(f"config {change.name!r} can't be null", hint="Delete it instead.")
    if change.op is AlterOp.SET:
        configs[change.name] = change.value
        return
    if found.type is not ConfigType.LIST:
        raise InvalidConfigError(
            f"invalid operation {change.op.name}: config {change.name!r} is not a list",
            hint="Use SET.",
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


# --- describing ----------------------------------------------------------------------------------


def topic_entries(overrides: Mapping[str, str], layers: BrokerLayers) -> list[ConfigEntry]:
    """Return all configs of a topic with value, source and synonyms, as Apache Kafka does."""
    entries = []
    for name, each in DEFINITIONS.items():
        if each.internal and name not in overrides:
            continue
        chain = list(_default_chain(each, layers))
        if name in overrides:
            chain.insert(0, (name, overrides[name], ConfigSource.DYNAMIC_TOPIC))
        value, source = each.default, ConfigSource.DEFAULT
        if chain and chain[0][2] is not ConfigSource.DEFAULT:
            first, text, source = chain[0]
            value = text if first == name else topic_defaults({first: text})[name]
        entries.append(
            ConfigEntry(name, value, source, each.type, doc=each.doc, synonyms=tuple(chain))
        )
    return entries


def _default_chain(
    each: ConfigDef, layers: BrokerLayers
) -> Iterator[tuple[str, str, ConfigSource]]:
    """Yield the layers that set a topic config's default, under broker names, strongest first."""
    for layer, source in (
        (layers.broker, ConfigSource.DYNAMIC_BROKER),
        (layers.cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (layers.static, ConfigSource.STATIC_BROKER),
    ):
        if each.name in layer:  # the settings can use the topic's name for the default
            shown = each.synonyms[0].name if each.synonyms else each.name
            yield shown, layer[each.name], source
        for synonym in each.synonyms:
            if synonym.name in layer and synonym.name != each.name:
                yield synonym.name, layer[synonym.name], source
    if each.synonyms and each.default is not None:
        name, default = default_synonym(each)
        yield name, default, ConfigSource.DEFAULT


def default_synonym(each: ConfigDef) -> tuple[str, str]:
    """Return the broker config that has Kafka's default, and that default in its own unit.

    It is the weakest synonym.
    """
    synonym = each.synonyms[-1]
    default = each.default or ""
    if synonym.factor != 1:
        default = str(int(default) // synonym.factor)
    return synonym.name, default
