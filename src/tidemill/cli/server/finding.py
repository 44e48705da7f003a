"""The result of one check of ``tidemill doctor``, and the check of the extras."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.extras import EXTRAS, Package, how_to_install, packages


@dataclass(frozen=True)
class Finding:
    """The result of a check: ok, warn or fail, a text for people, and perhaps what to do."""

    status: str
    check: str
    text: str
    hint: str = ""


def extras_finding() -> Finding:
    """Tell which extras are installed, in which versions, and which are not.

    A missing extra is not a fault. A warning is an extra of which only a part is installed, or a
    version that tidemill does not allow. An extra without its main package, the first one, is not
    installed: the others can be here for something else, as pandas is, or as pyarrow for SQL.
    """
    found = {extra: packages(extra) for extra in EXTRAS}
    whole = {extra: parts for extra, parts in found.items() if all(p.version for p in parts)}
    absent = [extra for extra, parts in found.items() if parts[0].version is None]
    texts = [f"{extra} ({', '.join(map(_version, parts))})" for extra, parts in whole.items()]
    texts += [
        f"{extra} in part ({', '.join(map(_version, parts))})"
        for extra, parts in found.items()
        if extra not in whole and extra not in absent
    ]
    text = ", ".join(texts) or "none"
    if absent:
        text += f"; not installed: {', '.join(absent)}"
    wrong = [
        extra
        for extra, parts in found.items()
        if extra not in absent and not all(p.is_suitable for p in parts)
    ]
    if wrong:
        return Finding("warn", "extras", text, f"Install again: {how_to_install(','.join(wrong))}.")
    hint = f"Install one: {how_to_install(absent[0])}." if absent else ""
    return Finding("ok", "extras", text, hint)


def _version(package: Package) -> str:
    if package.version is None:
        return f"{package.name} is missing"
    wrong = "" if package.is_suitable else f", but tidemill needs {package.needed}"
    return f"{package.name} {package.version}{wrong}"
