"""The configs of single groups, as a state machine whose records are in the catalog's topic.

A group can have configs before it exists, and keeps them when it is deleted, as in Apache Kafka.
This module must not know a group.

Source: KIP-848 and KIP-932 (group configs), KIP-339 (incremental alteration).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.log.config.definition import Check, ConfigDef, ConfigType, between, text_of
from tidemill.log.errors import InvalidConfigError
from tidemill.state.catalog.format import (
    GROUP_CONFIG,
    decode_group_configs,
    decode_key,
    encode_group_configs,
)
from tidemill.state.catalog.types import AlterOp, ConfigChange, ConfigEntry, ConfigSource
from tidemill.state.errors import InvalidRequestError, PolicyViolationError
from tidemill.state.outcome import Outcome

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
SHARE_SESSION_TIMEOUT = "share.session.timeout.ms"
SHARE_HEARTBEAT_INTERVAL = "share.heartbeat.interval.ms"
SHARE_RECORD_LOCK = "share.record.lock.duration.ms"
SHARE_DELIVERY_LIMIT = "share.delivery.count.limit"
SHARE_MAX_RECORD_LOCKS = "share.partition.max.record.locks"
SHARE_OFFSET_RESET = "share.auto.offset.reset"
SHARE_ISOLATION = "share.isolation.level"
SHARE_RENEW = "share.renew.acknowledge.enable"

MAX_GROUPS = 10_000
"""Groups with configs."""
MAX_ID_BYTES = 32_000


_DURATION = re.compile(
    r"by_duration:P(?!$)(?:(\d{1,6})D)?"
    r"(?:T(?!$)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})(?:\.(\d{1,9}))?S)?)?"
)
EARLIEST, LATEST = "earliest", "latest"
READ_COMMITTED, READ_UNCOMMITTED = _ISOLATIONS = "read_committed", "read_uncommitted"


def reset_duration_ms(value: str) -> int | None:
    """Return the duration of ``by_duration:<ISO 8601>`` in milliseconds; None if it is not one."""
    found = _DURATION.fullmatch(value)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(found[part] or 0) for part in range(1, 5))
    millis = int(((found[5] or "") + "000")[:3])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + millis


def _is_reset(value: str) -> bool:
    return value in (EARLIEST, LATEST) or reset_duration_ms(value) is not None


_TYPES = {int: ConfigType.INT, str: ConfigType.STRING, bool: ConfigType.BOOLEAN}

DEFINITIONS: dict[str, ConfigDef] = {
    name: ConfigDef(name, _TYPES[type(default)], text_of(default), default, doc, check)
    for name, default, check, doc in (
        (
            SESSION_TIMEOUT,
            45_000,
            between(1000, 1_800_000),
            "Session timeout of the group's members with the consumer protocol.",
        ),
        (
            HEARTBEAT_INTERVAL,
            5000,
            between(100, 600_000),
            "How often the group's members with the consumer protocol send a heartbeat.",
        ),
        (
            SHARE_SESSION_TIMEOUT,
            45_000,
            between(1000, 1_800_000),
            "Session timeout of the members of the share group.",
        ),
        (
            SHARE_HEARTBEAT_INTERVAL,
            5000,
            between(100, 600_000),
            "How often the members of the share group send a heartbeat.",
        ),
        (
            SHARE_RECORD_LOCK,
            30_000,
            between(1000, 3_600_000),
            "How long a member of the share group can keep a record before it is delivered again.",
        ),
        (
            SHARE_DELIVERY_LIMIT,
            5,
            between(2, 25),
            "How often the share group delivers a record before it gives up.",
        ),
        (
            SHARE_MAX_RECORD_LOCKS,
            2000,
            between(100, 10_000),
            "Most records of a partition that the share group has in flight.",
        ),
        (
            SHARE_OFFSET_RESET,
            LATEST,
            Check("earliest, latest or by_duration:<ISO 8601 duration>", _is_reset),
            "Where the share group begins in a partition that it has not read yet.",
        ),
        (
            SHARE_ISOLATION,
            READ_UNCOMMITTED,
            Check("[read_committed, read_uncommitted]", _ISOLATIONS.__contains__),
            "Whether the share group delivers records of transactions that are not committed.",
        ),
        (
            SHARE_RENEW,
            True,
            None,
            "Whether members of the share group can extend the time that they keep a record.",
        ),
    )
}
"""The configs that a group can have."""
_BELOW = {HEARTBEAT_INTERVAL: SESSION_TIMEOUT, SHARE_HEARTBEAT_INTERVAL: SHARE_SESSION_TIMEOUT}


class GroupConfigs:
    """The configs of all groups.

    Args:
        defaults: values of the broker's settings, by the name of the group's config.
    """

    def __init__(self, defaults: Mapping[str, int | bool | str] | None = None) -> None:
        self._defaults: dict[str, int | bool | str] = {
            name: each.default_value for name, each in DEFINITIONS.items()
        }
        self._defaults |= defaults or {}
        self._stored: dict[str, dict[str, str]] = {}
        self._latest: dict[str, dict[str, str]] = {}
        """With the records that are being written."""

    # --- state that survives a restart -----------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Apply one record of the catalog's topic; return False if it is of another kind."""
        kind, group_id = decode_key(key)
        if kind != GROUP_CONFIG:
            return False
        configs = {} if value is None else decode_group_configs(value)
        _set(self._stored, group_id, configs)
        _set(self._latest, group_id, configs)
        return True

    def write_failed(self, outcome: Outcome[Any]) -> None:
        """Forget the records of an outcome that could not be written."""
        for record in outcome.records:
            group_id = decode_key(record.key)[1]
            _set(self._latest, group_id, self._stored.get(group_id, {}))

    # --- views -----------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Return the groups that have configs, sorted."""
        return sorted(self._stored)

    def number(self, group_id: str, name: str) -> int:
        """Return the value of a numeric config that is in force for a group."""
        return int(self._value(group_id, name))

    def text(self, group_id: str, name: str) -> str:
        """Return the value of a config with text that is in force for a group."""
        return str(self._value(group_id, name))

    def flag(self, group_id: str, name: str) -> bool:
        """Return the value of a boolean config that is in force for a group."""
        return bool(self._value(group_id, name))

    def _value(self, group_id: str, name: str) -> int | bool | str:
        own = self._stored.get(group_id, {}).get(name)
        if own is None:
            return self._defaults[name]
        parsed: int | bool | str = DEFINITIONS[name].parse(own)
        return parsed

    def entries(self, group_id: str) -> list[ConfigEntry]:
        """Return the configs of a group as admins see them."""
        own = self._stored.get(group_id, {})
        entries = []
        for name, each in DEFINITIONS.items():
            layers = [(f"group.{name}", text_of(self._defaults[name]), ConfigSource.DEFAULT)]
            if name in own:
                layers.insert(0, (name, own[name], ConfigSource.DYNAMIC_GROUP))
            _, value, source = layers[0]
            entries.append(
                ConfigEntry(name, value, source, each.type, doc=each.doc, synonyms=tuple(layers))
            )
        return entries

    # --- commands --------------------------------------------------------------------------------

    def alter(
        self, group_id: str, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> Outcome[None]:
        """Change some configs of a group (IncrementalAlterConfigs).

        Raises:
            InvalidConfigError: a config is unknown or its value is invalid.
            InvalidRequestError: the group id is empty or too long.
            PolicyViolationError: too many groups have configs.
        """
        configs = dict(self._latest.get(group_id, {}))
        for change in changes:
            if change.op is AlterOp.DELETE:
                configs.pop(change.name, None)
            elif change.op is AlterOp.SET:
                configs[change.name] = change.value or ""
            else:
                raise InvalidConfigError(f"config {change.name!r} of a group is not a list")
        return self.replace(group_id, configs, validate_only=validate_only)

    def replace(
        self, group_id: str, configs: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Outcome[None]:
        """Set a group's configs to exactly these (AlterConfigs). None leaves a config out."""
        if not group_id or len(group_id.encode()) > MAX_ID_BYTES:
            raise InvalidRequestError(f"a group id must have 1 to {MAX_ID_BYTES} bytes")
        kept = {name: value for name, value in configs.items() if value is not None}
        self._check(kept)
        before = self._latest.get(group_id, {})
        if kept == before or validate_only:
            return Outcome(None)
        if not before and len(self._latest) >= MAX_GROUPS:
            raise PolicyViolationError(f"{MAX_GROUPS} groups have configs: no more are allowed")
        _set(self._latest, group_id, kept)
        return Outcome(None, [encode_group_configs(group_id, kept)])

    def _check(self, configs: Mapping[str, str]) -> None:
        values: dict[str, Any] = dict(self._defaults)
        for name, value in configs.items():
            if name not in DEFINITIONS:
                raise InvalidConfigError(
                    f"unknown config {name!r} of a group",
                    hint=f"Use one of {', '.join(DEFINITIONS)}.",
                )
            values[name] = DEFINITIONS[name].parse(value)
        for interval, timeout in _BELOW.items():
            if values[interval] >= values[timeout]:
                raise InvalidConfigError(
                    f"{interval}={values[interval]} must be below {timeout}={values[timeout]}"
                )


def _set(configs: dict[str, dict[str, str]], group_id: str, value: dict[str, str]) -> None:
    if value:
        configs[group_id] = value
    else:
        configs.pop(group_id, None)
