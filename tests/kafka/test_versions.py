"""Every advertised version of every API goes there and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kafka.messages import from_kio, full_tree, kio_bytes, kio_read, null_tree, to_kio, trees
from tidemill.kafka import codec
from tidemill.kafka.apis import VERSIONS, load_handlers
from tidemill.kafka.encode import EncodeError, UnknownFieldError
from tidemill.kafka.schema import kio_versions, request_type, response_type

ADVERTISED = [
    (api.key, version)
    for api in load_handlers().values()
    for version in range(api.min_version, api.max_version + 1)
    if version in kio_versions(api.key)  # Produce 0 to 2 are refused by hand: see test_hot.py
]
NAMED = [pytest.param(k, v, id=f"{VERSIONS[k][0]}-v{v}") for k, v in ADVERTISED]
SHAPES: list[Callable[[type[Any]], dict[str, Any]]] = [full_tree, null_tree]


def test_only_versions_that_the_codec_knows_are_advertised() -> None:
    for api in load_handlers().values():
        known = kio_versions(api.key)
        assert api.max_version in known
        assert api.min_version in known or api.key == 0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("key", "version"), NAMED)
def test_request_is_decoded_as_it_was_written(
    key: int, version: int, shape: Callable[[type[Any]], dict[str, Any]]
) -> None:
    entity = request_type(key, version)
    tree = shape(entity)
    body = kio_bytes(entity, tree)
    assert codec.decode_request(key, version, b"head" + body, 4) == to_kio(entity, tree)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("key", "version"), NAMED)
def test_response_has_the_bytes_that_kio_writes(
    key: int, version: int, shape: Callable[[type[Any]], dict[str, Any]]
) -> None:
    entity = response_type(key, version)
    tree = shape(entity)
    body = bytes(codec.encode_response(key, version, tree))
    assert body == kio_bytes(entity, tree)
    assert from_kio(kio_read(entity, body)) == tree


@pytest.mark.parametrize(("key", "version"), NAMED)
def test_empty_tree_gives_a_response_of_defaults(key: int, version: int) -> None:
    entity = response_type(key, version)
    body = bytes(codec.encode_response(key, version, {}))
    assert body == kio_bytes(entity, {})
    kio_read(entity, body)


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_response_has_the_bytes_that_kio_writes(data: st.DataObject) -> None:
    key, version = data.draw(st.sampled_from(ADVERTISED))
    entity = response_type(key, version)
    tree = data.draw(trees(entity))
    assert bytes(codec.encode_response(key, version, tree)) == kio_bytes(entity, tree)


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_request_passes_the_guard(data: st.DataObject) -> None:
    key, version = data.draw(st.sampled_from(ADVERTISED))
    entity = request_type(key, version)
    tree = data.draw(trees(entity))
    request = codec.decode_request(key, version, kio_bytes(entity, tree), 0)
    assert from_kio(request) == from_kio(to_kio(entity, tree))


def test_fields_of_other_versions_are_left_out() -> None:
    tree = {"topics": [{"name": "t", "is_internal": True}], "cluster_id": "c", "error_code": 3}
    assert codec.encode_response(3, 0, tree) == codec.encode_response(
        3, 0, {"topics": [{"name": "t"}]}
    )


@pytest.mark.parametrize(
    "tree",
    [{"throttle_time_ms": 0}, {"topics": [{"name": "t", "partition": 1}]}],
    ids=["top", "nested"],
)
def test_field_of_no_version_is_a_mistake(tree: dict[str, Any]) -> None:
    with pytest.raises(UnknownFieldError, match="in any version"):
        codec.encode_response(3, 12, tree)


@pytest.mark.parametrize(
    "tree",
    [
        {"topics": None},
        {"controller_id": "one"},
        {"controller_id": 2**31},
        {"brokers": [{"host": None}]},
        {"topics": [{"topic_id": "not a uuid"}]},
    ],
)
def test_value_that_does_not_fit_is_a_mistake(tree: dict[str, Any]) -> None:
    with pytest.raises(EncodeError):
        codec.encode_response(3, 12, tree)
