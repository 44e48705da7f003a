"""ApiVersions: which requests this broker answers (KIP-35, KIP-511, KIP-584).

Knows the registry only, and that both transaction protocols are spoken (KIP-890).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.errors import InvalidRequestError, UnsupportedVersionError
from tidemill.kafka.apis import REGISTRY, Api, RequestContext, Tree, field, handles
from tidemill.kafka.codec import encode_response
from tidemill.kafka.errors import NONE, error_code
from tidemill.kafka.schema import API_VERSIONS

_FEATURE = "transaction.version"
_LEVEL = 2
"""Finalised: producers that can leave AddPartitionsToTxn out; others may go on with it."""

_FEATURES: Tree = {
    "finalized_features_epoch": 0,
    "finalized_features": [
        {"name": _FEATURE, "min_version_level": _LEVEL, "max_version_level": _LEVEL}
    ],
}
_SUPPORTED: Tree = {
    "supported_features": [{"name": _FEATURE, "min_version": 0, "max_version": _LEVEL}]
}

_SOFTWARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")


@handles(API_VERSIONS)
def handle_api_versions(ctx: RequestContext, request: Any) -> Tree:
    """All registered APIs with their version ranges."""
    if ctx.api_version >= 3:
        name = field(request, "client_software_name", "")
        version = field(request, "client_software_version", "")
        if not _is_software(name) or not _is_software(version):
            return {"error_code": error_code(InvalidRequestError("client software name"))}
        ctx.connection.software = f"{name} {version}"
    answer = {"error_code": NONE, "api_keys": _api_keys(REGISTRY), **_FEATURES}
    # Clients that ask with v3 fail on a least version of 0 (KAFKA-17492).
    return answer | _SUPPORTED if ctx.api_version >= 4 else answer


def _is_software(text: str) -> bool:
    """KIP-511: ``[a-zA-Z0-9](?:[a-zA-Z0-9\\-.]*[a-zA-Z0-9])?``."""
    return bool(text) and text[0].isalnum() and text[-1].isalnum() and _SOFTWARE.issuperset(text)


def _api_keys(apis: Mapping[int, Api]) -> list[Tree]:
    return [
        {"api_key": api.key, "min_version": api.min_version, "max_version": api.max_version}
        for _, api in sorted(apis.items())
    ]


def unsupported_version_body(apis: Mapping[int, Api]) -> bytes:
    """The v0 body for an ApiVersions version that is not known: error 35 and what there is."""
    tree = {
        "error_code": error_code(UnsupportedVersionError("ApiVersions")),
        "api_keys": _api_keys(apis),
    }
    return bytes(encode_response(API_VERSIONS, 0, tree))
