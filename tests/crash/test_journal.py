"""Power is cut, and the disk damages the journal: a loss is never silent.

A broker that runs acknowledges records, of which only the journal is synced. Its segments lose what
was not synced, and one file of the journal is damaged. ``tests/log/journal/test_journal_damage.py``
has every file and every region.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from typer.testing import CliRunner

from tests.conftest import BrokerFactory
from tests.crash.load import read_all
from tests.crash.power import Power
from tests.support.broker_process import BrokerProcess
from tests.support.processes import StartFailedError, poll_until
from tests.support.topics import create, write
from tidemill.cli.main import app
from tidemill.log.disk.files import RealFileSystem
from tidemill.log.journal.entry import MAGIC
from tidemill.log.journal.extent import read_extent

pytestmark = [pytest.mark.crash, pytest.mark.disk]

RECORDS = 30


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a broker after a power cut, with acknowledged records in ``t-0``."""
    folder = tmp_path_factory.mktemp("power")
    with contextlib.closing(BrokerFactory(folder)) as factory:
        return filled(Power(factory, folder))


def filled(power: Power) -> Path:
    """Let the broker acknowledge records; cut the power and return its data folder."""
    broker, fs = power.broker, RealFileSystem()
    create(broker.bootstrap, "t")
    write(broker.bootstrap, "t", *(b"p:%d:" % number for number in range(RECORDS)), one_by_one=True)

    def is_known() -> bool:
        found = read_extent(fs, str(broker.data_dir))
        ends = [each.end_offset for each in found or ()]
        return RECORDS in ends

    poll_until(is_known, 1, "the second place knows the last record")
    broker.kill()
    for folder in broker.data_dir.glob("*-0"):
        segment, synced = power.last_segment(folder.name)
        with segment.open("r+b") as file:
            file.truncate(synced)
    return broker.data_dir


@pytest.fixture
def broker(cut: Path, tmp_path: Path) -> BrokerProcess:
    """A broker that is not running, with a copy of ``cut``."""
    found = BrokerProcess(tmp_path / "broker")
    shutil.copytree(cut, found.data_dir, ignore=shutil.ignore_patterns("*.sock"))
    return found


def journal(broker: BrokerProcess) -> Path:
    return broker.data_dir / "journal" / "00000001.journal"


def last_entry(broker: BrokerProcess) -> int:
    return journal(broker).read_bytes().rindex(MAGIC)


def overwrite(broker: BrokerProcess, position: int, data: bytes) -> None:
    with journal(broker).open("r+b") as file:
        file.seek(position)
        file.write(data)


def change_magic(broker: BrokerProcess) -> None:
    overwrite(broker, last_entry(broker), b"TMK1")


def change_sequence(broker: BrokerProcess) -> None:
    position = last_entry(broker) + 31
    overwrite(broker, position, bytes([journal(broker).read_bytes()[position] ^ 4]))


def lose_checkpoint(broker: BrokerProcess) -> None:
    (broker.data_dir / "journal-checkpoint").unlink()


def do_nothing(_: BrokerProcess) -> None:
    pass


@pytest.mark.parametrize("damage", [do_nothing, change_magic, change_sequence, lose_checkpoint])
def test_damage_that_can_be_corrected_loses_nothing(
    broker: BrokerProcess, damage: Callable[[BrokerProcess], None]
) -> None:
    damage(broker)
    with broker:
        found = read_all(broker.bootstrap, {"t": 1})
        assert list(found.values()) == [b"p:%d:" % number for number in range(RECORDS)]


def test_a_lost_entry_takes_its_partition_offline(broker: BrokerProcess) -> None:
    """The extent says what it promised."""
    for position in range(last_entry(broker), last_entry(broker) - 3 * 4096, -4096):
        overwrite(broker, position, bytes(4096))
    with broker:
        with pytest.raises(KafkaException):
            read_all(broker.bootstrap, {"t": 1}, offsets_timeout=1)
        log = broker.log(50_000)
        assert "partition.offline" in log
        assert f"the journal proves records up to offset {RECORDS - 1}" in log
        assert "of the journal is damaged or missing" in log


def test_a_lost_file_stops_the_start_until_that_is_accepted(broker: BrokerProcess) -> None:
    journal(broker).unlink()
    with pytest.raises(StartFailedError, match="tidemill doctor --repair journal"):
        broker.start()

    def doctor(*arguments: str) -> str:
        arguments = ("--data-dir", str(broker.data_dir), *arguments)
        return CliRunner().invoke(app, ["doctor", *arguments]).output

    assert f"{journal(broker)} is missing" in doctor("--verify")
    shown = doctor("--repair", "journal")
    assert f"damage: {journal(broker)} is missing" in shown
    assert "Nothing was changed" in shown
    with pytest.raises(StartFailedError, match=r"00000001\.journal is missing"):
        broker.start()
    assert "The next start accepts that" in doctor("--repair", "journal", "--yes")
    # The extent knows what is lost: a record of the catalog, and the end of the partition.
    with pytest.raises(StartFailedError, match="tidemill doctor --repair catalog"):
        broker.start()
    assert "rebuilt" in doctor("--repair", "catalog", "--yes")
    with broker:
        log = broker.log(50_000)
        assert "a repair has accepted that" in log
        assert "partition.offline" in log
        assert f"it was synced up to offset {RECORDS}" in log
        assert broker.terminate() == 0
    assert "nothing to repair" in doctor("--repair", "journal")
