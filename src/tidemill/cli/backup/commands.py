"""``tidemill backup`` and ``tidemill restore``."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import output
from tidemill.cli.options import Config, DataDir, Json

if TYPE_CHECKING:
    from tidemill.cli.backup.contents import Contents
    from tidemill.cli.backup.restoring import Restored

ARCHIVES = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz"}


def backup(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET",
            help="A new folder, an earlier backup to bring up to date, or an archive: .tar, .tgz.",
        ),
    ],
    config: Config = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Copy the data folder of a broker, also while it runs.

    Run it on the broker's machine, as its user. Closed segments become hard links if the target is
    on the same file system, and are copied once otherwise. A backup that exists is replaced when
    the new one is complete. What was acknowledged before the backup began is in it.
    'tidemill doctor --verify --data-dir TARGET' checks it, and 'tidemill restore' makes a data
    folder of it.
    """
    from tidemill.cli.backup.contents import BackupError
    from tidemill.cli.backup.copying import back_up
    from tidemill.cli.server.config import load_settings
    from tidemill.log.disk.files import RealFileSystem

    source = load_settings(config, data_dir, None, None, None).settings.data_dir
    target = target.absolute()
    mode = _archive_mode(target)
    if mode is None:
        contents = back_up(source, target, _progress)
    else:
        if target.exists():
            raise BackupError(f"{target} exists", hint="An archive is always a new file.")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".backup-", dir=target.parent) as folder:
            contents = back_up(source, Path(folder) / "backup", _progress)
            made = Path(folder) / target.name
            made.touch(mode=0o600)
            with tarfile.open(made, mode) as archive:  # type: ignore[call-overload]
                archive.add(Path(folder) / "backup", "backup")
            files = RealFileSystem()
            files.sync_file(str(made))
            made.rename(target)
            files.sync_dir(str(target.parent))
    _show(contents, target, as_json=as_json)


def _show(contents: Contents, target: Path, *, as_json: bool) -> None:
    values = {
        "target": str(target),
        "began": _time(contents.began_ms),
        "partitions": len(contents.partitions),
        "bytes": contents.size,
        "linked": contents.linked,
        "reused": contents.reused,
    }
    if as_json:
        output.emit_json(values)
        return
    print(
        f"Backed up {output.plural(len(contents.partitions), 'partition')}, "
        f"{output.size_text(contents.size)}, to {target}"
    )
    print(f"It has all that was acknowledged before {values['began']}.")


def restore(
    source: Annotated[
        Path, typer.Argument(metavar="BACKUP", help="A folder or an archive from 'backup'.")
    ],
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="The new data folder.")
    ],
    as_json: Json = False,
) -> None:
    """Make a data folder of a backup.

    Each batch is verified. Open transactions are aborted, and committed offsets beyond the end of a
    log are set to it. The exit code is 1 if something of the backup could not be restored.
    """
    from tidemill.cli.backup.contents import BackupError
    from tidemill.cli.backup.restoring import restore as run

    data_dir = data_dir.absolute()
    if not source.exists():
        raise output.NotFoundError(f"{source} does not exist")
    with _as_folder(source, data_dir.parent) as folder:
        restored = run(folder, data_dir, _progress)
    _report(restored, data_dir, as_json=as_json)
    if restored.offline or restored.shorter:
        raise BackupError(
            "a part of the backup could not be restored",
            hint="The rest is there. 'tidemill doctor --verify' names the places.",
        )


def _report(restored: Restored, data_dir: Path, *, as_json: bool) -> None:
    contents = restored.contents
    if as_json:
        output.emit_json(
            {
                "data_dir": str(data_dir),
                "began": _time(contents.began_ms),
                "ended": _time(contents.ended_ms),
                "partitions": len(contents.partitions),
                "clipped": restored.clipped,
                "beyond": restored.beyond,
                "aborted": restored.aborted,
                "left_out": restored.left_out,
                "offline": restored.offline,
                "shorter": restored.shorter,
            }
        )
        return
    print(f"Restored {output.plural(len(contents.partitions), 'partition')} to {data_dir}")
    print(f"What was acknowledged before {_time(contents.began_ms)} is there.")
    print(f"What was acknowledged later is in part there until {_time(contents.ended_ms)}.")
    for group, partition, offset, end in restored.clipped:
        print(f"group {group}: {partition} had offset {offset}, and has {end} now")
    for group, partition, offset, end in restored.beyond:
        print(f"group {group}: {partition} has offset {offset}, and ends at {end}: it had members")
    for transactional_id in restored.aborted:
        print(f"transaction aborted: {transactional_id}")
    for name in restored.left_out:
        print(f"left out: {name}: its topic was created or deleted while the backup was made")
    for name in restored.offline:
        print(f"not restored: {name}")
    for name, end, expected in restored.shorter:
        print(f"damaged: {name} ends at {end}, and had {expected}")


@contextmanager
def _as_folder(source: Path, beside: Path) -> Iterator[Path]:
    """Yield a backup as a folder: an archive is unpacked for a time."""
    from tidemill.cli.backup.contents import BackupError

    if source.is_dir():
        yield source
        return
    if not hasattr(tarfile, "data_filter"):  # before Python 3.11.4
        raise BackupError(
            f"this Python can't unpack {source} safely",
            hint=f"Unpack it, and name the folder: tar -xf {source}; the folder is 'backup'.",
        )
    beside.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".restore-", dir=beside))
    try:
        try:
            with tarfile.open(source) as archive:
                archive.extractall(folder, filter="data")
        except (tarfile.TarError, EOFError, OSError) as error:
            raise BackupError(f"{source} can't be unpacked: {error}") from error
        yield folder / "backup"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _archive_mode(target: Path) -> str | None:
    return next((mode for end, mode in ARCHIVES.items() if target.name.endswith(end)), None)


def _progress(what: str) -> None:
    output.note(what)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
