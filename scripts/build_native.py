"""Compile the C sources in src/native to the extension tidemill._native.

The build of the package (hatchling) runs this as a hook, also for an editable installation. Run it
by hand after a change of the sources:

    python scripts/build_native.py

It needs a C compiler (CC names another one than cc) and Python's headers. Without them it ends with
a message that names the packages to install. ``--check`` only looks for them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent.parent
EXTENSION = "src/tidemill/_native.abi3.so"
STABLE_ABI = "0x030B0000"
"""The oldest Python whose stable interface the extension uses: one file serves 3.11 and later."""
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
HELP = f"""\
error: tidemill can't be installed from source: {{missing}}.
hint:  install a C compiler and Python's headers, which its extension in C needs, and try again:

         Debian, Ubuntu   apt-get install gcc libc6-dev python3-dev
         Fedora           dnf install gcc glibc-devel python3-devel
         Alpine           apk add gcc musl-dev python3-dev
         macOS            xcode-select --install

       The headers must be those of Python {VERSION}. If that is not the system's own Python, their
       package is python{VERSION}-dev (Debian, Ubuntu) or python{VERSION}-devel (Fedora)."""


def missing_tools() -> list[str]:
    """Return what is needed to compile and is missing, in words."""
    compiler = _compiler()
    missing = []
    if shutil.which(compiler[0]) is None:
        missing.append(f"there is no C compiler ({compiler[0]})")
    elif not _compiles("#include <stdlib.h>"):
        missing.append("there are no headers of the C library (stdlib.h)")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        missing.append(f"there are no headers of Python {VERSION} (Python.h)")
    return missing


def check_tools() -> None:
    """Check that the extension can be compiled.

    Raises:
        SystemExit: A tool is missing. Its message names the packages to install.
    """
    if missing := missing_tools():
        raise SystemExit(HELP.format(missing=" and ".join(missing)))


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC") or "cc")


def _compiles(source: str) -> bool:
    command = [*_compiler(), "-fsyntax-only", "-x", "c", "-"]
    return subprocess.run(command, input=source.encode(), capture_output=True).returncode == 0


def source_checksum(root: Path) -> int:
    """Return the checksum of the sources, as ``tidemill.native`` computes it."""
    checksum = 0
    for source in sorted((root / "src" / "native").glob("*.[ch]")):
        checksum = zlib.crc32(source.read_bytes(), checksum)
    return checksum


def compile_extension(root: Path = ROOT) -> Path:
    """Compile the extension, and return its file.

    Raises:
        SystemExit: A tool is missing, or the compiler has refused the sources.
    """
    check_tools()
    target = root / EXTENSION
    sources = sorted((root / "src" / "native").glob("*.c"))
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    command = [
        *_compiler(),
        *("-std=c11", "-O3", "-g1", "-fPIC", "-shared", "-fvisibility=hidden"),
        *("-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-missing-field-initializers"),
        f"-DPy_LIMITED_API={STABLE_ABI}",
        f"-DTM_SOURCES={source_checksum(root)}",
        f"-I{sysconfig.get_path('include')}",
        *_architectures(),
        *shlex.split(os.environ.get("CFLAGS", "")),
        *(("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()),
        *map(str, sources),
        *("-o", str(temporary)),
    ]
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError as error:
        temporary.unlink(missing_ok=True)
        raise SystemExit(f"can't compile the extension: {shlex.join(command)}") from error
    temporary.replace(target)
    return target


def _architectures() -> list[str]:
    """Return the flags for what a wheel's tag promises on macOS."""
    if given := os.environ.get("ARCHFLAGS"):
        return shlex.split(given)
    both = sysconfig.get_platform().endswith("universal2")
    return ["-arch", "arm64", "-arch", "x86_64"] if both else []


class NativeBuildHook(BuildHookInterface):
    """Compiles the extension when the package is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and give the wheel the tag of this platform."""
        compile_extension(Path(self.root))
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["artifacts"].append(f"/{EXTENSION}")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        check_tools()
    else:
        print(compile_extension())
