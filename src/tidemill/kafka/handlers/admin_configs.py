"""Configs described and altered: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, listing.

Translates only: which configs exist, what they may be and where they come from is the broker's.
Resources are topics and the one broker; the empty broker name means "all brokers" to Kafka, which
is the same set of dynamic configs here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from tidemill.broker.api import AlterOp, ConfigChange, ConfigEntry, ConfigSource, ConfigType
from tidemill.errors import InvalidRequestError, TidemillError, UnsupportedVersionError
from tidemill.kafka.apis import RequestContext, Tree, field, handles
from tidemill.kafka.errors import error_code, error_message

TOPIC = 2
BROKER = 4
BROKER_LOGGER = 8
CLIENT_METRICS = 16
GROUP = 32
"""Kafka's ConfigResource types."""

_SOURCES = {
    ConfigSource.DYNAMIC_TOPIC: 1,
    ConfigSource.DYNAMIC_BROKER: 2,
    ConfigSource.STATIC_BROKER: 4,
    ConfigSource.DEFAULT: 5,
}
_CLUSTER_DEFAULT = 3
"""DYNAMIC_DEFAULT_BROKER_CONFIG: how a dynamic broker config is shown under the empty name."""

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


def config_source(source: ConfigSource) -> int:
    """The protocol's number of a config's source (KIP-226)."""
    return _SOURCES[source]


@handles(32)
def handle_describe_configs(ctx: RequestContext, request: Any) -> Tree:
    """DescribeConfigs. Keys None or empty asks for all; synonyms and texts only when asked."""
    return {
        "results": [
            _describe_resource(
                ctx,
                resource,
                synonyms=request.include_synonyms,
                documentation=field(request, "include_documentation", False),
            )
            for resource in request.resources
        ]
    }


def _describe_resource(
    ctx: RequestContext, resource: Any, *, synonyms: bool, documentation: bool
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "error_code": 0,
        "error_message": None,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [],
    }
    try:
        entries = _entries(ctx, resource.resource_type, resource.resource_name)
    except TidemillError as error:
        return {**answer, "error_code": error_code(error), "error_message": error_message(error)}
    keys = resource.configuration_keys
    cluster_default = resource.resource_type == BROKER and not resource.resource_name
    answer["configs"] = [
        {
            "name": entry.name,
            "value": None if entry.sensitive else entry.value,
            "read_only": entry.read_only,
            "config_source": _CLUSTER_DEFAULT if cluster_default else _SOURCES[entry.source],
            "is_sensitive": entry.sensitive,
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
        return ctx.broker.topic_configs(name)
    if resource_type == BROKER:
        _check_broker_name(ctx, name)
        entries = ctx.broker.broker_configs()
        if name:
            return entries
        return [entry for entry in entries if entry.source is ConfigSource.DYNAMIC_BROKER]
    raise _unsupported(resource_type)


@handles(33)
async def handle_alter_configs(ctx: RequestContext, request: Any) -> Tree:
    """AlterConfigs: replaces all of a resource's own configs."""

    async def alter(resource: Any) -> None:
        _check_nulls((config.name, config.value) for config in resource.configs)
        configs = {config.name: config.value for config in resource.configs}
        if resource.resource_type == TOPIC:
            await ctx.broker.replace_topic_configs(
                resource.resource_name, configs, request.validate_only
            )
        else:
            _check_broker_name(ctx, resource.resource_name)
            await ctx.broker.replace_broker_configs(configs, request.validate_only)

    return await _alter_all(request.resources, alter)


@handles(44)
async def handle_incremental_alter_configs(ctx: RequestContext, request: Any) -> Tree:
    """IncrementalAlterConfigs (KIP-339)."""

    async def alter(resource: Any) -> None:
        changes = _changes(resource.configs)
        if resource.resource_type == TOPIC:
            await ctx.broker.alter_topic_configs(
                resource.resource_name, changes, request.validate_only
            )
        else:
            _check_broker_name(ctx, resource.resource_name)
            await ctx.broker.alter_broker_configs(changes, request.validate_only)

    return await _alter_all(request.resources, alter)


async def _alter_all(resources: Any, alter: Callable[[Any], Awaitable[None]]) -> Tree:
    """Alter each resource on its own; one that is named twice is refused, as Kafka does."""
    named = Counter((r.resource_type, r.resource_name) for r in resources)
    first = {(r.resource_type, r.resource_name): r for r in reversed(resources)}
    responses = []
    for key in named:
        resource_type, name = key
        refusal: TidemillError | None = None
        try:
            if named[key] > 1:
                raise InvalidRequestError("Each resource must appear at most once.")
            if resource_type not in (TOPIC, BROKER):
                raise _unsupported(resource_type)
            _check_keys(first[key].configs)
            await alter(first[key])
        except TidemillError as error:
            refusal = error
        responses.append(
            {
                "error_code": error_code(refusal),
                "error_message": error_message(refusal),
                "resource_type": resource_type,
                "resource_name": name,
            }
        )
    return {"responses": responses}


def _changes(configs: Any) -> list[ConfigChange]:
    changes = []
    for config in configs:
        try:
            op = AlterOp(config.config_operation)
        except ValueError as error:
            raise InvalidRequestError(
                f"Unknown config operation {config.config_operation} for {config.name}"
            ) from error
        if op is not AlterOp.DELETE:
            _check_nulls([(config.name, config.value)])
        changes.append(ConfigChange(config.name, op, config.value))
    return changes


def _check_keys(configs: Any) -> None:
    twice = sorted(n for n, count in Counter(c.name for c in configs).items() if count > 1)
    if twice:
        raise InvalidRequestError(f"Error due to duplicate config keys: {', '.join(twice)}")


def _check_nulls(configs: Any) -> None:
    nulls = sorted(name for name, value in configs if value is None)
    if nulls:
        raise InvalidRequestError(f"Null value not supported for: {', '.join(nulls)}")


def _check_broker_name(ctx: RequestContext, name: str) -> None:
    if name and name != str(ctx.broker.node_id):
        raise InvalidRequestError(
            f"Unexpected broker id, expected {ctx.broker.node_id} or empty string, "
            f"but received {name}"
        )


def _unsupported(resource_type: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"Unsupported resource type {resource_type}",
        hint="Only topics and brokers have configs here.",
    )


@handles(74)
def handle_list_config_resources(ctx: RequestContext, request: Any) -> Tree:
    """ListConfigResources (KIP-1142): v0 asks for client metrics only, of which there are none."""
    known = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
    asked = [CLIENT_METRICS] if ctx.api_version < 1 else list(request.resource_types) or known
    if not set(asked) <= set(known):
        unknown = UnsupportedVersionError(f"unknown config resource types in {asked}")
        return {"error_code": error_code(unknown), "config_resources": []}
    resources: list[tuple[str, int]] = []
    if BROKER in asked:
        resources.append((str(ctx.broker.node_id), BROKER))
    if TOPIC in asked:
        resources.extend((topic.name, TOPIC) for topic in ctx.broker.topics())
    return {
        "error_code": 0,
        "config_resources": [
            {"resource_name": name, "resource_type": resource_type}
            for name, resource_type in resources
        ],
    }
