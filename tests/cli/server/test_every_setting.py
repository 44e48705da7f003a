"""Each setting, given in each way, is what ``config show`` lists and what the broker starts with.

The ways are a flag of its own (where there is one), ``--set``, the environment and the file. The
settings are not listed here, so a new one is tested as soon as it is declared.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_runner import CliRunner
from tidemill import telemetry
from tidemill.cli.main import app
from tidemill.cli.server import process
from tidemill.cli.server.config import load_settings
from tidemill.cli.server.settings_file import LoadedSettings, known_settings
from tidemill.errors import SettingsError
from tidemill.settings import SettingDef, Settings

FLAGS = {"data_dir": "--data-dir", "kafka.port": "--kafka-port", "host": "--host"}
SETTINGS = known_settings()
WAYS = ("flag", "--set", "environment", "file", "named file")
CHECKED = {
    "console.mask": [f"{name}:card.number" for name in ("a", "b", "c")],
    "gateway.amqp_url": [f"amqp://{name}:5672/" for name in ("a", "b", "c")],
    "gateway.sql_memory": ["100MB", "2GB", "64 KB"],
    "gateway.logins": ["basic", "bearer", "basic,bearer"],
    "hooks.public_url": [f"https://{name}.example.org" for name in ("a", "b", "c")],
    "telemetry.metrics_names": ["rabbitmq", "kafka_exporter", "kafka_exporter,rabbitmq"],
}
"""Texts that are checked when they are loaded, with three valid values."""
EACH_WAY = [(key, way) for key in SETTINGS for way in WAYS if way != "flag" or key in FLAGS]


@dataclass
class Given:
    """A setting's value, as it is written in each way and as it is shown and used."""

    text: str
    toml: str
    expected: object
    shown_key: str

    @classmethod
    def of(cls, definition: SettingDef) -> Given:
        """Return a valid value that is not the default."""
        key, default = definition.key, definition.default
        if definition.is_map:
            configs = {"retention.ms": "12345"}
            text = json.dumps(configs)
            return cls(text, '{"retention.ms" = 12345}', configs, f"{key}.retention.ms")
        if isinstance(default, bool):
            text = "false" if default else "true"
            return cls(text, text, not default, key)
        if definition.type.startswith("integer"):
            number = int(default) + 1 if isinstance(default, int) else 4242
            return cls(str(number), str(number), number, key)
        options = definition.type.split(", ")
        text = CHECKED.get(key, ["other"])[0]
        if options[1:]:
            text = next(option for option in options if option != default)
        return cls(text, f'"{text}"', Path(text) if definition.is_path else text, key)


@dataclass
class Call:
    """A call of a command, with all that it is given in one way."""

    arguments: list[str]
    env: dict[str, str]
    origins: dict[str, str]


def call(values: dict[str, Given], way: str) -> Call:
    """Return the arguments and variables for the values, and write a file if the way needs one."""
    made = Call([], {}, {})
    lines: dict[str, list[str]] = {}
    name = "tidemill.toml" if way == "file" else "named.toml"
    for key, given in values.items():
        if way == "flag":
            made.arguments += [FLAGS[key], given.text]
        elif way == "--set":
            made.arguments += ["--set", f"{key}={given.text}"]
        elif way == "environment":
            made.env[SETTINGS[key].env] = given.text
        else:
            section, _, leaf = key.rpartition(".")
            lines.setdefault(section, []).append(f"{leaf} = {given.toml}")
        variable = {"environment": SETTINGS[key].env, "flag": FLAGS.get(key, "")}
        made.origins[key] = variable.get(way, "--set" if way == "--set" else name)
    if lines:
        text = [f"[{section}]\n" * bool(section) + "\n".join(lines[section]) for section in lines]
        Path(name).write_text("\n".join(text))
        made.arguments += [] if way == "file" else ["--config", name]
    return made


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for definition in SETTINGS.values():
        monkeypatch.delenv(definition.env, raising=False)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, str]]:
    """The settings and the log level of each broker that a command has started."""
    starts: list[tuple[Settings, str]] = []
    levels: list[str] = []

    def configure(level: str, *_: object, **__: object) -> None:
        levels.append(level)

    def run(loaded: LoadedSettings, *_: object, **__: object) -> None:
        starts.append((loaded.settings, levels[-1]))

    monkeypatch.setattr(telemetry, "configure", configure)
    monkeypatch.setattr(process, "run", run)
    return starts


def invoke(command: str, made: Call) -> Any:
    return CliRunner().invoke(app, [*command.split(), *made.arguments], env=made.env)


@pytest.mark.parametrize("way", WAYS)
def test_config_show_lists_the_value_and_the_origin_of_each_setting(way: str) -> None:
    values = {key: Given.of(SETTINGS[key]) for key in (FLAGS if way == "flag" else SETTINGS)}
    made = call(values, way)
    shown = invoke("config show --json", made)
    assert shown.exit_code == 0, shown.stderr
    listed = json.loads(shown.stdout)
    for key, given in values.items():
        expected = given.expected
        if isinstance(expected, dict):
            (expected,) = expected.values()
        elif isinstance(expected, Path):
            expected = str(expected)
        assert listed.pop(given.shown_key) == {"value": expected, "origin": made.origins[key]}
    assert all(each["origin"] == "default" for each in listed.values())


