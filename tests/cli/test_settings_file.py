"""Reading settings: who beats whom, where each value comes from, and what an error says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.cli.settings_file import OTHER_VARIABLES, load
from tidemill.errors import SettingsError
from tidemill.settings import definitions


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "tidemill.toml") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def test_without_anything_all_values_are_defaults() -> None:
    loaded = load(environ={})
    assert loaded.file is None
    assert {origin for _, _, origin in loaded.entries()} == {"default"}


def test_flags_beat_the_environment_beats_the_file_beats_the_default() -> None:
    write('host = "a"\ndefault_partitions = 2\nauto_create_topics = false\n[kafka]\nport = 1\n')
    loaded = load(
        environ={"TIDEMILL_KAFKA_PORT": "2", "TIDEMILL_HOST": "b"},
        flags={"kafka.port": ("--kafka-port", 3), "data_dir": ("--data-dir", None)},
    )
    settings = loaded.settings
    assert (settings.kafka.port, settings.host, settings.default_partitions) == (3, "b", 2)
    assert settings.auto_create_topics is False
    origins = {key: origin for key, _, origin in loaded.entries()}
    assert origins["kafka.port"] == "--kafka-port"
    assert origins["host"] == "TIDEMILL_HOST"
    assert origins["default_partitions"] == "tidemill.toml"
    assert origins["data_dir"] == "default"


def test_the_file_is_the_named_one_then_the_variables_then_the_one_here() -> None:
    write('host = "here"')
    named = write('host = "named"', "named.toml")
    variable = {"TIDEMILL_CONFIG": str(write('host = "variable"', "variable.toml"))}
    assert load(named, environ=variable).settings.host == "named"
    assert load(environ=variable).settings.host == "variable"
    assert load(environ={}).settings.host == "here"


def test_a_relative_path_is_relative_to_the_file_that_says_it(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    file = write('data_dir = "data"\n[kafka]\ntls_cert = "/abs/cert.pem"', "etc/t.toml")
    settings = load(file, environ={}).settings
    assert settings.data_dir == Path("etc/data")
    assert settings.kafka.tls_cert == Path("/abs/cert.pem")
    assert load(environ={"TIDEMILL_DATA_DIR": "data"}).settings.data_dir == Path("data")


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("[kafka]\nprt = 1", "unknown key kafka.prt", "kafka.port"),
        ("port = 1", "unknown key port", "kafka.port"),
        ("[kafak]\nport = 1", "unknown key kafak.port", "kafka.port"),
        ("zzzzz = 1", "unknown key zzzzz", "config show"),
        ("[kafka]\nport = 70000", "tidemill.toml: kafka.port:", "0 to 65535"),
        ('[telemetry]\nlevel = "loud"', "tidemill.toml: telemetry.level:", "debug, info"),
        ("kafka = 3", "unknown key kafka", "kafka.port"),
        ("host = ", "not valid TOML", ""),
        ('[log.topic_defaults]\na = ["x"]', "log.topic_defaults.a", ""),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_a_way_out(
    text: str, said: str, hint: str
) -> None:
    write(text)
    with pytest.raises(SettingsError, match=said) as refused:
        load(environ={})
    assert hint in refused.value.hint
    assert "tidemill.toml" in str(refused.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingsError, match=r"missing\.toml: no such file"):
        load(Path("missing.toml"), environ={})


def test_an_unknown_variable_is_refused_with_a_suggestion() -> None:
    with pytest.raises(SettingsError, match="TIDEMILL_KAFKA_PRT") as refused:
        load(environ={"TIDEMILL_KAFKA_PRT": "1"})
    assert "TIDEMILL_KAFKA_PORT" in refused.value.hint


def test_a_wrong_value_names_the_variable_it_came_from() -> None:
    with pytest.raises(SettingsError, match=r"TIDEMILL_LIMITS_CONNECTIONS: limits.connections: "):
        load(environ={"TIDEMILL_LIMITS_CONNECTIONS": "many"})


def test_other_programs_variables_and_empty_ones_are_passed_over() -> None:
    environ = dict.fromkeys(OTHER_VARIABLES, "") | {"PATH": "/bin", "TIDEMILL_KAFKA_PORT": ""}
    environ["TIDEMILL_BOOTSTRAP_SERVERS"] = "x:1"
    assert load(environ=environ).settings.kafka.port == 9092


def test_an_unknown_flag_key_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"--set: unknown key kafka\.prt") as refused:
        load(environ={}, flags={"kafka.prt": ("--set", "1")})
    assert "kafka.port" in refused.value.hint


def test_topic_defaults_are_text_whatever_toml_type_they_have_and_merge_by_key() -> None:
    write('[log.topic_defaults]\n"retention.ms" = 60000\npreallocate = false\ncleanup.policy = "x"')
    loaded = load(environ={"TIDEMILL_LOG_TOPIC_DEFAULTS": '{"cleanup.policy": "compact"}'})
    assert loaded.settings.log.topic_defaults == {
        "retention.ms": "60000",
        "preallocate": "false",
        "cleanup.policy": "compact",
    }
    origins = {key: origin for key, _, origin in loaded.entries()}
    assert origins["log.topic_defaults.retention.ms"] == "tidemill.toml"
    assert origins["log.topic_defaults.cleanup.policy"] == "TIDEMILL_LOG_TOPIC_DEFAULTS"


def test_topic_defaults_in_the_environment_must_be_a_json_object() -> None:
    for text in ("retention.ms=1", "[1]", "3"):
        with pytest.raises(SettingsError, match="not a JSON object"):
            load(environ={"TIDEMILL_LOG_TOPIC_DEFAULTS": text})


def test_each_setting_has_its_own_variable_and_says_what_it_does() -> None:
    every = list(definitions())
    assert len({definition.env for definition in every}) == len(every)
    assert not {definition.env for definition in every} & set(OTHER_VARIABLES)
    for definition in every:
        assert definition.description.endswith("."), definition.key
