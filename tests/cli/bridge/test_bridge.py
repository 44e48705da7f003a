"""``tidemill bridge``, with the worker that the broker runs."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cli.conftest import CommandLine
from tests.support.processes import poll_until

pytestmark = pytest.mark.slow


def definition(folder: Path, name: str, options: str = "") -> str:
    """Return the file of a bridge that listens at a free port."""
    file = folder / f"{name}.toml"
    listen = 'listen = ["udp://127.0.0.1:0"], interval_s = 0.2'
    file.write_text(
        f'name = "{name}"\nkind = "statsd"\ntopic = "{name}"\noptions = {{ {listen}{options} }}\n'
    )
    return str(file)


def state(tidemill: CommandLine, name: str, wanted: str) -> dict[str, object]:
    """Wait for a state, and return what is known of the bridge."""
    found: dict[str, object] = {}

    def is_so() -> bool:
        found.clear()
        found.update(tidemill.json("bridge", "describe", name))
        return found["state"] == wanted

    poll_until(is_so, 60, f"bridge {name} is {wanted}", 0.1)
    return found


def test_a_bridge_is_created_paused_resumed_and_deleted(
    tmp_path: Path, tidemill: CommandLine
) -> None:
    file = definition(tmp_path, "app")
    assert tidemill.ok("bridge", "create", file, "--dry-run") == "would create bridge app\n"
    assert tidemill.ok("bridge", "create", file) == "created bridge app\n"
    found = state(tidemill, "app", "running")
    details = found["details"]
    assert isinstance(details, dict)
    at = urlsplit(details["addresses"][0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"hits:1|c", (str(at.hostname), int(at.port or 0)))
    poll_until(
        lambda: tidemill.json("bridge", "describe", "app")["received"] == 1, 60, "received", 0.1
    )
    assert "app" in tidemill.ok("bridge", "list")
    assert "received       1" in tidemill.ok("bridge", "describe", "app")

    tidemill.ok("bridge", "pause", "app")
    state(tidemill, "app", "paused")
    tidemill.ok("bridge", "resume", "app")
    state(tidemill, "app", "running")
    assert tidemill.ok("bridge", "delete", "app", "--yes") == "deleted bridge app\n"
    assert tidemill.json("bridge", "list") == []


def test_what_can_not_be_done_has_an_exit_code_and_a_hint(
    tmp_path: Path, tidemill: CommandLine
) -> None:
    bad = definition(tmp_path, "bad", ', dialect = "graphite"')
    good = definition(tmp_path, "good")
    tidemill.ok("bridge", "create", good)
    for code, arguments, said in (
        (2, ("create", bad), "dialect"),
        (2, ("create", str(tmp_path / "missing.toml")), "can't read"),
        (2, ("run",), "--all"),
        (3, ("describe", "nothing"), "bridge nothing does not exist"),
        (3, ("pause", "nothing"), "tidemill bridge list"),
        (4, ("create", good), "already exists"),
    ):
        done = tidemill.run("bridge", *arguments)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert tidemill.ok("bridge", "create", good, "--replace") == "replaced bridge good\n"
    tidemill.ok("bridge", "delete", "good", "--yes")
