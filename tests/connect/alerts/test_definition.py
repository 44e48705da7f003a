"""The settings of alerts, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidemill.cli.server.settings_file import entries_in
from tidemill.connect.alerts.definition import AlertEntry, ReceiverEntry
from tidemill.errors import SettingsError

METRIC = {"name": "x", "metric": "m", "above": 1}
TOPIC = {"name": "x", "topic": "t", "above": 1}
HOOK = {"name": "r", "url": "http://h/"}


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"topic": "t"}, "one of metric and topic"),
        ({"metric": ""}, "one of metric and topic"),
        ({"above": None}, "needs above or below"),
        ({"measure": "count"}, "measure of a metric is one of"),
        ({"measure": "absent"}, "has no above or below"),
        ({"measure": "absent", "above": None, "by": ["a"]}, "can't have by"),
        ({"field": "cents"}, "measure = last needs field"),
        ({"filter": "a ="}, "invalid expression"),
        ({"summary": "${a b}"}, "invalid expression"),
        ({"labels": {"alertname": "x"}}, "have already"),
        ({"labels": {"a b": "x"}}, "should match pattern"),
        ({"window_s": 0}, "greater than or equal to 1"),
        ({"for_s": 1e12}, "less than or equal"),
        ({"abvoe": 1}, "[Ee]xtra"),
    ],
)
def test_an_invalid_rule_says_what_is_wrong(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        AlertEntry.model_validate({**METRIC, **more})


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"measure": "rate", "field": "x"}, "measure = last needs field"),
        ({"measure": "last"}, "measure = last needs field"),
        ({"measure": "value"}, "measure of a topic is one of"),
        ({"measure": "events", "above": None, "for_s": 1}, "has no for_s"),
    ],
)
def test_an_invalid_rule_on_a_topic_says_what_is_wrong(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        AlertEntry.model_validate({**TOPIC, **more})


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({**HOOK, "url": ""}, "kind = webhook needs url"),
        ({**HOOK, "url": "ftp://h/"}, "expected https://HOST"),
        ({**HOOK, "to": ["a@b"]}, "to is for kind = email"),
        ({**HOOK, "kind": "email"}, "kind = email needs smtp, sender, to"),
        ({"name": "r", "kind": "command"}, "kind = command needs command"),
        ({**HOOK, "secrets": ["whsec_abc"]}, "secrets contains a secret as plain text"),
        ({**HOOK, "password": "hunter2"}, "password contains a secret as plain text"),
        (
            {"name": "r", "kind": "email", "smtp": "h", "sender": "a@b\nBcc: c@d", "to": ["a@b"]},
            "a line end",
        ),
    ],
)
def test_an_invalid_receiver_says_what_is_wrong(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ReceiverEntry.model_validate(values)


def test_a_settings_file_with_a_wrong_key_names_the_right_one(tmp_path: Path) -> None:
    file = tmp_path / "tidemill.toml"
    file.write_text('[[alert]]\nname = "x"\nmetric = "m"\nabvoe = 1\n')
    with pytest.raises(SettingsError, match="unknown key abvoe") as caught:
        entries_in(file, AlertEntry)
    assert caught.value.hint == "Did you mean above?"
