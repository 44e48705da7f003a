"""The format version of a data folder: write it, check it, and raise that of an older folder.

Knows the folder's names, and nothing of what is in its files.
"""

from __future__ import annotations

from tidemill.log.disk.files import FileSystem
from tidemill.log.errors import FormatVersionError
from tidemill.log.names import parse_folder_name

FORMAT_VERSION = 2
"""Version 2 has a journal, without which acknowledged records can be missing after a power cut. A
version of tidemill that ignores the journal knows version 1 only. The checkpoint of the journal is
always there."""
OLDER_VERSIONS = (1,)
"""Versions that can be read. The folder gets the present one when it has been opened."""
FORMAT_FILE = "tidemill.format"
NEWER_HINT = (
    "Nothing was changed. A newer tidemill wrote the folder: install that version, or a newer one."
)
_KAFKA_FILES = ("meta.properties", "bootstrap.checkpoint")


def check_format(fs: FileSystem, folder: str) -> int:
    """Return the format version of a folder; write the present one into a new folder.

    Raises:
        FormatVersionError: this version of tidemill can't read the folder.
    """
    path = f"{folder}/{FORMAT_FILE}"
    if not fs.exists(path):
        names = fs.files(folder)
        if any(parse_folder_name(name) for name in fs.folders(folder)) or any(
            name in names for name in _KAFKA_FILES
        ):
            raise FormatVersionError(
                f"{folder} has logs but no {FORMAT_FILE}: it is not a tidemill data folder",
                hint="Choose an empty --data-dir.",
            )
        write_format(fs, folder)
        return FORMAT_VERSION
    text = fs.read_bytes(path).decode(errors="replace").strip()
    version = known_version(text)
    if version is None:
        raise FormatVersionError(
            f"{folder} has format version {text!r}, this tidemill supports up to {FORMAT_VERSION}",
            hint=NEWER_HINT,
        )
    return version


def has_journal_checkpoint(fs: FileSystem, folder: str) -> bool:
    """Return whether the format of a folder says that the journal's checkpoint is there."""
    path = f"{folder}/{FORMAT_FILE}"
    if not fs.exists(path):
        return False
    text = fs.read_bytes(path).decode(errors="replace").strip()
    return known_version(text) == FORMAT_VERSION


def known_version(text: str) -> int | None:
    """Return the version in a format file; None if this version of tidemill can't read it."""
    known = {str(version): version for version in (FORMAT_VERSION, *OLDER_VERSIONS)}
    return known.get(text)


def write_format(fs: FileSystem, folder: str) -> None:
    """Write the present version into a folder, durably."""
    fs.write_atomic(f"{folder}/{FORMAT_FILE}", f"{FORMAT_VERSION}\n".encode())
