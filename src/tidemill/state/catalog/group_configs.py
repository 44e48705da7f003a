"""The configs of single groups, as a state machine whose records are in the catalog's topic.

A group can have configs before it exists, and keeps them when it is deleted, as in Apache Kafka.
This module must not know a group.

Source: KIP-848 (group configs), KIP-339 (incremental alteration).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.log.config.definition import ConfigDef, ConfigType, between
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

MAX_GROUPS = 10_000
"""Groups with configs."""
MAX_ID_BYTES = 32_000


def _define(name: str, default: str, low: int, high: int, doc: str) -> ConfigDef:
    check = between(low, high)
    return ConfigDef(
        name=name,
        field="",
        type=ConfigType.INT,
        default=default,
        default_value=int(default),
        doc=doc,
        valid=check.text,
        synonyms=(),
        fixed=False,
        internal=False,
        check=check,
    )


DEFINITIONS: dict[str, ConfigDef] = {
    each.name: each
    for each in (
        _define(
            SESSION_TIMEOUT,
            "45000",
            1000,
            1_800_000,
            "Session timeout of the group's members with the consumer protocol.",
        ),
        _define(
            HEARTBEAT_INTERVAL,
            "5000",
            100,
            600_000,
            "How often the group's members with the consumer protocol send a heartbeat.",
        ),
    )
}
"""The configs that a group can have."""


class GroupConfigs:
    """The configs of all groups.

    Args:
        defaults: values of the broker's settings, by the name of the group's config.
    """

    def __init__(self, defaults: Mapping[str, int] | None = None) -> None:
        self._defaults = {name: each.default_value for name, each in DEFINITIONS.items()}
        self._defaults |= defaults or {}
        self._stored: dict[str, dict[str, str]] = {}
        self._latest: dict[str, dict[str, str]] = {}
        """With the records that are being written."""

    # --- state that survives a restart -----------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Apply one record of the catalog's topic; return False if it is of another kind.

        Raises:
            InvalidRecordError, FormatVersionError: the record can't be read.
        """
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

    def value(self, group_id: str, name: str) -> int:
        """Return the value that is in force for a group."""
        own = self._stored.get(group_id, {}).get(name)
        return self._defaults[name] if own is None else int(DEFINITIONS[name].parse(own))

    def entries(self, group_id: str) -> list[ConfigEntry]:
        """Return the configs of a group as admins see them."""
        own = self._stored.get(group_id, {})
        entries = []
        for name, each in DEFINITIONS.items():
            default = str(self._defaults[name])
            layers = [(f"group.{name}", default, ConfigSource.DEFAULT)]
            if name in own:
                layers.insert(0, (name, own[name], ConfigSource.DYNAMIC_GROUP))
            entries.append(
                ConfigEntry(
                    name,
                    own.get(name, default),
                    ConfigSource.DYNAMIC_GROUP if name in own else ConfigSource.DEFAULT,
                    each.type,
                    doc=each.doc,
                    synonyms=tuple(layers),
                )
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
        """Set a group's configs to exactly these (AlterConfigs). None leaves a config out.

        Raises:
            InvalidConfigError, InvalidRequestError, PolicyViolationError: see ``alter``.
        """
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
        values = dict(self._defaults)
        for name, value in configs.items():
            if name not in DEFINITIONS:
                raise InvalidConfigError(
                    f"unknown config {name!r} of a group",
                    hint=f"Use {' or '.join(DEFINITIONS)}.",
                )
            values[name] = DEFINITIONS[name].parse(value)
        if values[HEARTBEAT_INTERVAL] >= values[SESSION_TIMEOUT]:
            raise InvalidConfigError(
                f"{HEARTBEAT_INTERVAL}={values[HEARTBEAT_INTERVAL]} must be below "
                f"{SESSION_TIMEOUT}={values[SESSION_TIMEOUT]}"
            )


def _set(configs: dict[str, dict[str, str]], group_id: str, value: dict[str, str]) -> None:
    if value:
        configs[group_id] = value
    else:
        configs.pop(group_id, None)
