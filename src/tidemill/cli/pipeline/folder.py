"""The folder with the checkpoints of pipelines, and the option that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli.output import UsageError

DEFAULT_DATA_DIR = Path("tidemill-data")

DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        envvar="TIDEMILL_DATA_DIR",
        help="Data folder. Its subfolder pipelines contains the checkpoints.",
    ),
]


def state_folder(data_dir: Path) -> Path:
    """Return the folder with all checkpoints."""
    if data_dir.exists() and not data_dir.is_dir():
        raise UsageError(f"--data-dir {data_dir} is not a folder")
    return data_dir.resolve() / "pipelines"
