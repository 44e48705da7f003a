"""What is published: the page on an index, the source distribution, the supported Pythons."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def hook() -> ModuleType:
    path = ROOT / PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["path"]
    spec = importlib.util.spec_from_file_location("package_readme", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Links(HTMLParser):
    """Collects the targets of links and images."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        wanted = {"a": "href", "img": "src"}.get(tag)
        self.targets += [value for name, value in attributes if name == wanted and value]


def links_of(markdown: str) -> list[str]:
    links = Links()
    links.feed(MarkdownIt().render(markdown))
    return links.targets


def test_all_links_on_the_page_of_the_index_hold() -> None:
    base = f"{PROJECT['urls']['Repository']}/blob/v{PROJECT['version']}/"
    targets = links_of(hook().package_readme(ROOT))

    assert len(targets) > 15
    assert [each for each in targets if not each.startswith("https://")] == []
    paths = [each.removeprefix(base).partition("#")[0] for each in targets if base in each]
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_links_of_the_readme_in_a_checkout_are_the_same() -> None:
    base = f"{PROJECT['urls']['Repository']}/blob/v{PROJECT['version']}/"
    ours = links_of((ROOT / "README.md").read_text())

    assert links_of(hook().package_readme(ROOT)) == [
        each if re.match(r"[a-z]+:", each) else base + each for each in ours
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/a.md)", "[a](B/docs/a.md)"),
        ("[a](docs/a.md#part)", "[a](B/docs/a.md#part)"),
        ("[a](https://x.org/y)", "[a](https://x.org/y)"),
        ("[a](mailto:me@x.org)", "[a](mailto:me@x.org)"),
        ("[a](#part)", "[a](#part)"),
        ("![a](a.png) and [`b`](b.py)", "![a](B/a.png) and [`b`](B/b.py)"),
        ("```python\nx[0](y)\n```\n[a](b)", "```python\nx[0](y)\n```\n[a](B/b)"),
    ],
)
def test_relative_links_become_absolute(text: str, expected: str) -> None:
    assert hook().absolute_links(text, "B") == expected


def test_the_project_has_the_addresses_that_an_index_shows() -> None:
    wanted = {"Homepage", "Documentation", "Repository", "Issues", "Changelog"}

    assert wanted <= set(PROJECT["urls"])
    assert all(url.startswith("https://") for url in PROJECT["urls"].values())
    assert PROJECT["dynamic"] == ["readme"]


def test_a_source_distribution_has_all_that_a_checkout_has() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:  # in an unpacked source distribution: make needs at least these
        tops = {"Makefile", "scripts", "src", "tests", ".ci"}
    else:
        tops = {name.partition("/")[0] for name in listed.stdout.split("\0") if name}
    included = set(PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])

    assert tops - included <= {".gitignore", "pyproject.toml"}  # hatchling adds both
    assert {name for name in included if not (ROOT / name).exists()} == set()


def test_the_scripts_that_make_calls_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    called = set(re.findall(r"(?:scripts|\.ci)/[\w.-]+", makefile))

    assert len(called) >= 4
    assert {name for name in called if not (ROOT / name).stat().st_mode & 0o100} == set()


def test_all_supported_pythons_are_tested_in_ci() -> None:
    supported = {
        each.rpartition(" ")[2]
        for each in PROJECT["classifiers"]
        if each.startswith("Programming Language :: Python :: 3.")
    }
    script = (ROOT / "scripts" / "other-pythons.sh").read_text()
    others = re.search(r"VERSIONS:-([\d. ]+)\}", script)

    assert others is not None
    assert supported == {PROJECT["requires-python"].removeprefix(">="), *others[1].split()}
    assert "test-pythons" in (ROOT / ".ci" / "run").read_text()


def test_wheels_are_built_for_all_supported_platforms_and_loaded() -> None:
    config = PYPROJECT["tool"]["cibuildwheel"]
    assert {each.removeprefix("cp311-") for each in config["build"]} == {
        *("manylinux_x86_64", "manylinux_aarch64", "musllinux_x86_64", "musllinux_aarch64"),
        *("macosx_x86_64", "macosx_arm64"),
    }
    command = shlex.split(config["test-command"])
    assert subprocess.run([sys.executable, *command[1:]], check=False).returncode == 0
