"""Configs described and altered: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, listing.

Translates only: the engine knows which configs exist and which values are valid. Resources are
topics, groups and the one broker. The empty broker name means all brokers: their configs are a
layer below those of the broker itself, as in Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from tidemill.engine.api import AlterOp, ConfigChange, ConfigEntry, ConfigSource, ConfigType
from tidemill.errors import TidemillError
from tidemill.protocols.kafka import broker_configs
from tidemill.protocols.kafka.apis import Each, RequestContext, Tree, field, handles
from tidemill.protocols.kafka.error_codes import error_code, error_fields
from tidemill.protocols.kafka.errors import UnsupportedVersionError
from tidemill.state.errors import InvalidRequestError

TOPIC = 2
BROKER = 4
BROKER_LOGGER = 8
CLIENT_METRICS = 16
GROUP = 32
"""Kafka's ConfigResource types."""

_SOURCES = {
    ConfigSource.DYNAMIC_TOPIC: 1,
    ConfigSource.DYNAMIC_BROKER: 2,
    ConfigSource.DYNAMIC_DEFAULT_BROKER: 3,
    ConfigSource.STATIC_BROKER: 4,
    ConfigSource.DEFAULT: 5,
    ConfigSource.DYNAMIC_GROUP: 8,
}

_TYPES = {
    ConfigType.BOOLEAN: 1,
    ConfigType.STRING: 2,
    ConfigType.INT: 3,
    ConfigType.SHORT: 4,
    ConfigType.LONG: 5,
    ConfigType.DOUBLE: 6,
    ConfigType.LIST: 7,
    ConfigType.CLASS: 8,
    ConfigType.PASSWORD: 9,
}


MAX_CONFIGS = 1000
"""Configs of one resource in a request. Apache Kafka has fewer than 300."""

_OPERATIONS = {0: AlterOp.SET, 1: AlterOp.DELETE, 2: AlterOp.APPEND, 3: AlterOp.SUBTRACT}


def config_fields(entry: ConfigEntry) -> Tree:
    """Return the fields of a config that DescribeConfigs and CreateTopics show."""
    return {
        "name": entry.name,
        "value": None if entry.sensitive else entry.value,
        "read_only": entry.read_only,
        "config_source": _SOURCES[entry.source],
        "is_sensitive": entry.sensitive,
    }


@handles(32)
def handle_describe_configs(ctx: RequestContext, request: Any) -> Tree:
    """Answer DescribeConfigs. Keys None or empty asks for all.

    Synonyms and documentation are included on request only.
    """
    return {
        "results": Each(
            lambda resource: _describe_resource(
                ctx,
                resource,
                synonyms=request.include_synonyms,
                documentation=field(request, "include_documentation", False),
            ),
            request.resources,
        )
    }


def _describe_resource(
    ctx: RequestContext, resource: Any, *, synonyms: bool, documentation: bool
) -> Tree:
    kind, name = resource.resource_type, resource.resource_name
    answer: Tree = {"resource_type": kind, "resource_name": name}
    try:
        entries = _entries(ctx, kind, name)
    except TidemillError as error:
        return answer | error_fields(error)
    keys = frozenset(resource.configuration_keys or ())
    answer["configs"] = [
        {
            **config_fields(entry),
            "synonyms": _synonyms(entry) if synonyms else [],
            "config_type": _TYPES[entry.type],
            "documentation": entry.doc if documentation else None,
        }
        for entry in entries
        if not keys or entry.name in keys
    ]
    return answer


def _synonyms(entry: ConfigEntry) -> list[dict[str, Any]]:
    return [
        {"name": name, "value": None if entry.sensitive else value, "source": _SOURCES[source]}
        for name, value, source in entry.synonyms
    ]


def _entries(ctx: RequestContext, resource_type: int, name: str) -> list[ConfigEntry]:
    if resource_type == TOPIC:
        return ctx.door.configs.of_topic(name)
    if resource_type == BROKER:
        _check_broker_name(ctx, name)
        layers = ctx.door.configs.of_broker()
        if not name:
            return broker_configs.cluster_entries(layers)
        static = broker_configs.static_values(ctx.door.settings, ctx.node)
        return broker_configs.broker_entries(static, layers)
    if resource_type == GROUP:
        return ctx.door.configs.of_group(name)
    raise _unsupported(resource_type)


@handles(33)
async def handle_alter_configs(ctx: RequestContext, request: Any) -> Tree:
    """Answer AlterConfigs: replace all configs that are set on a resource."""
    configs = ctx.door.configs
    alter = configs.replace_topic, configs.replace_group, configs.replace_broker
    return await _alter_all(ctx, request, _values, *alter)


