"""ApiVersions: the requests that this broker answers (KIP-35, KIP-511, KIP-584).

Knows the registry, and that both transaction protocols (KIP-890), both group protocols (KIP-848)
and share groups (KIP-932) are supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.kafka_codec.declared import API_VERSIONS
from tidemill.kafka_codec.messages import encode_response
from tidemill.protocols.kafka.apis import REGISTRY, Api, RequestContext, Tree, field, handles
from tidemill.protocols.kafka.error_codes import NONE, error_code
from tidemill.protocols.kafka.errors import UnsupportedVersionError
from tidemill.state.errors import InvalidRequestError

_LEVELS = {
    # Members of groups can use the consumer protocol (KIP-848).
    "group.version": 1,
    # Members of share groups get records one by one (KIP-932).
    "share.version": 1,
    # New producers leave AddPartitionsToTxn out. Older ones can still send it.
    "transaction.version": 2,
}
"""The finalised features."""

_FEATURES: Tree = {
    "finalized_features_epoch": 0,
    "finalized_features": [
        {"name": name, "min_version_level": level, "max_version_level": level}
        for name, level in _LEVELS.items()
    ],
}
_SUPPORTED: Tree = {
    "supported_features": [
        {"name": name, "min_version": 0, "max_version": level} for name, level in _LEVELS.items()
    ]
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
    answer = {"error_code": NONE, "api_keys": _api_keys(REGISTRY), **_FEATURES}
    # Clients that send v3 fail on a minimum version of 0 (KAFKA-17492).
    return answer | _SUPPORTED if ctx.api_version >= 4 else answer


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
