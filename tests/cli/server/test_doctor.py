"""``tidemill doctor``: what it finds on this machine and in a data folder."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.cli_runner import CliRunner
from tests.support.ports import reserve_port
from tidemill.cli.main import app
from tidemill.log.disk.checkpoints import encode_metadata
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.log.journal.checkpoint import (
    CHECKPOINT,
    JournalCheckpoint,
    encode_journal_checkpoint,
)
from tidemill.log.partition.sync import METADATA
from tidemill.log.versions import FORMAT_FILE, FORMAT_VERSION

pytestmark = pytest.mark.usefixtures("clean_environment")


def findings(*arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    result = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    return result.exit_code, {finding["check"]: finding for finding in json.loads(result.stdout)}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A stopped broker's folder with three batches of two records."""
    folder = tmp_path / "data" / "topic-0"
    folder.mkdir(parents=True)
    (tmp_path / "data" / FORMAT_FILE).write_text(f"{FORMAT_VERSION}\n")
    (tmp_path / "data" / CHECKPOINT).write_bytes(encode_journal_checkpoint(JournalCheckpoint(b"")))
    records = [NewRecord(key=b"k", value=b"value", timestamp=1)] * 2
    batches = [encode_batch(records, timestamp_ms=1, base_offset=2 * n) for n in range(3)]
    (folder / f"{0:020}.log").write_bytes(b"".join(batches))
    (folder / METADATA).write_bytes(encode_metadata(uuid.UUID(int=1), 0))
    return tmp_path / "data"


def segment(data: Path) -> Path:
    return data / "topic-0" / f"{0:020}.log"


def test_a_suitable_machine_and_folder_are_ok(data: Path) -> None:
    code, found = findings("--data-dir", str(data), "--kafka-port", "0", "--verify")
    assert code == 0
    for check in ("python", "files", "disk", "port", "clock", "data", "format", "lock", "verify"):
        assert found[check]["status"] in ("ok", "warn"), found[check]
    assert "3 batches without damage" in found["verify"]["text"]


def verified(data: Path) -> tuple[int, dict[str, Any]]:
    code, found = findings("--data-dir", str(data), "--kafka-port", "0", "--verify")
    return code, found["verify"]


def test_a_torn_tail_is_a_warning_because_it_was_never_acknowledged(data: Path) -> None:
    whole = segment(data).read_bytes()
    segment(data).write_bytes(whole[:-10])
    code, found = verified(data)
    assert (code, found["status"]) == (0, "warn")
    assert f"byte {len(whole) // 3 * 2}, offset 4:" in found["text"]


def test_damage_in_the_middle_is_a_failure_that_names_the_place(data: Path) -> None:
    whole = bytearray(segment(data).read_bytes())
    size = len(whole) // 3
    whole[size + size - 3] ^= 1
    segment(data).write_bytes(whole)
    code, found = verified(data)
    assert (code, found["status"]) == (1, "fail")
    assert f"{segment(data)}: byte {size}, offset 2:" in found["text"]
    assert f"byte {2 * size}, offset 4" in found["hint"]


def test_a_partition_without_files_is_a_failure(data: Path) -> None:
    segment(data).unlink()
    code, found = verified(data)
    assert (code, found["status"]) == (1, "fail")
    assert f"{segment(data).parent} has no segments" in found["text"]


