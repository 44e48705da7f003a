"""A start after an unclean stop: a catalog that lost records is refused, and nothing is changed."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engine.support import running, start
from tests.engine.transactions.support import kill
from tests.support.effort import rounds
from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import append_records
from tidemill.engine.api import ConfigChange, NewTopic
from tidemill.engine.engine import Engine
from tidemill.engine.errors import CatalogLostError
from tidemill.log.format.batch import iter_headers
from tidemill.log.format.records import NewRecord, decode_records
from tidemill.state.catalog.types import AlterOp

CATALOG = "__tidemill_catalog-0"
SEGMENT = f"{0:020}.log"


@contextlib.asynccontextmanager
async def unclean(folder: Path) -> AsyncIterator[Engine]:
    """Run a broker whose stop is not a clean one, for the next start."""
    async with running(folder) as engine:
        yield engine
    (folder / "clean-stop.json").unlink()


async def produce(engine: Engine, topic: str, partition: int = 0) -> None:
    await append_records(engine, topic, partition, [NewRecord(b"k", b"v")])


async def fill(folder: Path, *topics: str) -> None:
    async with unclean(folder) as engine:
        for topic in topics:
            await engine.topics.ensure(topic)
            await produce(engine, topic)


async def delete(folder: Path, topic: str, *, crash: bool = False) -> None:
    """Delete a topic, and put its folder back.

    Args:
        crash: it comes after the catalog's record and before the folder is renamed.
    """
    shutil.copytree(folder / f"{topic}-0", folder / "kept")
    async with unclean(folder) as engine:
        if crash:
            engine._topic_admin._finish_deletions = _nothing  # type: ignore[method-assign, assignment]
        assert await engine.topics.delete([topic]) == [None]
    shutil.move(folder / "kept", folder / f"{topic}-0")


async def _nothing(_: object) -> None:
    return None


async def fill_deleted(folder: Path, topic: str) -> None:
    """Create a topic, delete it, and create it again."""
    await fill(folder, topic)
    async with unclean(folder) as engine:
        await engine.topics.delete([topic])
    await fill(folder, topic)


def names(engine: Engine) -> list[str]:
    return [topic.name for topic in engine.topics.all() if not topic.internal]


def flip_bit(log: Path, position: int) -> None:
    data = bytearray(log.read_bytes())
    data[position] ^= 1
    log.write_bytes(data)


def snapshot(folder: Path) -> dict[str, bytes]:
    """The partitions' folders with all that is in their logs."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*.log"))
        if path.stat().st_size
    }


def cut_catalog(folder: Path, batches: int) -> None:
    """Take the last batches away, and forget that they were synced."""
    log = folder / CATALOG / SEGMENT
    positions = [position for position, _ in iter_headers(log.read_bytes())]
    with log.open("r+b") as file:
        file.truncate(positions[-batches])
    (folder / "recovery-point-offset-checkpoint").unlink()


def catalog_keys(folder: Path) -> list[bytes]:
    data = (folder / CATALOG / SEGMENT).read_bytes()
    return [
        record.key or b""
        for position, header in iter_headers(data)
        for record in decode_records(memoryview(data)[position : position + header.size])
    ]


def set_aside(folder: Path) -> list[Path]:
    return list(folder.glob("*-stray"))


async def refused(folder: Path) -> CatalogLostError:
    before = snapshot(folder)
    with pytest.raises(CatalogLostError) as caught:
        await start(folder)
    assert "tidemill doctor --repair catalog" in caught.value.hint
    assert {name: data for name, data in snapshot(folder).items() if name in before} == before
    assert not set_aside(folder)
    return caught.value


async def test_a_missing_catalog_is_refused_at_every_start(tmp_path: Path) -> None:
    await fill(tmp_path, "a", "b")
    shutil.rmtree(tmp_path / CATALOG)
    for _ in range(2):
        error = await refused(tmp_path)
        assert f"{tmp_path / CATALOG}" in str(error)
        assert "a (1), b (1)" in str(error)


async def test_a_catalog_without_segments_is_refused(tmp_path: Path) -> None:
    await fill(tmp_path, "a")
    for path in (tmp_path / CATALOG).iterdir():
        path.unlink()
    await refused(tmp_path)
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    for _ in range(2):
        await refused(tmp_path)


async def test_a_topic_that_is_cut_from_the_catalogs_end_is_refused_and_named(
    tmp_path: Path,
) -> None:
    await fill(tmp_path, "a", "b")
    cut_catalog(tmp_path, 1)
    error = await refused(tmp_path)
    assert "b (1)" in str(error)
    assert "a (1)" not in str(error)


async def test_empty_topics_are_evidence_too_if_a_later_note_says_what_the_catalog_had(
    tmp_path: Path,
) -> None:
    async with unclean(tmp_path) as engine:
        await engine.topics.create([NewTopic("a", 2)])
        await engine.topics.create([NewTopic("b", 2)])
    cut_catalog(tmp_path, 2)
    error = await refused(tmp_path)
    assert "it ends at offset 6" in str(error)


async def test_the_last_empty_topic_is_evidence_once_its_note_is_written_again(
    tmp_path: Path,
) -> None:
    async with unclean(tmp_path) as engine:
        await engine.topics.create([NewTopic("a", 2)])
        await engine._topic_notes.write()
    cut_catalog(tmp_path, 1)
    await refused(tmp_path)


async def test_a_config_that_is_cut_from_the_catalogs_end_is_refused(tmp_path: Path) -> None:
    """Otherwise the old retention would delete records that the new one keeps."""
    async with unclean(tmp_path) as engine:
        await engine.topics.ensure("a")
        change = ConfigChange("retention.ms", AlterOp.SET, "-1")
        await engine.configs.alter_topic("a", [change])
        await engine._topic_notes.write()
    cut_catalog(tmp_path, 1)
    await refused(tmp_path)


