"""The messages that our Kafka client needs in each process, written out.

kio describes all messages, but takes longer to import than such a process takes to connect. So the
structures of these few are here, and ``find`` imports kio for all others. A test compares them
with kio's. Knows the shape of messages only. Sources: KIP-98 (transactions), KIP-447 (stable
offsets), KIP-482 (flexible versions), KIP-511 (ApiVersions).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from tidemill.kafka_codec.fields import Field, Structure, cached

Kind = Literal["request", "response"]

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_FETCH, FIND_COORDINATOR = 0, 1, 2, 3, 9, 10
SASL_HANDSHAKE, API_VERSIONS, INIT_PRODUCER_ID = 17, 18, 22
ADD_PARTITIONS, ADD_OFFSETS, END_TRANSACTION, COMMIT_OFFSETS, SASL_AUTHENTICATE = 24, 25, 26, 28, 36

_FIRST_FLEXIBLE = {PRODUCE: 9, FETCH: 12}
"""For the messages that are encoded by hand."""

_ERROR = "throttle_time:int32 error_code:int16"
_PRODUCER = "transactional_id:string producer_id:int64 producer_epoch:int16"
_MESSAGES: Mapping[tuple[int, str], tuple[range, str, str]] = {
    (API_VERSIONS, "ApiVersions"): (
        range(1),
        "",
        "error_code:int16 api_keys:[api_key:int16 min_version:int16 max_version:int16]",
    ),
    (SASL_HANDSHAKE, "SaslHandshake"): (
        range(1, 2),
        "mechanism:string",
        "error_code:int16 mechanisms:[string]",
    ),
    (SASL_AUTHENTICATE, "SaslAuthenticate"): (
        range(1),
        "auth_bytes:bytes",
        "error_code:int16 error_message:string? auth_bytes:bytes",
    ),
    (METADATA, "Metadata"): (
        range(4, 5),
        "topics:[name:string]? allow_auto_topic_creation:bool=1",
        "throttle_time:int32 brokers:[node_id:int32 host:string port:int32 rack:string?] "
        "cluster_id:string? controller_id:int32 topics:[error_code:int16 name:string "
        "is_internal:bool partitions:[error_code:int16 partition_index:int32 leader_id:int32 "
        "replica_nodes:[int32] isr_nodes:[int32]]]",
    ),
    (LIST_OFFSETS, "ListOffsets"): (
        range(2, 3),
        "replica_id:int32 isolation_level:int8 "
        "topics:[name:string partitions:[partition_index:int32 timestamp:int64]]",
        "throttle_time:int32 topics:[name:string "
        "partitions:[partition_index:int32 error_code:int16 timestamp:int64 offset:int64]]",
    ),
    (FIND_COORDINATOR, "FindCoordinator"): (
        range(1, 3),
        "key:string key_type:int8",
        f"{_ERROR} error_message:string? node_id:int32 host:string port:int32",
    ),
    (INIT_PRODUCER_ID, "InitProducerId"): (
        range(2),
        "transactional_id:string? transaction_timeout:int32",
        f"{_ERROR} producer_id:int64 producer_epoch:int16",
    ),
    (ADD_PARTITIONS, "AddPartitionsToTxn"): (
        range(3),
        "v3_and_below_transactional_id:string v3_and_below_producer_id:int64 "
        "v3_and_below_producer_epoch:int16 v3_and_below_topics:[name:string partitions:[int32]]",
        "throttle_time:int32 results_by_topic_v3_and_below:[name:string "
        "results_by_partition:[partition_index:int32 partition_error_code:int16]]",
    ),
    (ADD_OFFSETS, "AddOffsetsToTxn"): (range(3), f"{_PRODUCER} group_id:string", _ERROR),
    (END_TRANSACTION, "EndTxn"): (range(3), f"{_PRODUCER} committed:bool", _ERROR),
    (COMMIT_OFFSETS, "TxnOffsetCommit"): (
        range(2, 3),
        "transactional_id:string group_id:string producer_id:int64 producer_epoch:int16 "
        "topics:[name:string partitions:[partition_index:int32 committed_offset:int64 "
        "committed_leader_epoch:int32=-1 committed_metadata:string?]]",
        "throttle_time:int32 topics:[name:string "
        "partitions:[partition_index:int32 error_code:int16]]",
    ),
    (OFFSET_FETCH, "OffsetFetch"): (
        range(7, 8),  # the first one with stable offsets
        "group_id:string topics:[name:string partition_indexes:[int32]]? require_stable:bool",
        "throttle_time:int32 topics:[name:string partitions:[partition_index:int32 "
        "committed_offset:int64 committed_leader_epoch:int32 metadata:string? error_code:int16]] "
        "error_code:int16",
    ),
}
"""By key and name of an API: the versions, all of which have these fields, and the fields of
request and response. A list is in brackets, what can be null has a question mark, and a default
that is not 0 follows an equals sign."""
_DEFAULTS: Mapping[str, object] = {"string": "", "bytes": b""}
_FLEXIBLE = frozenset({OFFSET_FETCH})

_NAMES = {PRODUCE: "Produce", FETCH: "Fetch"} | dict(_MESSAGES.keys())

DECLARED: Mapping[int, range] = {api: versions for (api, _), (versions, *_) in _MESSAGES.items()}
"""The versions that are written out, by API."""


def needs(*apis: int) -> dict[int, tuple[int, int]]:
    """Return the least and greatest version of each API that is written out."""
    return {api: (DECLARED[api][0], DECLARED[api][-1]) for api in apis}


def find(kind: Kind, api: int, version: int) -> Structure:
    """Return the structure of a message. Raises kio's index errors if there is none."""
    if version in DECLARED.get(api, ()):
        return _declared(kind, api)
    from tidemill.kafka_codec import schema

    return schema.structure(kind, api, version)


@cached
def is_flexible(api: int, version: int) -> bool:
    """Whether this version of an API has compact lengths and tagged fields (KIP-482)."""
    first = _FIRST_FLEXIBLE.get(api)
    return find("request", api, version).flexible if first is None else version >= first


def api_name(api: int) -> str:
    """Return the name of an API as Kafka writes it, such as ``ListTransactions``."""
    if api in _NAMES:
        return _NAMES[api]
    from tidemill.kafka_codec import schema

    return schema.api_name(api)


@cached
def _declared(kind: Kind, api: int) -> Structure:
    name = _NAMES[api]
    texts = _MESSAGES[api, name]
    tokens = re.findall(r"\w+:|\w+|[][?]|=-?\d+", texts[1] if kind == "request" else texts[2])
    return _structure(f"{name}{kind.title()}", tokens[::-1], flexible=api in _FLEXIBLE)


def _structure(name: str, tokens: list[str], *, flexible: bool) -> Structure:
    """Return the structure that the last tokens describe, and remove these."""
    fields: list[Field] = []
    while tokens and tokens[-1] != "]":
        field = tokens.pop().removesuffix(":")
        is_array = tokens[-1] == "["
        structure: Structure | None = None
        kafka_type = tokens.pop()
        if is_array and tokens[-1].endswith(":"):
            structure, kafka_type = _structure(field, tokens, flexible=flexible), "struct"
        elif is_array:
            kafka_type = tokens.pop()
        if is_array:
            tokens.pop()
        if nullable := tokens[-1:] == ["?"]:
            tokens.pop()
        default: object = () if is_array else None if nullable else _DEFAULTS.get(kafka_type, 0)
        if tokens and tokens[-1].startswith("="):
            default = int(tokens.pop()[1:])
        fields.append(Field(field, kafka_type, structure, is_array, nullable, None, default))
    return Structure(name, flexible, tuple(fields))
