"""Reading settings: who beats whom, where each value comes from, and what an error says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from tidemill.cli.output import UsageError
from tidemill.cli.server import settings_file
from tidemill.cli.server.config import load_settings
from tidemill.cli.server.settings_file import OTHER_VARIABLES, known_settings, load
from tidemill.connect.alerts.definition import AlertEntry
from tidemill.errors import SettingsError
from tidemill.settings import Section


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
    assert (settings.value("kafka.port"), settings.host, settings.default_partitions) == (3, "b", 2)
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


def test_a_relative_path_is_relative_to_its_settings_file(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    file = write('data_dir = "data"\n[kafka]\ntls_cert = "/abs/cert.pem"', "etc/t.toml")
    settings = load(file, environ={}).settings
    assert settings.data_dir == Path("etc/data")
    assert settings.value("kafka.tls_cert") == Path("/abs/cert.pem")
    assert load(environ={"TIDEMILL_DATA_DIR": "data"}).settings.data_dir == Path("data")


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("[kafka]\nprt = 1", "unknown key kafka.prt", "kafka.port"),
        ("port = 1", "unknown key port", "kafka.port"),
        ("[kafak]\nport = 1", "unknown key kafak.port", "kafka.port"),
        ("zzzzz = 1", "unknown key zzzzz", "config show"),
        ("[kafka]\n\nport = 70000", "line 3: invalid value kafka.port = 70000:", "0 to 65535"),
        ('[telemetry]\nlevel = "loud"', "line 2: invalid value telemetry.level", "debug, info"),
        ("[kafka]\nport = true", "kafka.port = True: expected a number", "0 to 65535"),
        ("# a\nkafka.port = 'x'", "line 2: invalid value kafka.port = 'x'", "integer"),
        ("node_id = 1e99", r"line 1: invalid value node_id = 1e\+99", "0 to 2147483647"),
        ('host = "http://a:1"', "host = 'http://a:1': expected a host name", "host is: text"),
        ('kafka.advertised_host = "a:9092"', "without a scheme or a port", "Host that clients"),
        ("kafka = 3", "line 1: kafka is a table and not a value", r"\[kafka\]"),
        (
            "[log]\ntopic_defaults = 3",
            "line 2: log.topic_defaults is a table",
            "log.topic_defaults",
        ),
        ("[host]\nname = 'a'", "line 2: host is a value and not a table", "host is: text"),
        ("host = ", "not valid TOML", ""),
        ("a = " + "[" * 5000, "not valid TOML", ""),
        ('[log.topic_defaults]\na = ["x"]', "line 2: log.topic_defaults.a: unknown", "reference"),
        ('[log.topic_defaults]\n"retention.ms" = [1]', "line 2: invalid value", "86400000"),
        (
            '[log.topic_defaults]\nretention.ms = """\nsoon\n"""',
            "line 4: log.topic_defaults.retention.ms: invalid value retention.ms=soon",
            "retention.ms is: long",
        ),
        (
            '[log.topic_defaults]\n"max.compaction.lag.ms" = 1\n"min.compaction.lag.ms" = 2',
            "line 2 and tidemill.toml, line 3: log.topic_defaults: min.compaction.lag.ms=2",
            "",
        ),
        (
            "[groups]\nmin_session_timeout_ms = 9000000",
            "line 2: groups.min_session_timeout_ms = 9000000 is above",
            "groups.max_session_timeout_ms",
        ),
    ],
)
def test_an_invalid_file_is_rejected_with_the_place_and_a_hint(
    text: str, said: str, hint: str
) -> None:
    write(text)
    with pytest.raises(SettingsError, match=said) as refused:
        load(environ={})
    assert re.search(hint, refused.value.hint)
    assert "tidemill.toml" in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_missing_file_is_named_and_so_is_the_variable_with_its_name() -> None:
    with pytest.raises(SettingsError, match=r"^settings file missing\.toml: no such file"):
        load(Path("missing.toml"), environ={})
    with pytest.raises(SettingsError, match=r"^TIDEMILL_CONFIG: settings file x: no such file"):
        load(environ={"TIDEMILL_CONFIG": "x"})


def test_a_long_value_is_cut_in_the_error() -> None:
    with pytest.raises(SettingsError) as refused:
        load(environ={"TIDEMILL_NODE_ID": "9" * 100_000})
    assert len(str(refused.value)) < 300


def test_an_unknown_variable_is_refused_with_a_suggestion() -> None:
    with pytest.raises(SettingsError, match="TIDEMILL_KAFKA_PRT") as refused:
        load(environ={"TIDEMILL_KAFKA_PRT": "1"})
    assert "TIDEMILL_KAFKA_PORT" in refused.value.hint


SERVICE = {
    "TIDEMILL_SERVICE_HOST": "10.0.0.7",
    "TIDEMILL_SERVICE_PORT": "9092",
    "TIDEMILL_SERVICE_PORT_KAFKA": "9092",
    "TIDEMILL_PORT": "tcp://10.0.0.7:9092",
    "TIDEMILL_PORT_9092_TCP": "tcp://10.0.0.7:9092",
    "TIDEMILL_PORT_9092_TCP_PROTO": "tcp",
    "TIDEMILL_PORT_9092_TCP_PORT": "9092",
    "TIDEMILL_PORT_9092_TCP_ADDR": "10.0.0.7",
    "TIDEMILL_KAFKA_SERVICE_HOST": "10.0.0.8",  # of a service tidemill-kafka
    "TIDEMILL_KAFKA_PORT": "tcp://[fd00::7]:9092",
    "TIDEMILL_HEADLESS_PORT_9092_UDP": "udp://10.0.0.8:9092",
    "TIDEMILL_NAME": "/web/tidemill",  # docker --link
    "TIDEMILL_ENV_HOME": "/root",
}


def test_variables_that_describe_a_service_are_ignored() -> None:
    loaded = load(environ={**SERVICE, "TIDEMILL_HOST": "10.0.0.1"})
    assert (loaded.settings.value("kafka.port"), loaded.settings.host) == (9092, "10.0.0.1")
    assert "kafka.port" not in loaded.origins
    assert loaded.ignored == sorted(SERVICE)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TIDEMILL_PORT", "9093"),  # a mistake for TIDEMILL_KAFKA_PORT
        ("TIDEMILL_KAFKA_PORT", "http://localhost"),
        ("TIDEMILL_ENV_HOME", "/root"),
        ("TIDEMILL_NAME", "a"),
    ],
)
def test_a_mistake_that_only_looks_like_a_service_is_refused(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=name):
        load(environ={name: text})


def test_a_wrong_value_names_the_variable_it_came_from() -> None:
    with pytest.raises(
        SettingsError,
        match=r"TIDEMILL_LIMITS_CONNECTIONS: invalid value limits.connections = 'many': ",
    ):
        load(environ={"TIDEMILL_LIMITS_CONNECTIONS": "many"})


def test_other_programs_variables_and_empty_ones_are_passed_over() -> None:
    environ = dict.fromkeys(OTHER_VARIABLES, "") | {"PATH": "/bin", "TIDEMILL_KAFKA_PORT": ""}
    environ["TIDEMILL_BOOTSTRAP_SERVERS"] = "x:1"
    assert load(environ=environ).settings.value("kafka.port") == 9092


def test_an_unknown_flag_key_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"--set: unknown key kafka\.prt") as refused:
        load(environ={}, flags={"kafka.prt": ("--set", "1")})
    assert "kafka.port" in refused.value.hint


def test_topic_defaults_are_text_whatever_toml_type_they_have_and_merge_by_key() -> None:
    write('[log.topic_defaults]\n"retention.ms" = 60000\npreallocate = false\ncleanup.policy = []')
    loaded = load(environ={"TIDEMILL_LOG_TOPIC_DEFAULTS": '{"cleanup.policy": "compact"}'})
    assert loaded.settings.log.topic_defaults == {
        "retention.ms": "60000",
        "preallocate": "false",
        "cleanup.policy": "compact",
    }
    origins = {key: origin for key, _, origin in loaded.entries()}
    assert origins["log.topic_defaults.retention.ms"] == "tidemill.toml"
    assert origins["log.topic_defaults.cleanup.policy"] == "TIDEMILL_LOG_TOPIC_DEFAULTS"


def test_a_list_in_a_file_is_a_topic_config_with_commas() -> None:
    write('[log.topic_defaults]\ncleanup.policy = ["compact", "delete"]')
    assert load(environ={}).settings.log.topic_defaults == {"cleanup.policy": "compact,delete"}


def test_topic_defaults_in_a_variable_or_a_flag_must_be_a_json_object() -> None:
    key = "log.topic_defaults"
    for text in ("retention.ms=1", "[1]", "3", "", "[" * 100_000):
        with pytest.raises(SettingsError, match=f"^--set: {key} is not a JSON object") as refused:
            load(environ={}, flags={key: ("--set", text)})
        assert f"--set {key}='{{" in refused.value.hint
        if not text:
            continue
        variable = "TIDEMILL_LOG_TOPIC_DEFAULTS"
        with pytest.raises(SettingsError, match=f"^{variable}: {key} is not a JSON") as refused:
            load(environ={variable: text})
        assert f"{variable}='{{" in refused.value.hint


def test_topic_defaults_are_merged_from_a_json_object_and_single_keys() -> None:
    flags = {
        "log.topic_defaults": ("--set", '{"retention.ms": 5, "preallocate": false}'),
        "log.topic_defaults.segment.ms": ("--set", "7"),
    }
    assert load(environ={}, flags=flags).settings.log.topic_defaults == {
        "retention.ms": "5",
        "preallocate": "false",
        "segment.ms": "7",
    }


@pytest.mark.parametrize("configs", [{"retention.ms": None}, {"": "1"}, {"retention.ms": {}}])
def test_an_invalid_topic_default_in_a_variable_is_refused(configs: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=r"^TIDEMILL_LOG_TOPIC_DEFAULTS: "):
        load(environ={"TIDEMILL_LOG_TOPIC_DEFAULTS": json.dumps(configs)})


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"port": 1, "settings": ["kafka.port=2"]}, "--kafka-port 1 and --set kafka.port=2"),
        ({"settings": ["host=a", "host=b"]}, "--set host=a and --set host=b"),
    ],
)
def test_two_flags_for_one_setting_that_differ_are_refused(
    flags: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        load_settings(None, **flags)


def test_two_flags_for_one_setting_that_agree_are_accepted() -> None:
    loaded = load_settings(None, port=2, settings=["kafka.port=2", "host=a", "host=a"])
    assert (loaded.settings.value("kafka.port"), loaded.settings.host) == (2, "a")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::1", "fe80::1%eth0", "a-b.c", "h", "höst"])
def test_names_and_addresses_are_valid_hosts(host: str) -> None:
    assert load(environ={"TIDEMILL_HOST": host}).settings.host == host


@pytest.mark.parametrize("host", ["a b", "a:1", "[::1]", "kafka://a", "a/b", "1.2.3.4:5", ":9092"])
def test_everything_else_is_an_invalid_host(host: str) -> None:
    with pytest.raises(SettingsError, match="expected a host name or an address"):
        load(environ={"TIDEMILL_HOST": host})


def test_each_setting_has_its_own_variable_and_says_what_it_does() -> None:
    every = list(known_settings().values())
    assert len({definition.env for definition in every}) == len(every)
    assert not {definition.env for definition in every} & set(OTHER_VARIABLES)
    for definition in every:
        assert definition.description.endswith("."), definition.key


class Feed(Section):
    """A list of tables, as a kind of worker declares it."""

    key = "feed"
    is_repeated = True
    name: str = Field(description="The name of the feed.")
    file: Path = Field(Path("feed.csv"), description="What is read.")
    options: dict[str, str] = {}


@pytest.fixture
def _with_feeds(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = [*settings_file.declared_sections(), Feed]
    monkeypatch.setattr(settings_file, "declared_sections", lambda: declared)


@pytest.mark.usefixtures("_with_feeds")
def test_a_list_of_tables_is_read_in_its_order_with_paths_relative_to_the_file() -> None:
    Path("etc").mkdir()
    text = '[[feed]]\nname = "b"\noptions = {x = "1"}\n[[feed]]\nname = "a"\nfile = "/abs"\n'
    settings = load(write(text + "[kafka]\nport = 3\n", "etc/t.toml"), environ={}).settings
    first, second = settings.entries(Feed)
    assert (first.name, first.file, first.options) == ("b", Path("etc/feed.csv"), {"x": "1"})
    assert (second.name, second.file) == ("a", Path("/abs"))
    assert settings.value("kafka.port") == 3
    assert load(environ={}).settings.entries(Feed) == []


@pytest.mark.usefixtures("_with_feeds")
@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ('feed = "x"', "line 1: feed is not a list of tables", r"\[\[feed\]\]"),
        ("[feed]\nname = 'a'", "line 1: feed is not a list of tables", r"\[\[feed\]\]"),
        (
            "[[feed]]\nname = 'a'\n[[feed]]\nfile = 'b'",
            r"\[\[feed\]\] 2: name is missing",
            "The name",
        ),
        ("[[feed]]\nname = 'a'\nfiel = 'b'", r"\[\[feed\]\] 1: unknown key fiel", "mean file"),
        ("[[feed]]\nname = 3", r"\[\[feed\]\] 1: invalid value name = 3: ", "The name of"),
        ("[[feed]]\nnam = 'a'", r"\[\[feed\]\] 1: unknown key nam", "mean name"),
        ("[[fed]]\nname = 'a'", "line 1: unknown key fed", "mean feed"),
    ],
)
def test_an_invalid_entry_of_a_list_is_rejected_with_its_place_and_a_hint(
    text: str, said: str, hint: str
) -> None:
    write(text)
    with pytest.raises(SettingsError, match=rf"^tidemill\.toml, {said}") as refused:
        load(environ={})
    assert re.search(hint, refused.value.hint)


ALERT = '[[alert]]\nname = "late"\nmetric = "m"\n'
OPS = '[[alert_receiver]]\nname = "ops"\nurl = "https://ops.example"\n'


def test_an_entry_that_names_one_that_does_not_exist_is_refused() -> None:
    write(ALERT + 'above = 1\nreceivers = ["ops", "opps"]\n' + OPS)
    said = r"^\[\[alert\]\] late: receivers: there is no \[\[alert_receiver\]\] opps\n"
    with pytest.raises(SettingsError, match=said) as refused:
        load(environ={})
    assert refused.value.hint == "There are: ops."
    write(ALERT + 'above = 1\nreceivers = ["ops"]\n' + OPS)
    assert load(environ={}).settings.entries(AlertEntry)[0].receivers == ["ops"]


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_a_limit_that_no_value_can_pass_is_refused(number: str) -> None:
    write(f"{ALERT}above = {number}\n")
    with pytest.raises(SettingsError, match=r"\[\[alert\]\] 1: invalid value above = .*finite"):
        load(environ={})


def test_no_section_takes_a_number_that_is_not_finite() -> None:
    for section in settings_file.declared_sections():
        assert section.model_config.get("allow_inf_nan") is False, section
