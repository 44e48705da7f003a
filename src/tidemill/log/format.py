"""The version of a data folder's format: checked before anything in the folder is believed.

Knows the file that names it, not what the version stands for.
"""

from __future__ import annotations

from tidemill.errors import FormatVersionError
from tidemill.log.files import FileSystem
from tidemill.log.names import parse_folder_name

FORMAT_VERSION = 1
FORMAT_FILE = "tidemill.format"
_KAFKA_FILES = ("meta.properties", "bootstrap.checkpoint")


def check_format(fs: FileSystem, folder: str) -> None:
    """Refuse a folder that this version can't read; mark one that is new.

    Raises:
        FormatVersionError: it is of another version, or not tidemill's.
        OSError: the file system refuses.
    """
    path = f"{folder}/{FORMAT_FILE}"
    if not fs.exists(path):
        names = fs.files(folder)
        if any(parse_folder_name(name) for name in fs.folders(folder)) or any(
            name in names for name in _KAFKA_FILES
        ):
            raise FormatVersionError(
                f"{folder} holds logs, but no {FORMAT_FILE}: it is not tidemill's",
                hint="Choose an empty --data-dir.",
            )
        fs.write_atomic(path, f"{FORMAT_VERSION}\n".encode())
        return
    text = fs.read_bytes(path).decode(errors="replace").strip()
    if text != str(FORMAT_VERSION):
        raise FormatVersionError(
            f"{folder} has format version {text!r}; this tidemill reads {FORMAT_VERSION}",
            hint="Use the tidemill version that wrote it.",
        )
