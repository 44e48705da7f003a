"""Check the format version of a data folder before anything else in it is read.

Knows the file with the version, and not what the versions mean.
"""

from __future__ import annotations

from tidemill.log.disk.files import FileSystem
from tidemill.log.errors import FormatVersionError
from tidemill.log.names import parse_folder_name

FORMAT_VERSION = 1
FORMAT_FILE = "tidemill.format"
_KAFKA_FILES = ("meta.properties", "bootstrap.checkpoint")


def check_format(fs: FileSystem, folder: str) -> None:
    """Raise for a folder that this version can't read; write the version into a new folder.

    Raises:
        FormatVersionError: the folder has another format version, or data of another program.
        OSError: a file operation failed.
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
        fs.write_atomic(path, f"{FORMAT_VERSION}\n".encode())
        return
    text = fs.read_bytes(path).decode(errors="replace").strip()
    if text != str(FORMAT_VERSION):
        raise FormatVersionError(
            f"{folder} has format version {text!r}, this tidemill supports {FORMAT_VERSION}",
            hint="Use the tidemill version that created the folder.",
        )
