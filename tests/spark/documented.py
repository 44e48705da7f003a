"""Classes that ``docs/extending.md`` shows."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def documented_class(name: str) -> Any:
    """Return a class that a block of code on the page defines."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    [code] = [each for each in blocks if f"class {name}(" in each]
    module = ModuleType("documented")
    sys.modules["documented"] = module  # dataclasses look their module up
    exec(compile(code, str(PAGE), "exec", dont_inherit=True), module.__dict__)
    return module.__dict__[name]
