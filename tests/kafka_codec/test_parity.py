"""The codec agrees with kio's own reader and writer, in every version that we advertise.

Both directions of both messages: a server decodes requests and encodes responses, a client the
other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.protocols.kafka.messages import (
    as_tree,
    from_kio,
    full_tree,
    kio_bytes,
    kio_read,
    null_tree,
    to_kio,
    trees,
)
from tests.support.effort import examples
from tidemill.kafka_codec.messages import (
    Encoded,
    EncodeError,
    UnknownFieldError,
    decode_request,
    decode_response,
    element_packer,
    encode_element,
    encode_request,
    encode_response,
    encode_response_in_steps,
)
from tidemill.kafka_codec.schema import known_versions, request_type, response_type
from tidemill.protocols.kafka.apis import VERSIONS, load_handlers

ADVERTISED = [
    (api.key, version)
    for api in load_handlers().values()
    for version in range(api.min_version, api.max_version + 1)
    if version in known_versions(api.key)  # Produce 0 to 2 are refused by hand: see test_hot.py
]
IDS = [f"{VERSIONS[key][0]}-v{version}" for key, version in ADVERTISED]
NAMED = [pytest.param(*each, id=name) for each, name in zip(ADVERTISED, IDS, strict=True)]
SHAPES: list[Callable[[type[Any]], dict[str, Any]]] = [full_tree, null_tree]
DIRECTIONS = {
    "request": (request_type, decode_request, encode_request),
    "response": (response_type, decode_response, encode_response),
}


def test_only_versions_that_the_codec_knows_are_advertised() -> None:
    for api in load_handlers().values():
        known = known_versions(api.key)
        assert api.max_version in known
        assert api.min_version in known or api.key == 0


@pytest.mark.parametrize(("key", "version"), NAMED)
def test_encoded_bytes_are_those_of_kio_and_are_decoded_to_the_same_values(
    key: int, version: int
) -> None:
    for (name, (find, decode, encode)), shape in product(DIRECTIONS.items(), SHAPES):
        entity = find(key, version)
        tree = shape(entity)
        body = kio_bytes(entity, tree)
        case = name, shape.__name__
        assert bytes(encode(key, version, tree)) == body, case
        assert from_kio(kio_read(entity, body)) == tree, case
        assert as_tree(entity, decode(key, version, b"head" + body, 4)) == tree, case


@pytest.mark.parametrize(("key", "version"), NAMED)
def test_an_empty_tree_gives_a_message_of_defaults(key: int, version: int) -> None:
    for name, (find, decode, encode) in DIRECTIONS.items():
        entity = find(key, version)
        body = kio_bytes(entity, {})
        assert bytes(encode(key, version, {})) == body, name
        decoded = as_tree(entity, decode(key, version, body, 0))
        assert decoded == from_kio(to_kio(entity, {})), name


@pytest.mark.parametrize(("find", "decode", "encode"), DIRECTIONS.values(), ids=DIRECTIONS)
@given(data=st.data())
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_message_has_the_bytes_and_the_values_of_kio(
    find: Any, decode: Any, encode: Any, data: st.DataObject
) -> None:
    key, version = data.draw(st.sampled_from(ADVERTISED))
    entity = find(key, version)
    tree = data.draw(trees(entity))
    body = kio_bytes(entity, tree)
    assert bytes(encode(key, version, tree)) == body
    expected = from_kio(to_kio(entity, tree))
    assert from_kio(kio_read(entity, body)) == expected
    assert as_tree(entity, decode(key, version, body, 0)) == expected


def test_an_encoder_takes_what_a_decoder_returns() -> None:
    for key, version in ADVERTISED:
        body = encode_request(key, version, full_tree(request_type(key, version)))
        decoded = decode_request(key, version, body, 0)
        assert encode_request(key, version, decoded.as_tree()) == body


def test_fields_of_other_versions_are_left_out() -> None:
    tree = {"topics": [{"name": "t", "is_internal": True}], "cluster_id": "c", "error_code": 3}
    assert encode_response(3, 0, tree) == encode_response(3, 0, {"topics": [{"name": "t"}]})


@pytest.mark.parametrize(
    "tree",
    [{"throttle_time_ms": 0}, {"topics": [{"name": "t", "partition": 1}]}],
    ids=["top", "nested"],
)
def test_a_field_of_no_version_is_a_mistake(tree: dict[str, Any]) -> None:
    with pytest.raises(UnknownFieldError, match="in any version"):
        encode_response(3, 12, tree)


@pytest.mark.parametrize(
    "tree",
    [
        {"topics": None},
        {"controller_id": "one"},
        {"controller_id": 2**31},
        {"brokers": [{"host": None}]},
        {"topics": [{"topic_id": "not a uuid"}]},
        {"topics": 5},
        {"topics": ["t"]},
    ],
)
def test_a_value_that_does_not_fit_is_a_mistake(tree: dict[str, Any]) -> None:
    with pytest.raises(EncodeError):
        encode_response(3, 12, tree)


def test_elements_that_are_encoded_already_give_the_same_bytes() -> None:
    partitions = [{"partition_index": n, "isr_nodes": (n,)} for n in range(300)]
    for version in range(14):
        path = ("topics", "partitions")
        parts = [
            b"".join(encode_element(3, version, path, each) for each in partitions[at : at + 7])
            for at in range(0, len(partitions), 7)
        ]
        tree, encoded = (
            {"topics": [{"name": "a", "partitions": each}, {"name": "b"}]}
            for each in (partitions, Encoded(len(partitions), parts))
        )
        assert encode_response(3, version, encoded) == encode_response(3, version, tree)
        out = bytearray()
        assert len(list(encode_response_in_steps(3, version, encoded, out))) >= len(parts) // 8
        assert out == encode_response(3, version, tree)


def test_numbers_are_packed_as_a_tree_is_encoded() -> None:
    path = ("topics", "partitions")
    for version in range(1, 12):
        pack = element_packer(2, version, path, ("partition_index", "timestamp", "leader_epoch"))
        tree = {"partition_index": 2**31 - 1, "timestamp": -1, "leader_epoch": 5}
        assert pack(*tree.values()) == encode_element(2, version, path, tree)
    with pytest.raises(ValueError, match="not numbers"):
        element_packer(3, 4, path, ("partition_index",))


def test_a_field_of_another_version_does_not_hide_one_of_no_version() -> None:
    topic = {"name": "t", "topic_id": UUID(int=1)}
    encode_response(3, 4, {"topics": [topic, topic]})
    with pytest.raises(UnknownFieldError, match="in any version"):
        encode_response(3, 4, {"topics": [topic, {**topic, "partition": 1}]})


def test_messages_show_their_fields_and_are_compared_by_them() -> None:
    body = encode_request(3, 4, {"topics": [{"name": "t"}], "allow_auto_topic_creation": True})
    request = decode_request(3, 4, body, 0)
    assert repr(request) == (
        "MetadataRequest(topics=(MetadataRequestTopic(name='t'),), allow_auto_topic_creation=True)"
    )
    assert request == decode_request(3, 4, body, 0)
    assert request != decode_request(3, 4, encode_request(3, 4, {}), 0)
    assert request != 5
