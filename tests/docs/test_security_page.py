"""The guide to security takes a broker from open to closed, as it says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.docs.snippets import run, snippets
from tests.support.broker_process import BrokerProcess

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")
def test_the_guide_closes_a_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    (tmp_path / "tidemill-data").symlink_to(broker.data_dir)
    broker.data_dir.mkdir()
    settings = re.search(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert settings is not None
    (tmp_path / "tidemill.toml").write_text(settings[1])
    parts = list(snippets(PAGE))
    start = next(i for i, each in enumerate(parts) if "user create admin" in each.text) + 1
    for snippet in parts[:start]:
        run(snippet, tmp_path, "localhost:9092")
    with broker:
        address = f"localhost:{broker.port}"
        for snippet in parts[start:]:
            run(snippet, tmp_path, address)
        assert "address.open" not in broker.log()
        broker.terminate()
