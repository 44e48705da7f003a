"""What ``deploy`` offers is valid: its settings, flags, ports, metrics and alerts exist."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidemill.cli.main import app
from tidemill.cli.server.settings_file import load

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
METRICS = ROOT / "docs" / "metrics.md"
PROMETHEUS = DEPLOY / "prometheus"
OWN = re.compile(r"\b(?:tidemill|process)_[a-z0-9_]+")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool of the package prometheus is not installed"
)


def documents(path: Path) -> list[Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra docs")
    return list(yaml.safe_load_all(path.read_text()))


def unknown(expressions: str) -> set[str]:
    """The names of own metrics in some text that docs/metrics.md does not have."""
    known = set(re.findall(r"^\| `([a-z0-9_]+)` \|", METRICS.read_text(), re.M))
    samples = {re.sub(r"_(bucket|sum|count)$", "", name) for name in OWN.findall(expressions)}
    return {each for each in OWN.findall(expressions) if each not in known} & samples - known


def run(*command: str, folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def check_command(arguments: list[str]) -> None:
    """Check that the command exists and knows these flags."""
    names = [each for each in arguments if each.startswith("--")]
    shown = CliRunner().invoke(app, [arguments[0], "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert [name for name in names if name not in shown.output] == []


def check_environment(values: dict[str, str]) -> None:
    assert load(None, environ=values).settings


def test_the_systemd_unit_runs_a_command_that_exists() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "systemd" / "tidemill.service")
    service = unit["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program.endswith("/tidemill")
    check_command(arguments)
    assert service["Type"] == "notify"
    check_environment(dict([service["Environment"].split("=", 1)]))


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "tidemill.service").read_text()
    (tmp_path / "tidemill.service").write_text(
        text.replace("/opt/tidemill/bin/tidemill", "/bin/true").replace(
            "User=tidemill", "User=root"
        )
    )
    run("systemd-analyze", "verify", str(tmp_path / "tidemill.service"), folder=tmp_path)


def test_the_image_runs_the_broker_without_privileges() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    instructions = re.sub(r"\\\n\s*", "", text)
    assert re.search(r"^USER tidemill$", instructions, re.M)
    (given,) = re.findall(r"^ENV (.*)$", instructions, re.M)
    pairs = dict(each.split("=", 1) for each in given.split())
    check_environment({key: value for key, value in pairs.items() if key != "PATH"})
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", instructions, re.M)
    (command,) = re.findall(r"^CMD (.*)$", instructions, re.M)
    assert json.loads(entry) == ["tidemill"]
    check_command(json.loads(command))
    (probe,) = re.findall(r"^HEALTHCHECK .*CMD (.*)$", instructions, re.M)
    compile(json.loads(probe)[2], "probe", "exec")
    assert "9464/health/ready" in probe


def test_the_compose_file_has_settings_and_files_that_exist() -> None:
    (found,) = documents(DEPLOY / "docker" / "compose.yaml")
    services = found["services"]
    check_environment(services["broker"]["environment"])
    for service in services.values():
        # The broker asks for no login, so nothing is offered to other machines.
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "docker" / source).exists()
            else:
                assert source in found["volumes"]
    build = services["broker"]["build"]
    assert (DEPLOY / "docker" / build["context"] / build["dockerfile"]).is_file()


def test_the_manifest_of_kubernetes_fits_together(tmp_path: Path) -> None:
    config, service, stateful = documents(DEPLOY / "kubernetes" / "tidemill.yaml")
    assert [each["kind"] for each in (config, service, stateful)] == [
        "ConfigMap",
        "Service",
        "StatefulSet",
    ]
    file = tmp_path / "tidemill.toml"
    file.write_text(config["data"]["tidemill.toml"])
    assert tomllib.loads(file.read_text())
    settings = load(file, environ={}).settings
    pod = stateful["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    check_command(container["args"])
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"kafka": settings.value("kafka.port"), "health": settings.value("health.port")}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        request = container[probe]["httpGet"]
        assert request["port"] == "health"
        assert request["path"] in ("/health/live", "/health/ready")
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert labels == service["spec"]["selector"] == stateful["spec"]["selector"]["matchLabels"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    volumes = {each["name"] for each in pod["volumes"]} | {"data"}
    assert set(mounts) == volumes
    assert str(settings.data_dir).startswith(mounts["data"] + "/")
    assert str(settings.value("kafka.tls_key")).startswith(mounts["tls"] + "/")
    assert settings.value("kafka.mechanisms")  # other machines reach it
    assert not settings.insecure
    assert stateful["spec"]["replicas"] == 1


def dashboard_expressions() -> Iterator[str]:
    found = json.loads((DEPLOY / "grafana" / "dashboards" / "tidemill.json").read_text())
    for panel in found["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def test_the_dashboard_and_the_alerts_use_metrics_that_exist() -> None:
    expressions = list(dashboard_expressions())
    assert len(expressions) > 20
    assert unknown("\n".join(expressions)) == set()
    rules = re.findall(r"expr: (.*(?:\n {10}.*)*)", (PROMETHEUS / "alerts.yml").read_text())
    assert len(rules) > 5
    assert unknown("\n".join(rules)) == set()
    assert unknown("tidemill_missing_total tidemill_sync_seconds_bucket") == {
        "tidemill_missing_total"
    }


def test_panels_do_not_overlap() -> None:
    found = json.loads((DEPLOY / "grafana" / "dashboards" / "tidemill.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])


@needs_promtool
def test_promtool_accepts_the_rules_and_they_fire_when_they_should() -> None:
    run("promtool", "check", "config", "prometheus.yml", folder=PROMETHEUS)
    run("promtool", "test", "rules", "alerts_test.yml", folder=PROMETHEUS)


@needs_promtool
def test_promtool_accepts_each_expression_of_the_dashboard(tmp_path: Path) -> None:
    expressions = [
        each.replace("$__rate_interval", "1m").replace("$instance", ".*")
        for each in dashboard_expressions()
    ]
    rules = [{"record": f"x:{number}", "expr": each} for number, each in enumerate(expressions)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "x", "rules": rules}]}))
    run("promtool", "check", "rules", "rules.yml", folder=tmp_path)
