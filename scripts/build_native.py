"""Compile the C sources in src/native to the extension tidemill._native.

The build of the package (hatchling) runs this as a hook, also for an editable installation. Run it
by hand after a change of the sources:

    python scripts/build_native.py

Without a C compiler or Python's headers the package is built without the extension, and tidemill
uses its editions in Python. TIDEMILL_NATIVE=0 leaves the extension out; TIDEMILL_NATIVE=1 makes a
failure to compile an error.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
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


def compile_extension(root: Path = ROOT) -> Path | None:
    """Compile the extension.

    Returns:
        The compiled file; None if it was left out.

    Raises:
        SystemExit: It can't be compiled, and TIDEMILL_NATIVE=1 demands it.
    """
    wanted = os.environ.get("TIDEMILL_NATIVE", "")
    target = root / EXTENSION
    target.unlink(missing_ok=True)
    if wanted == "0":
        return None
    sources = sorted((root / "src" / "native").glob("*.c"))
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    command = [
        *shlex.split(os.environ.get("CC") or "cc"),
        *("-std=c11", "-O3", "-g1", "-fPIC", "-shared", "-fvisibility=hidden"),
        *("-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-missing-field-initializers"),
        f"-DPy_LIMITED_API={STABLE_ABI}",
        f"-I{sysconfig.get_path('include')}",
        *shlex.split(os.environ.get("CFLAGS", "")),
        *(("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()),
        *map(str, sources),
        *("-o", str(temporary)),
    ]
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        temporary.unlink(missing_ok=True)
        if wanted == "1":
            raise SystemExit(f"can't compile the extension: {error}") from error
        print(f"tidemill is installed without its compiled extension: {error}", file=sys.stderr)
        return None
    temporary.replace(target)
    return target


class NativeBuildHook(BuildHookInterface):
    """Compiles the extension when the package is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and give the wheel the tag of this platform."""
        compiled = compile_extension(Path(self.root))
        if compiled is None:
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["artifacts"].append(f"/{EXTENSION}")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"


if __name__ == "__main__":
    print(compile_extension() or "left out")
