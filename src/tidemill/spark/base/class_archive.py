"""Makes an archive of the classes that Spark loads, which halves the JVM's part of a start.

Java parses and checks each class that it loads. From an archive, it maps classes into memory. The
first JVM on a machine records which classes it loads. When it has ended, a process of low priority
makes the archive from that list: half a minute of processor time and 200 MB, in the user's cache
folder. JVMs that start later use it. Java ignores an archive that does not match.

The archive's name is a hash of the Java, of the class path and of each jar's size and time, so a
new Java or Spark gets a new one. Old ones are deleted. Nothing here can fail a start: with a folder
that can't be written, or a full disk, JVMs start as they would without archives.

Source: Java's manual, "Class Data Sharing" (JEP 310, 341). Must not know: sessions, Kafka.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("tidemill.spark")

SWITCH = "TIDEMILL_SPARK_ARCHIVE"
"""Environment variable: ``0`` for no archives, or the folder in which they are kept."""
NEEDED_BYTES = 600 << 20
"""Free disk space without which no archive is made."""
MOST_ARCHIVES = 2

_MODULE = "tidemill.spark.base.class_archive"
_DUMP_TIMEOUT_S = 600.0
_STALE_S = 86_400.0
_ESSENTIAL = re.compile(rb"/MicroBatchExecution\s")
"""A list without this class is of a program that ran no streaming query."""
# These options of the user decide about archives, or need another one.
_USERS_OWN = (
    "-Xshare",
    "-XX:SharedArchiveFile",
    "-XX:ArchiveClassesAtExit",
    "-XX:DumpLoadedClassList",
    "-XX:AOT",
    "-XX:+AutoCreateSharedArchive",
)
_USE = (
    # Map it where it was made for. Elsewhere, Java would have to change half of its pages.
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:ArchiveRelocationMode=0",
    # Java prints a warning about an archive that does not match to stdout, for programs to read.
    "-Xlog:disable",
    "-Xlog:all=warning,cds*=error:stderr",
)


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one Java and one class path, whether it exists or not.

    Attributes:
        java: the Java program.
        class_path: the class path, as on the command line.
        folder: the folder of all archives.
        key: the name of the archive, without suffix.
        list: the list of classes that this program's JVM records, if it does.
    """

    java: Path
    class_path: str
    folder: Path
    key: str
    list: Path | None = None

    @property
    def path(self) -> Path:
        """The file of the archive."""
        return self.folder / f"{self.key}.jsa"

    @property
    def failure(self) -> Path:
        """The file with the reason why the archive can't be made."""
        return self.folder / f"{self.key}.failed"

    @property
    def options(self) -> Sequence[str]:
        """Options for the JVM: to use the archive, or to record what it loads."""
        if self.list is not None:
            return (f"-XX:DumpLoadedClassList={self.list}",)
        return (f"-XX:SharedArchiveFile={self.path}", *_USE)


def archive_for(command: Sequence[str]) -> ClassArchive | None:
    """Return the archive that a JVM should use or record; None if it should do neither.

    Args:
        command: the JVM's command line, with its class path as third word.
    """
    if any(word.startswith(_USERS_OWN) for word in command):
        return None
    try:
        folder = _folder()
        java = Path(command[0]).resolve()
        if folder is None or not _is_hotspot(java):
            return None
        class_path = command[2]
        archive = ClassArchive(Path(command[0]), class_path, folder, _key(java, class_path))
        if archive.path.is_file():
            with contextlib.suppress(OSError):
                os.utime(archive.path)  # the ones that were used last are kept
            return archive
        if archive.failure.exists() or not os.access(folder, os.W_OK):
            return None
        recorded = folder / f"{archive.key}.{os.getpid()}.classes"
        return ClassArchive(archive.java, class_path, folder, archive.key, recorded)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        log.info("no archive of Spark's classes: %s", error)
        return None


def make_in_background(archive: ClassArchive) -> subprocess.Popen[bytes] | None:
    """Make an archive in another process, which does not end with this one.

    Args:
        archive: an archive whose list was recorded by a JVM that has ended.

    Returns:
        The process; None if there is nothing to make.
    """
    if archive.list is None or not _is_worth_it(archive.list):
        return None
    words = (archive.java, archive.class_path, archive.folder, archive.key, archive.list)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", _MODULE, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=archive.folder,
            start_new_session=True,
        )
    except OSError as error:
        log.info("no archive of Spark's classes: %s", error)
        return None


