"""Configs of single groups: what is accepted, what is in force, and what a restart keeps."""

from __future__ import annotations

import pytest

from tests.state.driver import MachineDriver
from tidemill.errors import TidemillError
from tidemill.log.errors import InvalidConfigError
from tidemill.state.catalog.group_configs import (
    DEFINITIONS,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    GroupConfigs,
)
from tidemill.state.catalog.types import AlterOp, ConfigChange, ConfigSource
from tidemill.state.errors import InvalidRequestError


def change(name: str, value: str | None, op: AlterOp = AlterOp.SET) -> ConfigChange:
    return ConfigChange(name, op, value)


def test_a_config_is_in_force_when_its_record_is_on_disk() -> None:
    configs = GroupConfigs({SESSION_TIMEOUT: 30_000})
    driver = MachineDriver(configs)
    outcome = configs.alter("g", [change(SESSION_TIMEOUT, "9000")])
    assert configs.number("g", SESSION_TIMEOUT) == 30_000
    driver.run(outcome)
    assert configs.number("g", SESSION_TIMEOUT) == 9000
    assert configs.number("other", SESSION_TIMEOUT) == 30_000
    assert configs.groups() == ["g"]
    sources = {each.name: (each.value, each.source) for each in configs.entries("g")}
    assert sources[SESSION_TIMEOUT] == ("9000", ConfigSource.DYNAMIC_GROUP)
    assert sources[HEARTBEAT_INTERVAL] == ("5000", ConfigSource.DEFAULT)
    assert sources.keys() == DEFINITIONS.keys()
    driver.run(configs.alter("g", [change(SESSION_TIMEOUT, None, AlterOp.DELETE)]))
    assert (configs.number("g", SESSION_TIMEOUT), configs.groups()) == (30_000, [])


def test_changes_that_follow_each_other_add_up_and_a_failed_one_is_forgotten() -> None:
    configs = GroupConfigs()
    driver = MachineDriver(configs)
    first = configs.alter("g", [change(SESSION_TIMEOUT, "9000")])
    second = configs.alter("g", [change(HEARTBEAT_INTERVAL, "1000")])
    driver.run(first)
    driver.run(second)
    assert configs.number("g", SESSION_TIMEOUT) == 9000
    lost = configs.replace("g", {})
    configs.write_failed(lost)
    assert not configs.replace("g", {SESSION_TIMEOUT: "9000", HEARTBEAT_INTERVAL: "1000"}).records


INVALID: list[tuple[str, ConfigChange, type[TidemillError]]] = [
    ("g", change("no.such.config", "1"), InvalidConfigError),
    ("g", change(SESSION_TIMEOUT, "soon"), InvalidConfigError),
    ("g", change(SESSION_TIMEOUT, "5"), InvalidConfigError),
    ("g", change(HEARTBEAT_INTERVAL, "45000"), InvalidConfigError),
    ("g", change(SESSION_TIMEOUT, "9000", AlterOp.APPEND), InvalidConfigError),
    ("", change(SESSION_TIMEOUT, "9000"), InvalidRequestError),
    ("g" * 40_000, change(SESSION_TIMEOUT, "9000"), InvalidRequestError),
]


@pytest.mark.parametrize(("group_id", "wrong", "error"), INVALID)
def test_an_invalid_config_is_refused(
    group_id: str, wrong: ConfigChange, error: type[TidemillError]
) -> None:
    configs = GroupConfigs()
    with pytest.raises(error):
        configs.alter(group_id, [wrong])
    assert configs.groups() == []


def test_validation_changes_nothing() -> None:
    configs = GroupConfigs()
    outcome = configs.alter("g", [change(SESSION_TIMEOUT, "9000")], validate_only=True)
    assert outcome.records == []
    assert configs.alter("g", [change(SESSION_TIMEOUT, "9000")]).records


def test_records_of_others_are_left_alone() -> None:
    assert not GroupConfigs().replay(b'{"kind":"topic","name":"t"}', b"{}")
