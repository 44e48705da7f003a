"""``tidemill doctor --repair`` with a broker process: dry run, lock, repair, start."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.broker_process import BrokerProcess
from tests.support.cli_runner import CliRunner, Result
from tests.support.processes import StartFailedError
from tests.support.topics import create, write
from tidemill.cli.main import app
from tidemill.log.format.batch import iter_headers
from tidemill.log.journal.checkpoint import CHECKPOINT
from tidemill.log.journal.extent import EXTENT
from tidemill.log.versions import FORMAT_FILE

CATALOG = "__tidemill_catalog-0"


pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture(scope="module")
def killed_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a broker with two topics and two groups that was killed.

    It has no journal, as a folder of an earlier version: the broker would restore the damage.
    """
    with BrokerProcess(tmp_path_factory.mktemp("killed")) as broker:
        create(broker.bootstrap, "flights", partitions=2)
        create(broker.bootstrap, "empty")
        numbers = (b"%d" % number for number in range(10))
        write(broker.bootstrap, "flights", *numbers, one_by_one=True, partition=0)
        commit(broker, "behind", 4)
        commit(broker, "beyond", 99)
        broker.kill()
        shutil.rmtree(broker.data_dir / "journal", ignore_errors=True)
        for name in (CHECKPOINT, EXTENT):
            (broker.data_dir / name).unlink(missing_ok=True)
        (broker.data_dir / FORMAT_FILE).write_text("1\n")
        return broker.data_dir