def make(archive: ClassArchive) -> bool:
    """Make an archive, unless it exists or another process makes one."""
    assert archive.list is not None
    try:
        with _locked(archive.folder) as is_locked:
            if is_locked:
                _delete_old(archive)
                if not archive.path.is_file():
                    _dump(archive, archive.list)
    except (OSError, subprocess.TimeoutExpired) as error:
        with contextlib.suppress(OSError):
            archive.failure.write_text(f"{error}\n")
    with contextlib.suppress(OSError):
        archive.list.unlink()
    return archive.path.is_file()


def _dump(archive: ClassArchive, recorded: Path) -> None:
    """Run Java to write the archive."""
    if shutil.disk_usage(archive.folder).free < NEEDED_BYTES:
        return  # not a failure for good
    fresh = archive.path.with_suffix(".tmp")
    fresh.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            [
                *(str(archive.java), "-Xshare:dump", "-Xmx1g", "-Xlog:disable"),
                *("-Xlog:all=error:stderr", "-cp", archive.class_path),
                *(f"-XX:SharedClassListFile={recorded}", f"-XX:SharedArchiveFile={fresh}"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_DUMP_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0 or not fresh.is_file():
            text = done.stderr.decode(errors="replace").strip()
            raise OSError(f"{archive.java} ended with {done.returncode}: {text[-2000:]}")
        fresh.replace(archive.path)
    finally:
        fresh.unlink(missing_ok=True)


def _delete_old(archive: ClassArchive) -> None:
    """Delete the archives that were used least recently, and what interrupted programs left."""
    archives = sorted(archive.folder.glob("*.jsa"), key=lambda each: -each.stat().st_mtime)
    others = [each for each in archives if each != archive.path]
    for each in others[MOST_ARCHIVES - 1 :]:
        each.unlink(missing_ok=True)
    for pattern in ("*.tmp", "*.classes"):
        for each in archive.folder.glob(pattern):
            if each != archive.list and time.time() - each.stat().st_mtime > _STALE_S:
                each.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder; the value is False if another process has locked it."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _folder() -> Path | None:
    """Return the folder of archives, which is created; None if there are to be none."""
    chosen = os.environ.get(SWITCH, "")
    if chosen == "0":
        return None
    if chosen:
        folder = Path(chosen)
    else:
        cache = os.environ.get("XDG_CACHE_HOME", "")
        # The specification: paths that are not absolute are ignored.
        parent = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
        folder = parent / "tidemill"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        # Java runs what is in an archive, so no other user must be able to write one.
        raise PermissionError(f"other users can write to {folder}")
    return folder.absolute()


def _is_hotspot(java: Path) -> bool:
    """Whether a Java is a HotSpot with archives. OpenJ9 has another way."""
    lib = java.parent.parent / "lib"
    return (lib / "server").is_dir() and not (lib / "j9vm").exists()


def _key(java: Path, class_path: str) -> str:
    """Return the name of an archive."""
    found = java.stat()
    parts = [f"{java} {found.st_size} {found.st_mtime_ns}", class_path]
    for entry in class_path.split(os.pathsep):
        folder, name = os.path.split(entry)
        jars = sorted(Path(folder).glob("*.jar")) if name == "*" else [Path(entry)]
        for jar in jars:
            state = jar.stat()
            parts.append(f"{jar.name} {state.st_size} {state.st_mtime_ns}")
    return f"spark-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:16]}"


def _is_worth_it(recorded: Path) -> bool:
    """Whether a list is that of a program that ran a streaming query; delete others."""
    with contextlib.suppress(OSError):
        if _ESSENTIAL.search(recorded.read_bytes()):
            return True
        recorded.unlink()
    return False


def main() -> None:
    """Make the archive that the arguments name, with low priority."""
    java, class_path, folder, key, recorded = sys.argv[1:]
    os.nice(19)
    make(ClassArchive(Path(java), class_path, Path(folder), key, Path(recorded)))


if __name__ == "__main__":
    main()
