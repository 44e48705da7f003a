"""Objects of users' programs, by ``MODULE:NAME``."""

from __future__ import annotations

import importlib
import sys
from typing import TypeVar

from tidemill.cli.output import UsageError

Wanted = TypeVar("Wanted")


def load(target: str, kinds: tuple[type[Wanted], ...], name_of_kind: str) -> Wanted:
    """Return what ``MODULE:NAME`` is, or what it returns if it is a function without arguments.

    The working folder is searched first, as ``python -m`` does.

    Raises:
        UsageError: there is no such module or name, or it is something else.
    """
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise UsageError(f"invalid target {target!r}: use MODULE:NAME, such as shop:accounts")
    sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(f"can't import {module_name}: {error}") from error
    finally:
        sys.path.remove("")
    found = getattr(module, name, None)
    if not isinstance(found, kinds) and callable(found) and not isinstance(found, type):
        found = found()
    if not isinstance(found, kinds):
        raise UsageError(
            f"{target} is not a {name_of_kind}",
            hint=f"Name one, or a function without arguments that returns one, in {module_name}.",
        )
    return found