@pytest.fixture
def killed(killed_data: Path, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that is not running, with a copy of ``killed_data``."""
    broker = BrokerProcess(tmp_path / "broker")
    shutil.copytree(killed_data, broker.data_dir, ignore=shutil.ignore_patterns("*.sock"))
    yield broker
    broker.__exit__()


def commit(broker: BrokerProcess, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition("flights", 0, offset)], asynchronous=False)
    consumer.close()


def read(broker: BrokerProcess, count: int) -> list[tuple[int | None, bytes | None]]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition("flights", 0, 0)])
    messages = [consumer.poll(90) for _ in range(count)]
    consumer.close()
    return [(m.offset(), m.value()) for m in messages if m is not None and m.error() is None]


def damage(broker: BrokerProcess, batch: int) -> Path:
    """Flip a bit in one batch of ``flights-0``; each of them has one record."""
    path = broker.data_dir / "flights-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    positions = [position for position, _ in iter_headers(data)]
    data[positions[batch] + 65] ^= 1
    path.write_bytes(data)
    return path


def doctor(broker: BrokerProcess, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", "--data-dir", str(broker.data_dir), *arguments])


def names(broker: BrokerProcess) -> set[str]:
    metadata = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=60)
    return {name for name in metadata.topics if not name.startswith("__")}


@pytest.mark.slow
def test_a_broker_without_its_catalog_names_the_command_that_rebuilds_it(
    killed: BrokerProcess,
) -> None:
    shutil.rmtree(killed.data_dir / CATALOG)
    with pytest.raises(StartFailedError, match="tidemill doctor --repair catalog"):
        killed.start()
    assert killed.process.exit_code == 1

    shown = doctor(killed, "--repair", "catalog")
    assert shown.exit_code == 0, shown.output
    assert "Nothing was changed" in shown.stdout
    assert "flights" in shown.stdout
    assert not (killed.data_dir / CATALOG).exists()

    done = doctor(killed, "--repair", "catalog", "--yes")
    assert done.exit_code == 0, done.output
    killed.start()
    assert names(killed) == {"flights", "empty"}
    killed.terminate()
    assert "is whole" in doctor(killed, "--repair", "catalog", "--yes").stdout


def test_a_damaged_partition_is_shown_repaired_and_read(killed: BrokerProcess) -> None:
    path = damage(killed, 5)
    before = path.read_bytes()

    listed = doctor(killed, "--repair", "flights-0")
    assert listed.exit_code == 0, listed.output
    assert f"damage at offset 5: {path}, byte" in listed.stdout
    assert "--at 5" in listed.stdout

    shown = doctor(killed, "--repair", "flights-0", "--at", "5")
    assert "gives up the offsets 5 to 5 (1;" in shown.stdout
    assert "written between 20" in shown.stdout
    assert "group behind is at offset 4" in shown.stdout
    assert "group beyond is at offset 99, beyond the end" in shown.stdout
    assert "Nothing was changed" in shown.stdout
    assert path.read_bytes() == before

    done = doctor(killed, "--repair", "flights-0", "--at", "5", "--yes")
    assert done.exit_code == 0, done.output
    (kept,) = killed.data_dir.glob("flights-0.*-cut")
    assert str(kept) in done.stdout

    killed.start()
    numbers = [number for number in range(10) if number != 5]
    assert read(killed, 9) == [(number, b"%d" % number) for number in numbers]
    write(killed.bootstrap, "flights", b"10", partition=0)
    assert read(killed, 10)[-1] == (10, b"10")
    killed.restart()
    assert kept.is_dir()
    assert killed.terminate() == 0
    assert "No damage was found" in doctor(killed, "--repair", "flights-0").stdout


def test_an_offset_without_damage_is_refused_with_the_right_one(killed: BrokerProcess) -> None:
    damage(killed, 5)
    refused = doctor(killed, "--repair", "flights-0", "--at", "3", "--yes")
    assert refused.exit_code == 3
    assert "It is damaged at offset 5." in refused.stderr
    for name, code in (("nothing-0", 3), (CATALOG, 2)):
        assert doctor(killed, "--repair", name, "--at", "3").exit_code == code


def test_json_lists_damage_and_the_kept_folder(killed: BrokerProcess) -> None:
    path = damage(killed, 0)
    plan = json.loads(doctor(killed, "--repair", "flights-0", "--json").stdout)
    assert [(each["offset"], each["file"]) for each in plan["damage"]] == [(0, str(path))]
    done = doctor(killed, "--repair", "flights-0", "--at", "0", "--yes", "--json").stdout
    assert Path(json.loads(done)["kept"]).is_dir()


def test_json_says_what_is_rebuilt_and_what_is_unknown(killed: BrokerProcess) -> None:
    shutil.rmtree(killed.data_dir / CATALOG)
    plan = json.loads(doctor(killed, "--repair", "catalog", "--json").stdout)
    assert {each["name"]: each["partitions"] for each in plan["topics"]}["flights"] == 2
    assert (plan["done"], plan["is_whole"]) == (False, False)
    assert any("producer ids" in line for line in plan["unknown"])


def test_a_running_broker_is_left_alone(killed: BrokerProcess) -> None:
    killed.start()
    for what in (("catalog",), ("flights-0", "--at", "0")):
        refused = doctor(killed, "--repair", *what, "--yes")
        assert refused.exit_code == 4
        assert "in use by another process" in refused.stderr


def test_a_folder_that_is_not_a_data_folder_is_refused(tmp_path: Path) -> None:
    for folder, code in (("missing", 3), (".", 1)):
        result = CliRunner().invoke(app, ["doctor", "--data-dir", folder, "--repair", "catalog"])
        assert result.exit_code == code, result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("--repair", "flights"),
        ("--repair", "catalog", "--at", "5"),
        ("--repair", "flights-0", "--yes"),
        ("--repair", "flights-00", "--at", "5"),
        ("--at", "5"),
        ("--yes",),
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert result.exit_code == 2, result.output


@pytest.mark.slow
@pytest.mark.parametrize("name", ["__consumer_offsets-0", "__transaction_state-0", "flights-0"])
def test_a_partition_without_its_folder_continues_empty(killed: BrokerProcess, name: str) -> None:
    """Otherwise a broker would never start again that has lost the folder of an internal topic."""
    shutil.rmtree(killed.data_dir / name)
    if name.startswith("__"):
        with pytest.raises(StartFailedError, match=f"tidemill doctor --repair {name}"):
            killed.start()
    listed = doctor(killed, "--repair", name)
    assert "damage at offset 0" in listed.stdout, listed.output
    done = doctor(killed, "--repair", name, "--at", "0", "--yes")
    assert done.exit_code == 0, done.output
    killed.start()
    commit(killed, "new", 3)
    write(killed.bootstrap, "flights", b"new", partition=0)
    assert "partition.offline" not in killed.log()
    assert killed.terminate() == 0
