"""The records of ``__tidemill_security``, as JSON. The topic is compacted.

A key is an array: a kind and the identity. A value is an object with a version ``v``: a change of
its meaning increases the version, and a reader rejects a version that it does not know. Knows the
bytes only.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import orjson

from tidemill.log.errors import FormatVersionError, InvalidRecordError
from tidemill.state.internal_topics import SECURITY_TOPIC
from tidemill.state.outcome import StateRecord
from tidemill.state.security.types import (
    Operation,
    Pattern,
    Permission,
    QuotaEntity,
    QuotaValues,
    ResourceKind,
    Rule,
    ScramCredential,
    ScramMechanism,
    TopicPermission,
)

VERSION = 1
SCRAM, ADMIN, RULE, QUOTA, SECRET = "scram", "admin", "rule", "quota", "secret"
PERMISSION, TOPIC_PERMISSION = "permission", "topic-permission"

_LENGTHS = {SCRAM: 3, ADMIN: 2, RULE: 8, QUOTA: 4, SECRET: 1, PERMISSION: 2, TOPIC_PERMISSION: 3}
"""Kind -> how many elements its keys have."""

Key = tuple[Any, ...]
"""A kind, and what identifies a thing of this kind."""


def scram_record(
    user: str, mechanism: ScramMechanism, credential: ScramCredential | None
) -> StateRecord:
    """Return the record that sets or deletes the keys of a user."""
    value = None
    if credential is not None:
        value = {
            "salt": _text(credential.salt),
            "iterations": credential.iterations,
            "stored_key": _text(credential.stored_key),
            "server_key": _text(credential.server_key),
        }
    return _record([SCRAM, user, mechanism.value], value)


def admin_record(user: str, *, is_admin: bool) -> StateRecord:
    """Return the record that a user is a super user, or is not any more."""
    return _record([ADMIN, user], {} if is_admin else None)


def secret_record(secret: bytes) -> StateRecord:
    """Return the record of the secret that the salts of unknown users are derived from."""
    return _record([SECRET], {"secret": _text(secret)})


def rule_record(rule: Rule, *, exists: bool) -> StateRecord:
    """Return the record that adds or deletes a rule."""
    key = [
        RULE,
        rule.kind.name,
        rule.pattern.name,
        rule.name,
        rule.principal,
        rule.host,
        rule.operation.name,
        "ALLOW" if rule.allows else "DENY",
    ]
    return _record(key, {} if exists else None)


def permission_record(user: str, permission: Permission | None) -> StateRecord:
    """Return the record that sets or deletes the permissions of an AMQP user."""
    return _record([PERMISSION, user], None if permission is None else permission._asdict())


def topic_permission_record(
    user: str, exchange: str, permission: TopicPermission | None
) -> StateRecord:
    """Return the record that sets or deletes the topic permissions of a user on an exchange."""
    value = None if permission is None else permission._asdict()
    return _record([TOPIC_PERMISSION, user, exchange], value)


def quota_record(entity: QuotaEntity, values: QuotaValues) -> StateRecord:
    """Return the record that sets all quotas of an entity, or deletes them if there are none."""
    return _record([QUOTA, *entity], {"values": dict(values)} if values else None)


def decode_key(key: bytes) -> Key:
    """Return kind and identity of a record, as far as they are known.

    Raises:
        InvalidRecordError: it is not an array that begins with a kind.
    """
    try:
        fields = orjson.loads(key)
    except orjson.JSONDecodeError as error:
        raise _invalid("a key", key) from error
    if not isinstance(fields, list) or not fields or not isinstance(fields[0], str):
        raise _invalid("a key", key)
    if len(fields) != _LENGTHS.get(fields[0], len(fields)):
        raise _invalid("a key", key)
    return tuple(fields)


def decode_mechanism(name: str) -> ScramMechanism:
    """Return the mechanism in the key of a user's record."""
    try:
        return ScramMechanism(name)
    except ValueError as error:
        raise _invalid("a credential", repr(name).encode()) from error


def decode_scram(value: bytes) -> ScramCredential:
    """Return the keys of a user."""
    fields = _fields(value)
    try:
        return ScramCredential(
            _bytes(fields["salt"]),
            int(fields["iterations"]),
            _bytes(fields["stored_key"]),
            _bytes(fields["server_key"]),
        )
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise _invalid("a credential", b"(not shown)") from error


def decode_secret(value: bytes) -> bytes:
    """Return the secret."""
    try:
        return _bytes(_fields(value)["secret"])
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise _invalid("the secret", b"(not shown)") from error


def decode_rule(key: Key) -> Rule:
    """Return the rule of a key."""
    try:
        _, kind, pattern, name, principal, host, operation, effect = key
        rule = Rule(
            ResourceKind[kind],
            Pattern[pattern],
            name,
            principal,
            host,
            Operation[operation],
            {"ALLOW": True, "DENY": False}[effect],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise _invalid("a rule", repr(key).encode()) from error
    if not all(isinstance(each, str) for each in (name, principal, host)):
        raise _invalid("a rule", repr(key).encode())
    return rule


def decode_permission(value: bytes) -> Permission:
    """Return the permissions of a user."""
    fields = _fields(value)
    try:
        return Permission(str(fields["configure"]), str(fields["write"]), str(fields["read"]))
    except KeyError as error:
        raise _invalid("a permission", value) from error


def decode_topic_permission(value: bytes) -> TopicPermission:
    """Return the topic permissions of a user."""
    fields = _fields(value)
    try:
        return TopicPermission(str(fields["write"]), str(fields["read"]))
    except KeyError as error:
        raise _invalid("a topic permission", value) from error


def decode_entity(key: Key) -> QuotaEntity:
    """Return the entity of a quota."""
    names = key[1:]
    if len(names) != 3 or not all(name is None or isinstance(name, str) for name in names):
        raise _invalid("a quota", repr(key).encode())
    return QuotaEntity(*names)


def decode_quota(value: bytes) -> QuotaValues:
    """Return the values of an entity."""
    values = _fields(value).get("values")
    if not isinstance(values, dict) or not all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in values.values()
    ):
        raise _invalid("a quota", value)
    return {name: float(each) for name, each in values.items()}


def _record(key: list[Any], value: Mapping[str, Any] | None) -> StateRecord:
    data = None if value is None else orjson.dumps({"v": VERSION, **value})
    return StateRecord(orjson.dumps(key), data)


def _fields(value: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise _invalid("a value", b"(not shown)") from error
    if not isinstance(fields, dict):
        raise _invalid("a value", b"(not shown)")
    if fields.get("v") != VERSION:
        raise FormatVersionError(
            f"a record of {SECURITY_TOPIC} has version {fields.get('v')}, not {VERSION}",
            hint="Use a newer version of tidemill.",
        )
    return fields


def _invalid(what: str, data: bytes) -> InvalidRecordError:
    return InvalidRecordError(f"{what} in {SECURITY_TOPIC} is malformed: {data[:200]!r}")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
