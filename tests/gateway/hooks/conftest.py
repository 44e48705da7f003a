"""A gateway with hooks that the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.gateway_process import GatewayProcess
from tests.support.ports import reserve_port

SECRET = "It's a Secret to Everybody"
STANDARD = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HOOKS = """
[hooks]
port = {port}
body_bytes = 100000
public_url = "https://hooks.example.com/in"

[[hook]]
name = "github"
topic = "github-events"
verifier = "github"
secrets = ["${{file:{folder}/secret}}"]
key = "json:repository"
headers = {{ event = "header:X-GitHub-Event" }}

[[hook]]
name = "standard"
topic = "standard-events"
verifier = "standard"
secrets = ["${{file:{folder}/old}}", "${{file:{folder}/standard}}"]

[[hook]]
name = "stripe"
topic = "stripe-events"
verifier = "stripe"
secrets = ["${{file:{folder}/secret}}"]

[[hook]]
name = "slack"
topic = "slack-events"
verifier = "slack"
secrets = ["${{file:{folder}/secret}}"]

[[hook]]
name = "twilio"
topic = "twilio-events"
verifier = "twilio"
secrets = ["${{file:{folder}/secret}}"]

[[hook]]
name = "events"
topic = "cloud-events"
verifier = "token"
header = "Authorization"
prefix = "Bearer "
secrets = ["${{file:{folder}/secret}}"]
format = "cloudevents"
allowed_origins = ["events.example.com"]
allowed_rate = 120

[[hook]]
name = "open"
topic = "open-events"
partitions = 2
verifier = "none"
methods = ["POST", "PUT"]
path = "/{{shop}}/{{kind}}"
key = "path:shop"
delivery_id = "header:x-id"
headers = {{ kind = "path:kind", method = "method", page = "query:page" }}
"""


def write_settings(folder: Path, port: int, text: str = HOOKS) -> Path:
    """Write a settings file and its secrets; return the file."""
    (folder / "secret").write_text(SECRET + "\n")
    (folder / "standard").write_text(STANDARD)
    (folder / "old").write_text("whsec_" + "A" * 32)
    file = folder / "tidemill.toml"
    file.write_text(text.format(port=port, folder=folder))
    return file


@pytest.fixture(scope="package")
def hooks_gateway(
    tmp_path_factory: pytest.TempPathFactory, broker: BrokerProcess
) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("hooks")
    file = write_settings(folder, reserve_port())
    with GatewayProcess(folder, broker.bootstrap, config=file) as process:
        yield process
    assert "gateway.failed" not in process.log()


@pytest.fixture(scope="package")
def url(hooks_gateway: GatewayProcess) -> str:
    return f"{hooks_gateway.ready_event['hooks']}/hooks"


@pytest.fixture(scope="package")
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as made:
        yield made