@handles(44)
async def handle_incremental_alter_configs(ctx: RequestContext, request: Any) -> Tree:
    """Answer IncrementalAlterConfigs (KIP-339)."""
    configs = ctx.door.configs
    alter = configs.alter_topic, configs.alter_group, configs.alter_broker
    return await _alter_all(ctx, request, _changes, *alter)


async def _alter_all(
    ctx: RequestContext,
    request: Any,
    read: Callable[[Any], Any],
    alter_topic: Callable[[str, Any, bool], Awaitable[None]],
    alter_group: Callable[[str, Any, bool], Awaitable[None]],
    alter_broker: Callable[..., Awaitable[None]],
) -> Tree:
    """Alter each resource on its own. One that is named twice gets an error, as in Kafka."""
    resources, validate_only = request.resources, request.validate_only
    named = Counter((r.resource_type, r.resource_name) for r in resources)
    first = {(r.resource_type, r.resource_name): r for r in reversed(resources)}

    async def alter(resource_type: int, name: str, configs: Any) -> None:
        if resource_type == TOPIC:
            await alter_topic(name, configs, validate_only)
        elif resource_type == GROUP:
            await alter_group(name, configs, validate_only)
        else:
            _check_broker_name(ctx, name)
            await alter_broker(configs, validate_only, all_brokers=not name)

    async def alter_one(key: tuple[int, str]) -> Tree:
        resource_type, name = key
        refusal: TidemillError | None = None
        try:
            if named[key] > 1:
                raise InvalidRequestError("Each resource must appear at most once.")
            if resource_type not in (TOPIC, BROKER, GROUP):
                raise _unsupported(resource_type)
            _check_keys(first[key].configs)
            await alter(resource_type, name, read(first[key].configs))
        except TidemillError as error:
            refusal = error
        return {
            **error_fields(refusal),
            "resource_type": resource_type,
            "resource_name": name,
        }

    return {"responses": await ctx.turns.each(alter_one, named)}


def _values(configs: Any) -> dict[str, str]:
    _check_nulls((config.name, config.value) for config in configs)
    return {config.name: config.value for config in configs}


def _changes(configs: Any) -> list[ConfigChange]:
    changes = []
    for config in configs:
        op = _OPERATIONS.get(config.config_operation)
        if op is None:
            raise InvalidRequestError(
                f"Unknown config operation {config.config_operation} for {config.name}"
            )
        if op is not AlterOp.DELETE:
            _check_nulls([(config.name, config.value)])
        changes.append(ConfigChange(config.name, op, config.value))
    return changes


def _check_keys(configs: Any) -> None:
    if len(configs) > MAX_CONFIGS:
        raise InvalidRequestError(
            f"{len(configs)} configs of one resource: the limit is {MAX_CONFIGS}"
        )
    twice = sorted(n for n, count in Counter(c.name for c in configs).items() if count > 1)
    if twice:
        raise InvalidRequestError(f"Error due to duplicate config keys: {', '.join(twice)}")


def _check_nulls(configs: Any) -> None:
    nulls = sorted(name for name, value in configs if value is None)
    if nulls:
        raise InvalidRequestError(f"Null value not supported for: {', '.join(nulls)}")


def _check_broker_name(ctx: RequestContext, name: str) -> None:
    if name and name != str(ctx.node.node_id):
        raise InvalidRequestError(
            f"Unexpected broker id, expected {ctx.node.node_id} or empty string, "
            f"but received {name}"
        )


def _unsupported(resource_type: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"Unsupported resource type {resource_type}",
        hint="Only topics, brokers and groups have configs here.",
    )


@handles(74)
def handle_list_config_resources(ctx: RequestContext, request: Any) -> Tree:
    """Answer ListConfigResources (KIP-1142). v0 asks for client metrics: there are none."""
    known = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
    asked = [CLIENT_METRICS] if ctx.api_version < 1 else list(request.resource_types) or known
    if not set(asked) <= set(known):
        unknown = UnsupportedVersionError(f"unknown config resource types in {asked}")
        return {"error_code": error_code(unknown)}
    resources: list[tuple[str, int]] = []
    if BROKER in asked:
        resources.append((str(ctx.node.node_id), BROKER))
    if TOPIC in asked:
        resources.extend((topic.name, TOPIC) for topic in ctx.door.topics.all())
    if GROUP in asked:
        resources.extend((group_id, GROUP) for group_id in ctx.door.configs.groups())
    return {
        "config_resources": [
            {"resource_name": name, "resource_type": resource_type}
            for name, resource_type in resources
        ],
    }