async def test_a_flipped_bit_in_the_catalog_is_refused(tmp_path: Path) -> None:
    await fill(tmp_path, "a", "b")
    log = tmp_path / CATALOG / SEGMENT
    flip_bit(log, 80)
    assert str(log) in str(await refused(tmp_path))


async def test_the_folder_of_a_topic_that_was_being_deleted_is_deleted_and_does_not_come_back(
    tmp_path: Path,
) -> None:
    await fill(tmp_path, "a", "b")
    await delete(tmp_path, "b", crash=True)
    async with unclean(tmp_path) as engine:
        assert names(engine) == ["a"]
        assert not engine._store.offline
    assert not (tmp_path / "b-0").exists()
    assert not set_aside(tmp_path)
    # The record of the deletion is gone, too: a later folder of this name is evidence again.
    async with unclean(tmp_path) as engine:
        assert not engine._topic_admin.catalog.deleted


async def test_a_topic_that_was_created_again_after_its_deletion_is_evidence(
    tmp_path: Path,
) -> None:
    """The catalog's last record of its name is the deletion; the folder is not the deleted one."""
    await fill_deleted(tmp_path, "b")
    assert b'"topic"' in catalog_keys(tmp_path)[-1]
    cut_catalog(tmp_path, 1)
    assert "b (1)" in str(await refused(tmp_path))


async def test_folders_of_an_older_version_are_evidence_unless_their_topic_was_deleted(
    tmp_path: Path,
) -> None:
    await fill(tmp_path, "a", "b")
    await delete(tmp_path, "b")
    forget_notes(tmp_path)
    async with unclean(tmp_path) as engine:  # as that version did: it is set aside
        assert names(engine) == ["a"]
    (aside,) = set_aside(tmp_path)
    shutil.rmtree(aside)
    forget_notes(tmp_path)
    shutil.rmtree(tmp_path / CATALOG)
    assert "a (1)" in str(await refused(tmp_path))


def forget_notes(folder: Path) -> None:
    for path in folder.glob("*/partition.metadata"):
        path.write_bytes(re.sub(rb"\n(partition|topic|crc32c): .*", b"", path.read_bytes()))


async def test_notes_of_an_older_versions_topics_are_added_while_the_broker_runs(
    tmp_path: Path,
) -> None:
    await fill(tmp_path, "a")
    forget_notes(tmp_path)
    async with unclean(tmp_path) as engine:
        await engine._topic_notes.write()
    assert b"topic: {" in (tmp_path / "a-0" / "partition.metadata").read_bytes()


async def test_a_folder_of_another_broker_is_not_evidence(tmp_path: Path) -> None:
    await fill(tmp_path / "other", "foreign")
    await fill(tmp_path / "own", "a")
    shutil.copytree(tmp_path / "other" / "foreign-0", tmp_path / "own" / "foreign-0")
    async with unclean(tmp_path / "own") as engine:
        assert names(engine) == ["a"]
    assert len(set_aside(tmp_path / "own")) == 1


async def test_empty_folders_of_a_creation_that_a_crash_interrupted_are_not_evidence(
    tmp_path: Path,
) -> None:
    async with unclean(tmp_path) as engine:
        await engine.topics.ensure("a")
        await produce(engine, "a")
        await engine._topic_notes.write()
    shutil.copytree(tmp_path / "a-0", tmp_path / "new-0")
    for path in (tmp_path / "new-0").glob("0*"):
        path.unlink()
    (tmp_path / "new-0" / SEGMENT).touch()
    async with unclean(tmp_path) as engine:
        assert names(engine) == ["a"]
    assert not (tmp_path / "new-0").exists()


async def test_producer_ids_leave_a_gap_after_an_unclean_stop(tmp_path: Path) -> None:
    """The last claim of ids can be in the tail that recovery cuts off."""
    seen = []
    for _ in range(3):
        async with unclean(tmp_path) as engine:
            seen.append((await engine.transactions.new_producer())[0])
        cut_catalog(tmp_path, 1)
    assert seen[0] == 0
    assert len({each // 1000 for each in seen}) == 3, "the same block was given out twice"


@pytest.mark.parametrize("seed", range(rounds("CATALOG_CUTS", 12, 1000)))
async def test_a_power_cut_at_any_moment_is_not_taken_for_a_lost_catalog(seed: int) -> None:
    """Topics are created, changed, written to and deleted; what was answered is there then."""
    choice, fs = random.Random(seed), FaultyFileSystem()
    known: set[str] = set()
    for life in range(6):
        engine = await start(fs=fs)
        assert set(names(engine)) == known, life
        for _ in range(choice.randint(0, 8)):
            await change(choice, engine, known)
        await kill(engine, fs)
        if choice.random() < 0.7:
            fs.power_cut(choice)


async def change(choice: random.Random, engine: Engine, known: set[str]) -> None:
    name = f"t{choice.randrange(5)}"
    match choice.choice(["create", "create", "write", "delete", "alter", "notes"]):
        case "create" if name not in known:
            await engine.topics.create([NewTopic(name, choice.randint(1, 3))])
            known.add(name)
        case "write" if name in known:
            await produce(engine, name)
        case "delete" if name in known:
            assert await engine.topics.delete([name]) == [None]
            known.remove(name)
        case "alter" if name in known:
            value = str(choice.randrange(10**6, 10**9))
            changes = [ConfigChange("retention.bytes", AlterOp.SET, value)]
            await engine.configs.alter_topic(name, changes)
        case "notes":
            await engine._topic_notes.write()
