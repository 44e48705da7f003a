"""ApiVersions and UpdateFeatures: the requests that this broker answers, and its features.

Source: KIP-35, KIP-511, KIP-584. Knows the registry; ``features`` has the levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.engine.authorize import CLUSTER, Operation
from tidemill.kafka_codec.declared import API_VERSIONS
from tidemill.kafka_codec.messages import encode_response
from tidemill.protocols.kafka.apis import REGISTRY, Api, Each, RequestContext, Tree, field, handles
from tidemill.protocols.kafka.error_codes import NONE, error_code, error_fields
from tidemill.protocols.kafka.errors import UnsupportedVersionError
from tidemill.protocols.kafka.features import LEVELS, check_update
from tidemill.state.errors import InvalidRequestError

_FEATURES: Tree = {
    "finalized_features_epoch": 0,
    "finalized_features": [
        {"name": name, "min_version_level": level, "max_version_level": level}
        for name, level in LEVELS.items()
    ],
    "supported_features": [
        {"name": name, "min_version": level, "max_version": level} for name, level in LEVELS.items()
    ],
}

_SOFTWARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")


@handles(API_VERSIONS)
def handle_api_versions(ctx: RequestContext, request: Any) -> Tree:
    """Answer with all registered APIs and their version ranges."""
    if ctx.api_version >= 3:
        name = field(request, "client_software_name", "")
        version = field(request, "client_software_version", "")
        if not _is_software(name) or not _is_software(version):
            return {"error_code": error_code(InvalidRequestError("client software name"))}
        ctx.connection.software = f"{name} {version}"
    return {"error_code": NONE, "api_keys": _api_keys(REGISTRY), **_FEATURES}


def _is_software(text: str) -> bool:
    """Return whether the text is a software name as in KIP-511.
    The pattern is ``[a-zA-Z0-9](?:[a-zA-Z0-9\\-.]*[a-zA-Z0-9])?``."""
    return bool(text) and text[0].isalnum() and text[-1].isalnum() and _SOFTWARE.issuperset(text)


def _api_keys(apis: Mapping[int, Api]) -> list[Tree]:
    return [
        {"api_key": api.key, "min_version": api.min_version, "max_version": api.max_version}
        for _, api in sorted(apis.items())
    ]


def unsupported_version_body(apis: Mapping[int, Api]) -> bytes:
    """Return the v0 body for an unknown version of ApiVersions: error 35 and all APIs."""
    tree = {
        "error_code": error_code(UnsupportedVersionError("ApiVersions")),
        "api_keys": _api_keys(apis),
    }
    return bytes(encode_response(API_VERSIONS, 0, tree))


@handles(57, refused=error_fields)
async def handle_update_features(ctx: RequestContext, request: Any) -> Tree:
    """Answer UpdateFeatures (KIP-584): all updates or none."""
    ctx.door.access.check(Operation.ALTER, CLUSTER)
    for update in request.feature_updates:
        check_update(update, ctx.node.node_id)
        await ctx.turns.pause_if_due()
    done = Each(lambda update: {"feature": update.feature}, request.feature_updates)
    return {"results": done}
