"""Logging: one line per event, in the requested format."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from tidemill import telemetry


@pytest.fixture(autouse=True)
def restore_default_logging() -> Iterator[None]:
    yield
    telemetry.configure("warning")


def lines(style: telemetry.Format, level: telemetry.Level = "info") -> list[str]:
    stream = io.StringIO()
    telemetry.configure(level, style, stream=stream)
    log = structlog.get_logger("tidemill.kafka")
    log.debug("not of interest")
    log.info("connection refused", peer="1.2.3.4:5", reason="a\nb\x1b[31m", count=3)
    log.error("disk", error=OSError("gone"))
    return stream.getvalue().splitlines()


def test_logfmt_has_time_level_component_and_event_first() -> None:
    first, second = lines("logfmt")
    assert first.startswith("timestamp=20")
    assert ' level=info component=kafka event="connection refused" peer=1.2.3.4:5' in first
    assert "\x1b" not in first
    assert first.endswith("count=3")
    assert second.endswith('event=disk error="OSError: gone"')


def test_json_keeps_types() -> None:
    first = json.loads(lines("json")[0])
    assert first["component"] == "kafka"
    assert first["count"] == 3
    assert first["reason"] == "a\nb\x1b[31m"


def test_human_lines_are_short_and_safe_for_a_terminal() -> None:
    first, second = lines("human")
    assert "info    kafka: connection refused peer=1.2.3.4:5" in first
    assert "\x1b" not in first
    assert "error='OSError: gone'" in second


@pytest.mark.parametrize("style", ["human", "logfmt", "json"])
def test_a_hint_that_an_error_does_not_have_is_left_out(style: telemetry.Format) -> None:
    stream = io.StringIO()
    telemetry.configure("info", style, stream=stream)
    log = structlog.get_logger("tidemill.views")
    log.warning("view.failed", hint="", failures=1)
    log.warning("view.failed", hint="Wait.", failures=2)
    first, second = stream.getvalue().splitlines()
    assert "hint" not in first
    assert "Wait." in second


def test_auto_is_logfmt_outside_of_a_terminal() -> None:
    assert lines("auto")[0].startswith("timestamp=")


def test_less_severe_events_are_left_out() -> None:
    assert len(lines("logfmt", "debug")) == 3
    assert len(lines("logfmt", "warning")) == 1


def test_a_name_without_the_package_is_the_component() -> None:
    stream = io.StringIO()
    telemetry.configure("info", "logfmt", stream=stream)
    structlog.get_logger("broker").info("hello")
    assert "component=broker event=hello" in stream.getvalue()


def test_one_event_is_one_line_also_of_an_exception() -> None:
    stream = io.StringIO()
    telemetry.configure("info", "logfmt", stream=stream)
    structlog.get_logger("x").error("failed", error=ValueError("a\nb"))
    assert stream.getvalue().count("\n") == 1


CONSOLE_PACKAGES = """
import sys
{before}
import structlog
loaded = sorted({{"rich", "pygments", "greenlet"}} & {{*sys.modules}})
import rich.console
from tidemill import telemetry

telemetry.configure("info", "human")
structlog.get_logger("tidemill.kafka").info("ours")
structlog.reset_defaults()
structlog.configure(processors=[structlog.dev.ConsoleRenderer(colors=False)])
try:
    1 / 0
except ZeroDivisionError:
    structlog.get_logger().info("theirs", exc_info=True)
print(loaded, rich.console.Console.__name__, structlog.dev.rich is rich)
"""
COMMAND = """
from tidemill.__main__ import main

sys.argv[:] = ["tidemill", "version"]
try:
    main()
except SystemExit:
    pass
"""


def _console_packages(before: str) -> str:
    """Return which packages for consoles structlog has loaded, and whether they can be used."""
    done = subprocess.run(
        [sys.executable, "-c", CONSOLE_PACKAGES.format(before=before)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "kafka: ours" in done.stderr
    assert "theirs" in done.stdout
    assert "ZeroDivisionError" in done.stdout
    return done.stdout.splitlines()[-1]


def test_the_command_loads_no_package_for_consoles_and_leaves_them_usable() -> None:
    assert _console_packages(COMMAND) == "[] Console False"


def test_a_program_that_imports_tidemill_has_the_structlog_that_it_knows() -> None:
    assert _console_packages("import tidemill").endswith("'rich'] Console True")


def test_rich_that_is_loaded_before_structlog_stays_in_use() -> None:
    assert _console_packages(f"import rich\n{COMMAND}").endswith("Console True")