def test_a_batch_with_a_wrong_base_offset_is_a_failure(data: Path) -> None:
    whole = bytearray(segment(data).read_bytes())
    whole[len(whole) // 3 + 7] ^= 8  # the lowest byte of the second batch's base offset
    segment(data).write_bytes(whole)
    code, found = verified(data)
    assert (code, found["status"]) == (1, "fail")
    assert f"{segment(data)}: byte " in found["text"]
    assert "base offset 4 is below 12" in found["text"]


def test_a_closed_segment_that_was_cut_is_a_failure(data: Path) -> None:
    later = encode_batch(
        [NewRecord(key=None, value=b"v", timestamp=1)], timestamp_ms=1, base_offset=6
    )
    (data / "topic-0" / f"{6:020}.log").write_bytes(later)
    segment(data).write_bytes(segment(data).read_bytes()[:-10])
    code, found = verified(data)
    assert (code, found["status"]) == (1, "fail")


def test_it_reads_the_folder_without_changing_it(data: Path) -> None:
    segment(data).write_bytes(segment(data).read_bytes()[:-10])
    before = {path: path.stat().st_mtime_ns for path in sorted(data.rglob("*"))}
    findings("--data-dir", str(data), "--kafka-port", "0", "--verify")
    assert {path: path.stat().st_mtime_ns for path in sorted(data.rglob("*"))} == before


def test_a_folder_of_another_format_is_a_failure(data: Path) -> None:
    (data / FORMAT_FILE).write_text("99\n")
    code, found = findings("--data-dir", str(data), "--kafka-port", "0")
    assert code == 1
    assert "'99'" in found["format"]["text"]
    (data / FORMAT_FILE).write_text("1\n")
    _, found = findings("--data-dir", str(data), "--kafka-port", "0")
    assert found["format"]["text"] == f"version 1; the next start makes it {FORMAT_VERSION}"
    (data / FORMAT_FILE).unlink()
    assert "tidemill did not create it" in findings("--data-dir", str(data))[1]["format"]["text"]


def test_a_missing_folder_will_be_created() -> None:
    code, found = findings("--data-dir", "new/folder", "--kafka-port", "0", "--verify")
    assert (code, found["data"]["text"]) == (0, "new/folder will be created")
    assert not Path("new").exists()


def test_a_running_broker_is_named_and_its_folder_left_alone(broker: BrokerProcess) -> None:
    arguments = ("--data-dir", str(broker.data_dir), "--kafka-port", str(broker.port))
    code, found = findings(*arguments)
    assert code == 0
    assert "a broker answers" in found["port"]["text"]
    assert found["lock"]["text"] == "a broker is using the folder"
    code, found = findings(*arguments, "--verify")
    assert (code, found["verify"]["status"]) == (1, "fail")


def test_a_broker_with_another_folder_on_the_port_is_a_warning(
    broker: BrokerProcess, data: Path
) -> None:
    code, found = findings("--data-dir", str(data), "--kafka-port", str(broker.port))
    assert (code, found["port"]["status"]) == (0, "warn")
    assert "but it uses another data folder" in found["port"]["text"]
    assert "--kafka-port" in found["port"]["hint"]


def test_the_address_that_clients_get_is_checked(broker: BrokerProcess, data: Path) -> None:
    _, found = findings("--data-dir", str(data), "--kafka-port", "0")
    assert found["address"]["status"] == "ok"
    unknown = ("--set", "kafka.advertised_host=nowhere.invalid")
    _, found = findings("--data-dir", str(data), "--kafka-port", "0", *unknown)
    assert found["address"]["status"] == "warn"
    assert "nowhere.invalid is unknown here" in found["address"]["text"]
    running = ("--data-dir", str(broker.data_dir), "--kafka-port", str(broker.port))
    _, found = findings(*running, "--set", "kafka.advertised_host=localhost")
    assert found["address"]["status"] == "ok"
    _, found = findings(*running, "--set", f"kafka.advertised_port={reserve_port()}")
    assert (found["address"]["status"], "nothing answers" in found["address"]["text"]) == (
        "warn",
        True,
    )
    assert "advertised_host" in found["address"]["hint"]


def test_a_missing_java_is_a_warning_because_only_pipelines_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    real = shutil.which("java")
    assert real is None
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    code, found = findings("--kafka-port", "0")
    assert (code, found["java"]["status"]) == (0, "warn")
    assert "tidemill[jre]" in found["java"]["hint"]


def test_the_table_has_the_same_checks_and_the_number_of_failures(data: Path) -> None:
    (data / FORMAT_FILE).write_text("99\n")
    result = CliRunner().invoke(app, ["doctor", "--data-dir", str(data), "--kafka-port", "0"])
    assert result.exit_code == 1
    assert "fail  format" in result.stdout
    assert "error: 1 check failed" in result.stderr