@pytest.mark.parametrize("command", ["serve", "dev"])
@pytest.mark.parametrize("way", WAYS)
def test_a_broker_starts_with_each_value(
    way: str, command: str, started: list[tuple[Settings, str]]
) -> None:
    values = {key: Given.of(SETTINGS[key]) for key in (FLAGS if way == "flag" else SETTINGS)}
    done = invoke(command, call(values, way))
    assert done.exit_code == 0, done.stderr
    ((settings, level),) = started
    for key, given in values.items():
        assert settings.value(key) == given.expected
    if "telemetry.level" in values:
        assert level == values["telemetry.level"].text


@pytest.mark.parametrize(("key", "way"), EACH_WAY)
def test_a_value_alone_changes_no_other_setting(
    key: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Given.of(SETTINGS[key])
    made = call({key: given}, way)
    loaded = _loaded(made, monkeypatch)
    assert loaded.settings.value(key) == given.expected
    assert loaded.origins == {given.shown_key: made.origins[key]}
    for other in SETTINGS.values():
        if other.key != key:
            assert loaded.settings.value(other.key) == other.default


def _loaded(made: Call, monkeypatch: pytest.MonkeyPatch) -> LoadedSettings:
    """Load the settings as the commands do."""
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    options: dict[str, Any] = {"config": None}
    names = {"--data-dir": "data_dir", "--kafka-port": "port", "--host": "host"}
    for flag, text in zip(made.arguments[::2], made.arguments[1::2], strict=True):
        if flag == "--set":
            options.setdefault("settings", []).append(text)
        elif flag == "--config":
            options["config"] = Path(text)
        else:
            kinds: dict[str, Any] = {"--data-dir": Path, "--kafka-port": int}
            options[names[flag]] = kinds.get(flag, str)(text)
    return load_settings(**options)


@pytest.mark.parametrize(
    "key", [key for key, each in SETTINGS.items() if each.type != "true or false"]
)
def test_set_overrides_the_environment_and_that_the_file(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_file, in_environment, in_flag = _three_values(SETTINGS[key])
    call({key: in_file}, "file")
    assert load_settings(None).settings.value(key) == in_file.expected
    monkeypatch.setenv(SETTINGS[key].env, in_environment.text)
    assert load_settings(None).settings.value(key) == in_environment.expected
    flags = [f"{key}={in_flag.text}"]
    assert load_settings(None, settings=flags).settings.value(key) == in_flag.expected


def _three_values(definition: SettingDef) -> list[Given]:
    """Return three different valid values for a setting."""
    key = definition.key
    if definition.is_map:
        tables = [{"retention.ms": text} for text in ("11", "22", "33")]
        return [
            Given(json.dumps(t), json.dumps(t).replace(":", " ="), dict(t), key) for t in tables
        ]
    if definition.type.startswith("integer"):
        low = definition.default if isinstance(definition.default, int) else 4000
        return [Given(str(low + n), str(low + n), low + n, key) for n in range(3)]
    options = definition.type.split(", ")
    words = options[:3] if options[1:] else CHECKED.get(key, ["one", "two", "three"])
    return [Given(w, f'"{w}"', Path(w) if definition.is_path else w, key) for w in words]


def _wrong(definition: SettingDef) -> tuple[Given, str]:
    """Return an invalid value for a setting, and what the error says about it."""
    key = definition.key
    if definition.type in ("path", "text"):
        return Given("", '""', None, key), "it is empty"
    if definition.is_map:
        text = '{"retention.ms": "soon"}'
        return Given(text, text.replace(":", " ="), None, key), "retention.ms=soon"
    return Given("wrong", '"wrong"', None, key), "'wrong'"


@pytest.mark.parametrize(
    ("key", "way"),
    # An empty variable counts as not set.
    [
        (k, w)
        for k, w in EACH_WAY
        if w != "flag" and (w != "environment" or _wrong(SETTINGS[k])[0].text)
    ],
)
def test_an_invalid_value_is_refused_with_its_place_the_value_and_what_is_valid(
    key: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, because = _wrong(SETTINGS[key])
    made = call({key: wrong}, way)
    with pytest.raises(SettingsError) as refused:
        _loaded(made, monkeypatch)
    assert str(refused.value).startswith(made.origins[key])
    assert key in str(refused.value)
    assert because in str(refused.value)
    assert " is: " in refused.value.hint
    if way in ("file", "named file"):
        assert f"line {2 if '.' in key else 1}:" in str(refused.value)


@pytest.mark.parametrize("command", ["config show", "serve", "dev", "doctor"])
@pytest.mark.parametrize("way", ["--set", "environment", "file"])
def test_each_command_refuses_an_invalid_value_before_it_does_anything(
    command: str, way: str, started: list[tuple[Settings, str]]
) -> None:
    made = call({"log.topic_defaults": _wrong(SETTINGS["log.topic_defaults"])[0]}, way)
    done = invoke(command, made)
    assert (done.exit_code, done.stdout) == (2, "")
    assert not started
    error, hint = done.stderr.splitlines()
    assert error.startswith(f"error: {made.origins['log.topic_defaults']}")
    assert "retention.ms=soon" in error
    assert hint.startswith("hint: retention.ms is: long, [-1,...].")
