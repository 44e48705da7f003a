"""The catalog is rebuilt from its readable records and the notes in the folders."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from uuid import UUID

import pytest

from tests.engine.support import start
from tests.engine.topics.test_completeness import (
    CATALOG,
    SEGMENT,
    cut_catalog,
    delete,
    fill,
    fill_deleted,
    flip_bit,
    forget_notes,
    produce,
    set_aside,
    unclean,
)
from tests.support.effort import rounds
from tests.support.ending_fs import EndingFileSystem
from tests.support.faultyfs import CrashError
from tidemill.engine.api import ConfigChange, NewTopic
from tidemill.engine.engine import Engine
from tidemill.engine.errors import CatalogLostError
from tidemill.engine.topics import catalog_repair
from tidemill.engine.topics.catalog_repair import CatalogPlan
from tidemill.log.disk.files import RealFileSystem
from tidemill.state.catalog.types import AlterOp

FS = RealFileSystem()
NOW = 1_700_000_000_000


def plan(folder: Path) -> CatalogPlan:
    return catalog_repair.plan(FS, str(folder))


def repair(folder: Path) -> CatalogPlan:
    todo = plan(folder)
    catalog_repair.apply(FS, todo, NOW)
    return todo


def topics(engine: Engine) -> dict[str, tuple[int, dict[str, str]]]:
    catalog = engine._topic_admin.catalog
    return {
        topic.name: (topic.partitions, catalog.config_of(topic.name))
        for topic in catalog.topics()
        if not topic.internal
    }


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


async def fill_with_configs(folder: Path) -> tuple[dict[str, tuple[int, dict[str, str]]], UUID]:
    async with unclean(folder) as engine:
        await engine.topics.create(
            [NewTopic("a", 3), NewTopic("b", 1, configs={"cleanup.policy": "compact"})]
        )
        await engine.topics.add_partitions("b", 2)
        await engine.configs.alter_topic("a", [ConfigChange("retention.ms", AlterOp.SET, "-1")])
        for topic, partition in (("a", 0), ("a", 2), ("b", 1)):
            await produce(engine, topic, partition)
        await engine._topic_notes.write()
        return topics(engine), engine.storage.cluster_id


async def test_a_lost_catalog_is_rebuilt_with_ids_partitions_and_configs(tmp_path: Path) -> None:
    before, cluster_id = await fill_with_configs(tmp_path)
    shutil.rmtree(tmp_path / CATALOG)
    todo = repair(tmp_path)
    assert {each.source for each in todo.catalog.topics} == {"note"}
    for _ in range(2):
        async with unclean(tmp_path) as engine:
            assert topics(engine) == before
            assert engine.storage.cluster_id == cluster_id
            assert not engine._store.offline
            await produce(engine, "a", 2)


async def test_the_plan_calls_a_whole_catalog_whole_and_changes_nothing(tmp_path: Path) -> None:
    await fill_with_configs(tmp_path)
    assert plan(tmp_path).is_whole
    cut_catalog(tmp_path, 1)
    assert not plan(tmp_path).is_whole
    shutil.rmtree(tmp_path / CATALOG)
    before = contents(tmp_path)
    assert not plan(tmp_path).is_whole
    assert contents(tmp_path) == before


async def test_what_is_cut_from_the_end_comes_from_the_notes_and_the_rest_from_the_catalog(
    tmp_path: Path,
) -> None:
    before, _ = await fill_with_configs(tmp_path)
    cut_catalog(tmp_path, 2)
    old = (tmp_path / CATALOG / SEGMENT).read_bytes()
    repair(tmp_path)
    (aside,) = set_aside(tmp_path)
    assert (aside / SEGMENT).read_bytes() == old
    async with unclean(tmp_path) as engine:
        assert topics(engine) == before


async def test_records_behind_a_damaged_batch_are_kept(tmp_path: Path) -> None:
    before, _ = await fill_with_configs(tmp_path)
    log = tmp_path / CATALOG / SEGMENT
    flip_bit(log, 100)
    todo = repair(tmp_path)
    assert len(todo.damage) == 1
    assert f"{log}: byte 0, offset 0" in todo.damage[0]
    async with unclean(tmp_path) as engine:
        assert topics(engine) == before


async def test_folders_of_an_older_version_get_configs_that_delete_nothing(tmp_path: Path) -> None:
    await fill_with_configs(tmp_path)
    forget_notes(tmp_path)
    shutil.rmtree(tmp_path / CATALOG)
    repair(tmp_path)
    async with unclean(tmp_path) as engine:
        configs = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
        assert topics(engine) == {"a": (3, configs), "b": (2, configs)}
        assert not engine._store.offline


async def test_a_partition_without_a_folder_is_named_and_goes_offline(tmp_path: Path) -> None:
    await fill_with_configs(tmp_path)
    shutil.rmtree(tmp_path / CATALOG)
    shutil.rmtree(tmp_path / "a-2")
    todo = repair(tmp_path)
    assert {t.topic.name: t.missing for t in todo.catalog.topics if t.missing} == {"a": (2,)}
    async with unclean(tmp_path) as engine:
        assert [str(tp) for tp in engine._store.offline] == ["a-2"]
        assert topics(engine)["a"][0] == 3


@pytest.mark.parametrize("loss", ["cut", "gone"])
async def test_no_producer_id_is_given_out_twice(tmp_path: Path, loss: str) -> None:
    seen: list[int] = []
    for _ in range(3):
        async with unclean(tmp_path) as engine:
            await engine.topics.ensure("t")
            await produce(engine, "t")
            seen.append((await engine.transactions.new_producer())[0])
        if loss == "cut":
            cut_catalog(tmp_path, 1)
        else:
            shutil.rmtree(tmp_path / CATALOG)
        repair(tmp_path)
    assert len({each // 1000 for each in seen}) == 3
    assert seen == sorted(seen)


async def test_a_deleted_topic_does_not_come_back_when_its_folder_was_left(tmp_path: Path) -> None:
    await fill(tmp_path, "a", "b")
    await delete(tmp_path, "b", crash=True)
    todo = repair(tmp_path)
    assert list(todo.catalog.deleted.values()) == ["b"]
    async with unclean(tmp_path) as engine:
        assert list(topics(engine)) == ["a"]


async def test_a_topic_that_was_created_again_is_the_later_one(tmp_path: Path) -> None:
    await fill_deleted(tmp_path, "b")
    async with unclean(tmp_path) as engine:
        topic_id = engine.topics.get("b").topic_id
    cut_catalog(tmp_path, 1)
    repair(tmp_path)
    async with unclean(tmp_path) as engine:
        assert engine.topics.get("b").topic_id == topic_id
        assert not engine._store.offline


async def test_a_copied_folder_is_set_aside(tmp_path: Path) -> None:
    """Two topics can't have one id."""
    await fill(tmp_path, "a")
    shutil.copytree(tmp_path / "a-0", tmp_path / "copy-0")
    shutil.rmtree(tmp_path / CATALOG)
    todo = repair(tmp_path)
    assert [(str(f.tp), why) for f, why in todo.catalog.aside] == [
        ("copy-0", "its topic id is that of 'a'")
    ]
    async with unclean(tmp_path) as engine:
        assert list(topics(engine)) == ["a"]
    assert len(set_aside(tmp_path)) == 1


