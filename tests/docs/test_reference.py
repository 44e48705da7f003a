"""The generated reference is current, and nothing is missing in it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import tidemill.spark
from tidemill.cli import reference
from tidemill.cli.metric_names import METRICS
from tidemill.cli.server.settings_file import known_settings, load
from tidemill.log.config.parse import DEFINITIONS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["settings.md", "cli.md", "metrics.md"])
def test_the_page_is_what_the_code_says(name: str) -> None:
    assert (DOCS / name).read_text() == reference.pages()[name], (
        "stale: run python -m tidemill.cli.reference docs"
    )


def test_every_setting_and_topic_config_is_documented() -> None:
    page = (DOCS / "settings.md").read_text()
    for definition in known_settings().values():
        assert f"`{definition.key}`<br>`{definition.env}`" in page
    for name, config in DEFINITIONS.items():
        assert config.internal or f"| `{name}` |" in page


def test_every_module_that_declares_metrics_is_in_the_reference() -> None:
    source = DOCS.parent / "src"
    declaring = {
        ".".join(path.relative_to(source).with_suffix("").parts)
        for path in source.rglob("*.py")
        if re.search(
            r"^[A-Z_0-9]+ = (counter|gauge|histogram|_messages)\w*\(", path.read_text(), re.M
        )
    }
    assert declaring == {module for _, module in METRICS}


def test_every_public_python_name_is_in_the_api_reference() -> None:
    page = (DOCS / "api.md").read_text()
    listed = re.findall(r"^::: tidemill\.spark\.([A-Za-z_]+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted([*tidemill.spark.__all__, "errors"])


def test_every_page_is_in_the_navigation() -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text()
    for page in DOCS.glob("*.md"):
        assert re.search(rf"[ :]{re.escape(page.name)}$", navigation, re.MULTILINE), page.name


def test_every_command_and_option_is_documented_and_explained() -> None:
    page = (DOCS / "cli.md").read_text()
    for path, command in reference.commands():
        assert f"## {path}\n" in page
        assert (command.help or "").strip(), f"{path} has no help"
    rows = re.findall(r"^\| `.*\|$", page, re.MULTILINE)
    assert [row for row in rows if row.endswith("|  |")] == []


def test_the_example_of_a_settings_file_is_valid(tmp_path: Path) -> None:
    page = (DOCS / "settings.md").read_text()
    example = page.split("```toml\n")[1].split("```")[0]
    assert tomllib.loads(example)
    file = tmp_path / "tidemill.toml"
    file.write_text(example)
    assert load(file, environ={}).settings.value("kafka.port") == 9092


def test_check_says_when_a_page_is_stale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reference.main([str(tmp_path)]) == 0
    assert reference.main(["--check", str(tmp_path)]) == 0
    (tmp_path / "cli.md").write_text("old")
    assert reference.main(["--check", str(tmp_path)]) == 1
    assert "cli.md is not current" in capsys.readouterr().err
