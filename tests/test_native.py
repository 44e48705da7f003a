"""The compiled extension: how it is built, and what is reported where it can't be used."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

from tidemill import native

ROOT = Path(__file__).resolve().parent.parent
IMPORT = "import sys; sys.path.insert(0, sys.argv[1]); import tidemill.native"


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
def checkout(tmp_path: Path) -> Path:
    """The parts of a checkout that the extension is built from."""
    for folder in ("scripts", "src/native"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for module in ("__init__", "native", "errors"):
        (tmp_path / "src" / "tidemill").mkdir(exist_ok=True)
        shutil.copy(ROOT / "src" / "tidemill" / f"{module}.py", tmp_path / "src" / "tidemill")
    return tmp_path


def load(checkout: Path) -> str:
    """Load the extension of a checkout; return the error that is reported, with its hint."""
    command = [sys.executable, "-S", "-c", IMPORT, str(checkout / "src")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return "\n".join(found.stderr.splitlines()[-2:])


@pytest.mark.slow
def test_an_extension_is_loaded_until_its_sources_change(
    checkout: Path, build: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CFLAGS", "-O0")  # a fifth of the time
    build.compile_extension(checkout)
    assert load(checkout) == ""

    with (checkout / "src" / "native" / "module.c").open("a") as file:
        file.write("/* another comment */\n")
    assert "compiled extension was built from other sources\nhint: Compile it" in load(checkout)


def test_a_missing_extension_is_reported(checkout: Path) -> None:
    error = load(checkout)
    assert error.startswith(
        "tidemill.errors.ExtensionError: tidemill's compiled extension can't be"
    )
    assert "python scripts/build_native.py" in error


def test_a_wheel_has_no_sources_to_compare_with(tmp_path: Path) -> None:
    assert native.source_checksum(tmp_path) is None


@pytest.mark.parametrize(
    ("without", "named"),
    [
        ({"CC": "no-such-compiler"}, "no C compiler (no-such-compiler)"),
        ({"CC": "cc -nostdinc"}, "no headers of the C library (stdlib.h)"),
        ({"include": "/no/such/folder"}, "no headers of Python"),
    ],
    ids=["compiler", "headers of C", "headers of Python"],
)
def test_a_build_without_a_tool_names_it_and_the_packages_to_install(
    build: ModuleType,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    without: dict[str, str],
    named: str,
) -> None:
    if "CC" in without:
        monkeypatch.setenv("CC", without["CC"])
    else:
        monkeypatch.setattr(build.sysconfig, "get_path", without.get)
    with pytest.raises(SystemExit) as ended:
        build.compile_extension(checkout)
    message = str(ended.value)
    assert message.startswith("error: tidemill can't be installed from source: there ")
    assert named in message
    assert message.count("there ") == 1
    for packages in ("gcc libc6-dev python3-dev", "gcc musl-dev python3-dev", "xcode-select"):
        assert packages in message


def test_sources_with_a_mistake_are_not_built(build: ModuleType, checkout: Path) -> None:
    for source in (checkout / "src" / "native").glob("*.c"):
        source.unlink()
    (checkout / "src" / "native" / "module.c").write_text("#error no\n")
    with pytest.raises(SystemExit, match="can't compile the extension"):
        build.compile_extension(checkout)


def test_the_stub_describes_all_that_the_extension_has() -> None:
    stub = ast.parse((ROOT / "src" / "tidemill" / "_native.pyi").read_text())
    defined = [n.name for n in stub.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))]
    constants = [n.target.id for n in stub.body if isinstance(n, ast.AnnAssign)]  # type: ignore[union-attr]
    had = [name for name in dir(native.extension) if not name.startswith("__")]
    assert sorted(defined + constants) == sorted(had)


def test_no_two_files_of_the_extension_need_each_other() -> None:
    """A file needs another one if it uses a function that the other one defines."""
    sources = {path.name: path.read_text() for path in (ROOT / "src" / "native").glob("*.c")}
    defined = {
        name: file
        for file, text in sources.items()
        for name in re.findall(r"^(?!static)\w[\w *]*?\b(\w+)\([^;{]*\)\s*\{", text, re.MULTILINE)
    }
    needs = {
        file: {defined[name] for name in re.findall(r"\w+", text) if name in defined} - {file}
        for file, text in sources.items()
    }
    assert needs["module.c"]
    TopologicalSorter(needs).prepare()  # raises CycleError


@pytest.mark.parametrize(
    "source", sorted((ROOT / "src" / "native").glob("*.c")), ids=lambda path: path.name
)
def test_no_format_depends_on_the_headers_that_it_was_compiled_with(source: Path) -> None:
    """Python 3.13 has no macro any more for the lengths of '#', and 3.11 insists on it."""
    calls = re.findall(
        r'(?:PyArg_Parse\w*|Py_BuildValue|PyObject_Call\w*)\([^;]*?"([^"]*)"', source.read_text()
    )
    assert [each for each in calls if "#" in each] == []


def test_a_none_that_is_returned_is_counted_whichever_headers_the_extension_is_compiled_with(
    tmp_path: Path, build: ModuleType
) -> None:
    """The headers of Python 3.12 and 3.13 don't count it, because it is immortal there. Python 3.11
    can load what they compile, and would end with a fatal error."""
    source = tmp_path / "none.c"
    source.write_text('#include "native.h"\nPyObject *none(void) { Py_RETURN_NONE; }\n')
    headers = (f"-I{sysconfig.get_path('include')}", f"-I{ROOT / 'src' / 'native'}")
    limited = f"-DPy_LIMITED_API={build.STABLE_ABI}"
    command = [*build._compiler(), "-E", "-P", limited, *headers, str(source)]
    expanded = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Py_NewRef" in expanded[expanded.index("none(void)") :]


def test_only_the_loader_looks_for_the_extension() -> None:
    looks = re.compile(r"import _native|tidemill\._native|native\.extension is")
    files = sorted((ROOT / "src" / "tidemill").rglob("*.py"))
    assert [path.name for path in files if looks.search(path.read_text())] == ["native.py"]


def test_native_code_looks_up_few_attributes_and_no_private_one() -> None:
    """What native code knows of Python's objects is in structs: a field that is renamed in Python
    is a type error then, and not a silent fault."""
    text = "".join(path.read_text() for path in (ROOT / "src" / "native").glob("*.[ch]"))
    looked_up = r"(?:Py\w+_(?:Get|Set|Has)Attr\w*|PyObject_CallMethod\w*|\w*InternFromString)"
    names = re.findall(rf'\b{looked_up}\([^;"]*"(\w+)"', text)
    lent = ["fd", "position"]
    hooks = ["lose", "prepare", "roll", "write"]  # of log.partition.append
    assert sorted(set(names)) == sorted(lent + hooks)
    assert len(re.findall(rf"\b{looked_up}\(", text)) == len(names)  # each has its name there