async def test_a_crash_at_any_step_leaves_a_folder_that_is_refused_or_right(tmp_path: Path) -> None:
    """Each call of the file system is the last one once. A second repair completes the first."""
    before, _ = await fill_with_configs(tmp_path / "data")
    cut_catalog(tmp_path / "data", 2)
    calls = 0
    while True:
        folder = tmp_path / f"crash-{calls}"
        shutil.copytree(tmp_path / "data", folder)
        fs = EndingFileSystem(calls)
        try:
            catalog_repair.apply(fs, catalog_repair.plan(FS, str(folder)), NOW)
        except CrashError:
            ended = False
        else:
            ended = True
        try:
            engine = await start(folder)
        except CatalogLostError:
            assert not ended
            repair(folder)
            assert not list(folder.glob("*-new"))
            engine = await start(folder)
        assert topics(engine) == before
        await engine.stop()
        if ended:
            break
        calls += 1
    assert calls > 10


async def test_random_damage_of_the_catalog_is_refused_or_harmless_and_always_repaired(
    tmp_path: Path,
) -> None:
    """No topic or config gets lost without an error, whatever happens to the catalog's files."""
    choice = random.Random(9)
    before, _ = await fill_with_configs(tmp_path / "original")
    refused = 0
    for number in range(rounds("CATALOGS", 25, 2500)):
        folder = tmp_path / f"{number}"
        shutil.copytree(tmp_path / "original", folder)
        for _ in range(choice.randint(1, 2)):
            damage_catalog(choice, folder)
        try:
            engine = await start(folder)
        except CatalogLostError:
            refused += 1
            repair(folder)
            engine = await start(folder)
        assert topics(engine) == before, number
        assert not engine._store.offline, number
        await engine.stop()
        shutil.rmtree(folder)
    assert refused


def damage_catalog(choice: random.Random, folder: Path) -> None:
    files = sorted((folder / CATALOG).glob("*")) if (folder / CATALOG).exists() else []
    files.append(folder / "recovery-point-offset-checkpoint")
    path = choice.choice([each for each in files if each.exists()] or [folder / CATALOG])
    if not path.is_file():
        return
    data = bytearray(path.read_bytes())
    at = choice.randrange(len(data) + 1)
    match choice.choice(["bit", "zeros", "cut", "file", "folder"]):
        case "bit" if at < len(data):
            data[at] ^= 1 << choice.randrange(8)
        case "zeros":
            data[at:] = bytes(len(data) - at)
        case "cut":
            del data[at:]
        case "file":
            path.unlink()
            return
        case "folder":
            shutil.rmtree(folder / CATALOG, ignore_errors=True)
            return
    path.write_bytes(data)
