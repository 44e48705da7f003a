"""Typer's ``CliRunner``, which builds the commands of an application once.

Typer builds all of them from their functions' signatures in each call, which takes 0.07 s of
processor time: most of what a call in the process of the tests costs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from typer import testing

_module: Any = testing
_module._get_command = cache(_module._get_command)

CliRunner = testing.CliRunner
Result = testing.Result
