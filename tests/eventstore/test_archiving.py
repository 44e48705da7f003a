"""The beginning of a log becomes files, and nothing of the store changes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from tidemill.confluent.clients import Kafka
from tidemill.eventstore import archiving
from tidemill.eventstore.archiving import archive, archived, begin_at
from tidemill.eventstore.errors import (
    ArchiveError,
    IdConflictError,
    IndexMismatchError,
    IndexUnusableError,
    VersionConflictError,
)
from tidemill.eventstore.events import NewEvent
from tidemill.eventstore.store import Store
from tidemill.eventstore.verifying import verify


def fill(store: Store, count: int, first: int = 0) -> list[NewEvent]:
    events = [
        NewEvent("counted", str(number).encode(), tags=frozenset({f"n:{number}"}))
        for number in range(first, first + count)
    ]
    for number, event in enumerate(events, first):
        store.append(f"counter-{number % 3}", [event])
    return events


def everything(store: Store) -> list[Any]:
    return list(store.read_all(fresh=True))


def log_start(kafka: Kafka, topic: str) -> int:
    return kafka.start_offsets("test", [(topic, 0)])[topic, 0]


def test_a_store_goes_on_after_its_log_was_archived(
    kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with Store(kafka, topic) as store:
        events = fill(store, 20)
        before = everything(store)
        done = archive(kafka, topic, tmp_path / "archive")
        assert (done.count, log_start(kafka, topic)) == (19, done.head.offset)
        assert everything(store) == before
        # Ids, versions and positions are known as before.
        assert store.append("counter-0", [events[0]]).repeated
        with pytest.raises(VersionConflictError):
            store.append("counter-0", [NewEvent("counted")], expected=1)
        with pytest.raises(IdConflictError):
            store.append("counter-1", [NewEvent("counted", b"other", id=events[0].id)])
        assert list(store.append("counter-0", [NewEvent("counted")]).positions) == [21]
    with Store(kafka, topic) as store:
        assert everything(store)[:20] == before


def test_another_machine_begins_with_the_checkpoint(
    kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with Store(kafka, topic) as store:
        fill(store, 10)
        done = archive(kafka, topic, tmp_path / "archive")
        fill(store, 5, 10)
        before, head = everything(store), store.head()
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(IndexMismatchError), Store(kafka, topic, folder=elsewhere) as store:
        store.catch_up()
    assert begin_at(kafka, topic, done.checkpoint, folder=elsewhere) == head
    with Store(kafka, topic, folder=elsewhere) as store:
        assert everything(store) == before
    assert sorted(each.name for each in elsewhere.iterdir() if "new" in each.name) == []


def test_archives_follow_each_other_and_are_verified_with_the_log(
    kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    with Store(kafka, topic) as store:
        fill(store, 10)
        head = store.head()
        archive(kafka, topic, folder)
        assert archive(kafka, topic, folder).count == 0
        fill(store, 10, 10)
        assert archive(kafka, topic, folder).count == 10
        fill(store, 3, 20)
        end = store.head()
    assert [record.offset for record in archived(folder)] == list(range(19))
    found = verify(kafka, topic, heads=[(head.position, head.hash)], before=archived(folder))
    assert (found.first_break, found.head, found.accepted) == (None, end, 23)


@pytest.mark.parametrize("at", [0, 10, 40, -1, -40])
def test_a_damaged_archive_is_found(kafka: Kafka, topic: str, tmp_path: Path, at: int) -> None:
    with Store(kafka, topic) as store:
        fill(store, 3)
        done = archive(kafka, topic, tmp_path)
    assert done.records is not None
    whole = done.records.read_bytes()
    damaged = bytearray(whole)
    damaged[at] ^= 1
    for content in (bytes(damaged), whole[:-1], whole + b"x", whole[: len(whole) // 2], b""):
        done.records.write_bytes(content)
        with pytest.raises(ArchiveError, match=r"records-"):
            list(archived(tmp_path))


def test_a_file_that_is_missing_between_two_is_found(
    kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with Store(kafka, topic) as store:
        for round_ in range(3):
            fill(store, 4, 4 * round_)
            archive(kafka, topic, tmp_path)
    sorted(tmp_path.glob("records-*"))[1].unlink()
    with pytest.raises(ArchiveError, match="lacks records"):
        list(archived(tmp_path))


@pytest.mark.parametrize("step", ["_checkpoint", "_write", "sync_folder", "_delete"])
def test_a_failure_at_any_step_loses_nothing_and_it_can_be_repeated(
    kafka: Kafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk is gone")

    with Store(kafka, topic) as store:
        fill(store, 5)
        before = everything(store)
        with monkeypatch.context() as patched:
            patched.setattr(archiving, step, fail)
            with pytest.raises((ArchiveError, OSError), match="disk is gone"):
                archive(kafka, topic, tmp_path)
        assert log_start(kafka, topic) == 0
        assert archive(kafka, topic, tmp_path).count == 4
        assert everything(store) == before


def test_the_checkpoint_of_another_store_is_refused(
    kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        for name in (topic, f"{topic}-other"):
            fill(stack.enter_context(Store(kafka, name)), 2)
        done = archive(kafka, f"{topic}-other", tmp_path)
    with pytest.raises(IndexMismatchError):
        begin_at(kafka, topic, done.checkpoint)
    with Store(kafka, topic) as store:
        assert len(everything(store)) == 2


def test_the_archive_of_another_store_is_not_written_over(
    kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    """The files of two stores have the same names, and the log of the first is cut already."""
    folder = tmp_path / "archive"
    with Store(kafka, topic) as store, Store(kafka, f"{topic}-other") as other:
        fill(store, 4)
        fill(other, 5)
        archive(kafka, topic, folder)
        kept = {each.name: each.read_bytes() for each in folder.iterdir()}
        with pytest.raises(ArchiveError, match=f"the archive of store '{topic}'"):
            archive(kafka, f"{topic}-other", folder)
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == kept
    assert log_start(kafka, f"{topic}-other") == 0


@pytest.mark.parametrize("content", [b"", b"not a database"])
def test_a_file_that_is_no_checkpoint_does_not_replace_the_index(
    kafka: Kafka, topic: str, tmp_path: Path, content: bytes
) -> None:
    with Store(kafka, topic) as store:
        fill(store, 3)
        archive(kafka, topic, tmp_path / "archive")
        before = everything(store)
    wrong = tmp_path / "wrong.sqlite"
    wrong.write_bytes(content)
    with pytest.raises(IndexUnusableError, match="is not a checkpoint"):
        begin_at(kafka, topic, wrong)
    with Store(kafka, topic) as store:
        assert everything(store) == before


def test_only_its_user_can_read_an_archive_and_an_index_made_of_it(
    kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with Store(kafka, topic) as store:
        fill(store, 3)
        done = archive(kafka, topic, tmp_path / "archive")
    begin_at(kafka, topic, done.checkpoint, folder=tmp_path / "new")
    folders = [tmp_path / "archive", tmp_path / "new"]
    files = [each for folder in folders for each in (folder, *folder.iterdir())]
    assert len(files) >= 6
    assert {each.name for each in files if each.stat().st_mode & 0o077} == set()


def test_a_folder_without_an_archive_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="no archive"):
        list(archived(tmp_path / "mistyped"))
