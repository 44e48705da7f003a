"""Workers log in with users of their own, and no password is where others can read it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.support import environment
from tests.support.broker_process import BrokerProcess
from tests.support.ports import reserve_port
from tests.support.processes import poll_until
from tidemill.cli.server import settings_file
from tidemill.cli.server.worker_logins import WorkerLogin
from tidemill.errors import SettingsError

SECRET = "s3cret,of=the gateway"


def written(folder: Path, more: str = "") -> Path:
    """Write the settings of a broker whose Kafka clients log in, with a gateway."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "users").write_text(f"alice:secret\ngate:{SECRET}\n")
    (folder / "users").chmod(0o600)
    (folder / "tidemill.toml").write_text(
        '[kafka]\nmechanisms = "SCRAM-SHA-256, PLAIN"\n[logins]\nusers_file = "users"\n' + more
    )
    return folder


def topics(port: int) -> int:
    """Return the status of a request at the gateway; 0 while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/topics", timeout=10) as answer:
            return int(answer.status)
    except OSError as error:
        return getattr(error, "code", 0)


@pytest.mark.parametrize("how", ["by itself", "variable"])
def test_the_gateway_logs_in_and_nobody_sees_its_password(tmp_path: Path, how: str) -> None:
    more = {
        "by itself": "",
        "variable": '[workers.gateway]\nusername = "gate"\npassword = "${env:GATE}"\n',
    }[how]
    folder = written(tmp_path / "broker", more)
    port = reserve_port()
    settings = {"gateway.enabled": "true", "gateway.port": str(port)}
    with BrokerProcess(folder, settings=settings, env={"GATE": SECRET}) as broker:
        poll_until(lambda: topics(port) == 200, 60, "the gateway")
        files = list((broker.data_dir / "workers").iterdir())
        for each in files:
            assert each.stat().st_mode & 0o777 == 0o600
        lines = (broker.data_dir / "workers" / "gateway.properties").read_text().splitlines()
        (line,) = [each for each in lines if each.startswith("sasl.password=")]
        password = line.partition("=")[2]
        assert (password == SECRET) == (how != "by itself")
        children = psutil.Process(broker.pid).children(recursive=True)
        arguments = [" ".join(each.cmdline()) for each in [psutil.Process(broker.pid), *children]]
        assert len(arguments) > 1
        assert not any(password in each for each in arguments)
        assert password not in broker.log(10_000_000)
        broker.terminate()


def test_a_password_can_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tidemill.toml"
    file.write_text('[workers.default]\nusername = "gate"\npassword_file = "gate.secret"\n')
    (login,) = settings_file.load(file, environ={}).settings.entries(WorkerLogin)
    with pytest.raises(SettingsError, match=r"can't read workers\.default\.password_file"):
        login.secret()
    (tmp_path / "gate.secret").write_text(SECRET + "\n")
    assert login.secret() == SECRET
    variable = WorkerLogin.model_validate(
        {"name": "a", "username": "u", "password": "${env:TIDEMILL_NOT_SET}"}
    )
    with pytest.raises(SettingsError, match="TIDEMILL_NOT_SET, which is not set"):
        variable.secret()


def test_config_show_masks_passwords(tmp_path: Path) -> None:
    folder = written(tmp_path, f'[workers.gateway]\nusername = "gate"\npassword = "{SECRET}"\n')
    for more in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "tidemill", "config", "show", *more],
            capture_output=True,
            text=True,
            cwd=folder,
            env=environment.without_settings(),
        )
        assert done.returncode == 0, done.stderr
        assert SECRET not in done.stdout + done.stderr
        assert "workers.gateway.password" in done.stdout


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('username = "a"', "a login needs username"),
        ('password = "a"', "a login needs username"),
        ('username = "a"\npassword = "b"\npassword_file = "c"', "a login needs username"),
        ('user = "a"', "unknown key user"),
    ],
)
def test_a_login_that_is_not_whole_is_refused(tmp_path: Path, table: str, problem: str) -> None:
    file = tmp_path / "tidemill.toml"
    file.write_text(f"[workers.gateway]\n{table}\n")
    with pytest.raises(SettingsError, match=problem) as refused:
        settings_file.load(file, environ={})
    assert "[workers.gateway]" in str(refused.value)


def test_commands_take_properties_from_a_file(tmp_path: Path) -> None:
    with BrokerProcess(written(tmp_path / "broker")) as broker:

        def listed(text: str, *more: str) -> subprocess.CompletedProcess[str]:
            file = tmp_path / "client.properties"
            file.write_text(text)
            return subprocess.run(
                [sys.executable, "-m", "tidemill", "topic", "list", "--json", *more],
                capture_output=True,
                text=True,
                env={**environment.without_settings(), "TIDEMILL_CLIENT_CONFIG": str(file)},
            )

        text = f"# of alice\nbootstrap.servers={broker.bootstrap}\n\nsasl.username=alice\n"
        text += "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        done = listed(text + "sasl.password=secret\n")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == []
        assert listed(text + "sasl.password=wrong\n").returncode == 5
        assert listed(text + "sasl.password=wrong\n", "-X", "sasl.password=secret").returncode == 0
        done = listed("sasl.password\n")
        assert done.returncode == 2
        assert "expected KEY=VALUE in each line" in done.stderr
