"""The compiled extension is built where it can be, and is not needed."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from tidemill import native
from tidemill.cli.server import doctor

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def build() -> ModuleType:
    path = ROOT / "scripts" / "build_native.py"
    spec = importlib.util.spec_from_file_location("build_native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src" / "native", tmp_path / "src" / "native")
    (tmp_path / "src" / "tidemill").mkdir()
    return tmp_path


def test_a_checkout_with_a_compiler_has_the_extension() -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    assert native.load() is not None


def test_the_extension_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.SWITCH, "0")
    assert native.load() is None


def test_a_build_without_a_compiler_leaves_the_extension_out(
    build: ModuleType, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(native.SWITCH, raising=False)
    monkeypatch.setenv("CC", "no-such-compiler")
    assert build.compile_extension(sources) is None
    assert list((sources / "src" / "tidemill").iterdir()) == []


def test_a_build_that_must_have_the_extension_fails_without_a_compiler(
    build: ModuleType, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(native.SWITCH, "1")
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(SystemExit, match="can't compile the extension"):
        build.compile_extension(sources)


@pytest.mark.slow
def test_sources_with_a_mistake_are_not_built(
    build: ModuleType, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    monkeypatch.delenv(native.SWITCH, raising=False)
    (sources / "src" / "native" / "module.c").write_text("#error no\n")
    assert build.compile_extension(sources) is None


@pytest.mark.parametrize(("switch", "status"), [("", "ok"), ("0", "warn")])
def test_doctor_tells_whether_the_extension_is_used(
    switch: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native.load() is None:
        pytest.skip("the extension was not built")
    monkeypatch.setenv(native.SWITCH, switch)
    assert doctor._compiled().status == status


def test_an_extension_that_was_built_from_older_sources_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extension = native.load()
    if extension is None:
        pytest.skip("the extension was not built")
    monkeypatch.delattr(extension, "walk_records")
    assert native.load() is None


def test_all_that_the_extension_has_is_expected_of_it() -> None:
    stub = ast.parse((ROOT / "src" / "tidemill" / "_native.pyi").read_text())
    defined = [n.name for n in stub.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))]
    assert sorted(defined) == sorted(native.NAMES)


@pytest.mark.parametrize(
    "source", sorted((ROOT / "src" / "native").glob("*.c")), ids=lambda path: path.name
)
def test_no_format_depends_on_the_headers_that_it_was_compiled_with(source: Path) -> None:
    """Python 3.13 has no macro any more for the lengths of '#', and 3.11 insists on it."""
    calls = re.findall(
        r'(?:PyArg_Parse\w*|Py_BuildValue|PyObject_Call\w*)\([^;]*?"([^"]*)"', source.read_text()
    )
    assert [each for each in calls if "#" in each] == []
