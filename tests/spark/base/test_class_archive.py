"""An archive of classes is made once, matches its Java and jars, and never fails a start."""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from tidemill.spark.base import class_archive
from tidemill.spark.base.class_archive import (
    SWITCH,
    ClassArchive,
    archive_for,
    make,
    make_in_background,
)

RECORDED = "java/lang/Object\norg/apache/spark/MicroBatchExecution\norg/x/Y\n"
WRITES = (
    'for word; do case "$word" in -XX:SharedArchiveFile=*) echo made > "${word#*=}";; esac; done'
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of archives, which does not exist yet."""
    monkeypatch.setenv(SWITCH, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def command(folder: Path, tmp_path: Path) -> list[str]:
    """The command line of a Java that writes archives into the folder."""
    (tmp_path / "java/lib/server").mkdir(parents=True)
    (tmp_path / "java/bin").mkdir()
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars/a.jar").write_bytes(b"one")
    java = tmp_path / "java/bin/java"
    set_java(java, WRITES)
    return [str(java), "-cp", str(tmp_path / "jars/*"), "-Xmx1g", "Main"]


def set_java(java: Path, script: str) -> None:
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    os.utime(java, (1, 1))


def found(command: list[str]) -> ClassArchive:
    archive = archive_for(command)
    assert archive is not None
    return archive


def recording(command: list[str]) -> ClassArchive:
    """Return the archive of a program whose JVM has recorded its classes."""
    archive = found(command)
    assert archive.list is not None
    archive.list.write_text(RECORDED)
    return archive


def test_the_first_jvm_records_and_a_later_one_uses_the_archive(
    folder: Path, command: list[str]
) -> None:
    first = recording(command)
    assert first.options == (f"-XX:DumpLoadedClassList={first.list}",)
    assert make(first)
    later = found(command)
    assert later.options[0] == f"-XX:SharedArchiveFile={first.path}"
    assert {each.name for each in folder.iterdir()} == {".lock", first.path.name}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_it_is_made_in_the_background(command: list[str]) -> None:
    process = make_in_background(recording(command))
    assert process is not None
    assert process.wait(60) == 0
    assert found(command).path.read_text() == "made\n"


def test_another_jar_or_java_has_another_archive(command: list[str], tmp_path: Path) -> None:
    keys = {found(command).key}
    (tmp_path / "jars/a.jar").write_bytes(b"other")
    keys.add(found(command).key)
    (tmp_path / "jars/b.jar").write_bytes(b"new")
    keys.add(found(command).key)
    os.utime(command[0], (2, 2))
    keys.add(found(command).key)
    command[2] = f"{tmp_path / 'jars/b.jar'}:{command[2]}"
    keys.add(found(command).key)
    assert len(keys) == 5


def test_a_program_without_a_streaming_query_makes_none(command: list[str]) -> None:
    archive = recording(command)
    assert archive.list is not None
    archive.list.write_text("java/lang/Object\n")
    assert make_in_background(archive) is None
    assert not archive.list.exists()
    assert make_in_background(archive) is None  # nor one whose JVM recorded nothing


def test_a_java_that_cannot_make_one_is_not_asked_again(folder: Path, command: list[str]) -> None:
    set_java(Path(command[0]), "echo no such option >&2; exit 3")
    archive = recording(command)
    assert not make(archive)
    assert "ended with 3: no such option" in archive.failure.read_text()
    assert archive_for(command) is None
    assert not list(folder.glob("*.classes"))


def test_half_an_archive_is_not_used(folder: Path, command: list[str]) -> None:
    set_java(Path(command[0]), f"{WRITES}; exit 1")
    archive = recording(command)
    assert not make(archive)
    assert not list(folder.glob("*.jsa"))
    assert not list(folder.glob("*.tmp"))


def test_with_little_space_it_is_tried_another_time(
    folder: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = recording(command)
    usage = shutil.disk_usage(folder)
    full = usage._replace(free=class_archive.NEEDED_BYTES - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    assert not make(archive)
    assert found(command).list is not None


def test_of_two_programs_one_makes_it(folder: Path, command: list[str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    set_java(Path(command[0]), f"read line < {gate}; {WRITES}")
    first = recording(command)
    process = make_in_background(first)
    assert process is not None
    assert first.list is not None
    other = ClassArchive(first.java, first.class_path, folder, first.key, folder / "2.classes")
    assert other.list is not None
    other.list.write_text(RECORDED)
    with gate.open("w") as file:  # opens when Java reads: then the first one has the lock
        assert not make(other)
        assert not other.list.exists()
        file.write("go\n")
    assert process.wait(60) == 0
    assert first.path.is_file()


def test_few_archives_are_kept_and_what_was_left_behind_is_deleted(
    folder: Path, command: list[str]
) -> None:
    archive = recording(command)
    long_ago = time.time() - 100_000
    for name, when in (("spark-1.jsa", 3), ("spark-2.jsa", 5), ("spark-3.jsa", 4)):
        (folder / name).touch()
        os.utime(folder / name, (when, when))
    for name in ("old.tmp", "old.classes"):
        (folder / name).touch()
        os.utime(folder / name, (long_ago, long_ago))
    (folder / "new.classes").touch()  # another program records it now
    assert make(archive)
    left = {each.name for each in folder.iterdir()} - {".lock"}
    assert left == {archive.path.name, "spark-2.jsa", "new.classes"}


def test_without_a_folder_jvms_start_as_before(
    folder: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_text("a file")
    assert archive_for(command) is None
    folder.unlink()
    folder.mkdir()
    folder.chmod(0o777)  # another user could write what Java runs
    assert archive_for(command) is None
    folder.chmod(0o700)
    assert archive_for(command) is not None
    monkeypatch.setattr(os, "access", lambda *_: False)  # read-only; root can write everywhere
    assert archive_for(command) is None


def test_an_existing_archive_in_a_folder_that_is_read_only_is_used(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make(recording(command))

    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert found(command).list is None


@pytest.mark.parametrize(
    "option",
    ["-Xshare:off", "-XX:SharedArchiveFile=/x", "-XX:AOTCache=/x", "-XX:ArchiveClassesAtExit=/x"],
)
def test_the_users_own_choice_counts(command: list[str], option: str) -> None:
    assert archive_for([*command, option]) is None


def test_it_can_be_switched_off(
    folder: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "0")
    assert archive_for(command) is None
    assert not folder.exists()


def test_the_default_folder_is_the_users_cache(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert found(command).folder == tmp_path / "xdg/tidemill"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert found(command).folder == tmp_path / "home/.cache/tidemill"


def test_a_java_of_another_make_or_without_files_has_none(
    command: list[str], tmp_path: Path
) -> None:
    (tmp_path / "java/lib/j9vm").mkdir()
    assert archive_for(command) is None
    assert archive_for([str(tmp_path / "gone/java"), *command[1:]]) is None
    (tmp_path / "java/lib/j9vm").rmdir()
    assert archive_for([*command[:2], str(tmp_path / "gone.jar"), "Main"]) is None
