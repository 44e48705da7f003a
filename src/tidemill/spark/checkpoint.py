"""A query's folder: Spark's checkpoint, and beside it what tidemill has to know of it.

    <data>/pipelines/<pipeline>/<query>/
        identity.json       an id and a time of creation: of this checkpoint, not of the query
        earlier.json        when the youngest checkpoint was made that was given up
        begun.json          which batch was last begun, of a sink that is a table
        checkpoint/         Spark's own

Sinks are guarded by the identity: what another checkpoint wrote is not taken for this one's. So it
lasts exactly as long as Spark's batches are numbered on: where Spark begins at 0 again, whoever
removed its folder, there is a new one, and a younger one, whatever the clock says.
Must not know: Spark, Kafka clients.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tidemill.errors import PipelineError, PipelineRunningError

_IDENTITY = "identity.json"
_EARLIER = "earlier.json"
_BEGUN = "begun.json"
_SPARK = "checkpoint"
_REMOVED = "checkpoint.removed"
_LOCK = ".lock"
ID_LETTERS = 12
"""Of an identity's id."""
_APART_MS = 1000  # sinks know the second only
_LONGEST = 160
"""Of what is told of a plan: Spark writes a window as half a page."""

_MICROSECONDS = re.compile(r"(\d+(?:, \d+)*) microseconds")
_UNITS = (
    ("day", 86_400_000_000),
    ("hour", 3_600_000_000),
    ("minute", 60_000_000),
    ("second", 1_000_000),
    ("millisecond", 1000),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a query must stay the same for its checkpoint to be of use.

    Attributes:
        sources: what streams into it, in the order of its plan.
        mode: its output mode.
        state: the part of its plan that decides what is kept in state, in lines; empty without.
        made_by: who wrote ``state``: lines of another one may differ for no reason.
    """

    sources: tuple[str, ...]
    mode: str
    state: tuple[str, ...]
    made_by: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """Of one checkpoint.

    Attributes:
        id: unique.
        created_ms: milliseconds since 1970; grows from one checkpoint of a query to the next.
        shape: of the query that last used it; None before the first.
    """

    id: str
    created_ms: int
    shape: Shape | None = None


class Checkpoint:
    """The folder of one query.

    Args:
        root: folder of all pipelines.
    """

    def __init__(self, root: Path, pipeline: str, query: str) -> None:
        self.folder = root / pipeline / query
        self.spark_folder = self.folder / _SPARK
        self.begun_file = self.folder / _BEGUN
        self._name = f"{pipeline}/{query}"

    def begin(self, shape: Shape) -> Identity:
        """The identity to start with: a new one where no batch was ever begun.

        Args:
            shape: of the query that starts; it is remembered.

        Raises:
            PipelineError: the file is damaged or gone, or the folder can't be written.
        """
        found = self._found()
        if found is None or self.is_fresh:
            now = time.time_ns() // 1_000_000
            created_ms = max(now, self._youngest(found) + _APART_MS)
            made = Identity(uuid.uuid4().hex[:ID_LETTERS], created_ms, shape)
        else:
            made = replace(found, shape=shape)
        if made != found:
            self._write(_IDENTITY, asdict(made))
        return made

    @property
    def is_fresh(self) -> bool:
        """Whether no batch was ever begun: Spark will number them from 0."""
        offsets = self.spark_folder / "offsets"
        found = offsets.iterdir() if offsets.is_dir() else iter(())
        return not any(each.name.isdecimal() for each in found)

    def check(self, shape: Shape) -> None:
        """Whether a query can go on from here.

        Raises:
            PipelineError: it was changed in a way that its state can't follow; says which. Or the
                identity is damaged or gone.
        """
        identity = self._found()
        before = None if identity is None else identity.shape
        if before is None or before == shape or self.is_fresh:
            return
        changes = list(_changes(before, shape))
        if changes:
            raise PipelineError(
                f"it can't go on from its checkpoint: {'; '.join(changes)}",
                hint=f"Change it back, give it a new name, or start it afresh: {self.reset}",
            )

    def remove(self) -> bool:
        """Forget everything but when it was made; returns whether there was anything.

        Raises:
            PipelineError: the folder can't be written, or what is in it not removed.
        """
        if not self.folder.exists() or {each.name for each in self.folder.iterdir()} <= {_EARLIER}:
            return False
        try:
            youngest = self._youngest(self._read())
        except PipelineError:  # damaged: that is why it is to go
            youngest = max(self._youngest(None), time.time_ns() // 1_000_000)
        self._write(_EARLIER, {"created_ms": youngest})
        # At once: half a checkpoint must not be taken for one, whenever this is killed.
        removed = self.folder / _REMOVED
        try:
            shutil.rmtree(removed, ignore_errors=True)
            if self.spark_folder.exists():
                self.spark_folder.rename(removed)
            (self.folder / _IDENTITY).unlink(missing_ok=True)
            self.begun_file.unlink(missing_ok=True)
        except OSError as error:
            raise PipelineError(f"{self.folder} can't be removed: {error.strerror}") from error
        shutil.rmtree(removed, ignore_errors=True)
        return True

    @property
    def reset(self) -> str:
        """The command that starts the query afresh."""
        pipeline, _, query = self._name.partition("/")
        return f"tidemill pipeline reset {pipeline} --query {query}"

    def _found(self) -> Identity | None:
        """Of the checkpoint that is there, or was.

        Raises:
            PipelineError: it is damaged, or gone while there is a checkpoint.
        """
        found = self._read()
        if found is None and not self.is_fresh:
            raise PipelineError(
                f"{self.folder} holds a checkpoint, but no {_IDENTITY}",
                hint=f"Put the file back, or give the checkpoint up: {self.reset}",
            )
        return found

    def _read(self) -> Identity | None:
        content = self._content(_IDENTITY)
        if content is None:
            return None
        try:
            return Identity(content["id"], int(content["created_ms"]), _shape(content["shape"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._unreadable(_IDENTITY, error) from error

    def _youngest(self, identity: Identity | None) -> int:
        """When the youngest checkpoint was made that is known here, in ms since 1970."""
        made = 0 if identity is None else identity.created_ms
        earlier = self._content(_EARLIER)
        try:
            return made if earlier is None else max(made, int(earlier["created_ms"]))
        except (ValueError, TypeError, KeyError) as error:
            raise self._unreadable(_EARLIER, error) from error

    def _content(self, name: str) -> Any:
        try:
            return json.loads((self.folder / name).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._unreadable(name, error) from error

    def _unreadable(self, name: str, error: Exception) -> PipelineError:
        return PipelineError(
            f"{self.folder / name} can't be read: {error}",
            hint=f"Give the checkpoint up: {self.reset}",
        )

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        path = self.folder / name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".tmp")
            with temporary.open("w") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise PipelineError(f"{path} can't be written: {error.strerror}") from error


class PipelineLock:
    """Held by whoever runs or resets a pipeline: two would spoil its checkpoints.

    Raises:
        PipelineRunningError: on entering: another process holds it.
    """

    def __init__(self, root: Path, pipeline: str) -> None:
        self._path = root / pipeline / _LOCK
        self._pipeline = pipeline
        self._file: int | None = None

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise PipelineRunningError(
                f"pipeline {self._pipeline} is being run by another process ({self._path})"
            ) from None
        self._file = file
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def queries_of(root: Path, pipeline: str) -> list[str]:
    """Queries of a pipeline that have a folder."""
    folder = root / pipeline
    found = folder.iterdir() if folder.is_dir() else iter(())
    return sorted(
        each.name for each in found if (each / _IDENTITY).exists() or (each / _SPARK).exists()
    )


def _shape(content: Mapping[str, Any] | None) -> Shape | None:
    if content is None:
        return None
    sources, mode, state = content["sources"], content["mode"], content["state"]
    return Shape(tuple(sources), mode, tuple(state), content.get("made_by", ""))


def _changes(before: Shape, now: Shape) -> Iterator[str]:
    """What keeps a query from going on where another one ended."""
    if before.sources != now.sources:
        yield f"it read {_list(before.sources)}, and now reads {_list(now.sources)}"
    elif before.state != now.state and before.made_by == now.made_by:
        yield _difference(before.state, now.state)
    if before.mode != now.mode and (before.state or now.state):
        yield f"its output mode was {before.mode}, and is {now.mode}"


def _difference(before: tuple[str, ...], now: tuple[str, ...]) -> str:
    if not before or not now:
        return "it kept no state, and now does" if now else "it kept state, and now keeps none"
    gone = [line.strip() for line in before if line not in now]
    new = [line.strip() for line in now if line not in before]
    text = "what it keeps in its state has changed"
    if gone:
        text += f"; before: {_shortened(gone)}"
    return f"{text}; now: {_shortened(new)}" if new else text


def _shortened(lines: list[str]) -> str:
    # Shapes that are stored have numbers: they are made readable here, not there.
    text = _MICROSECONDS.sub(_durations, ", ".join(lines))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _durations(found: re.Match[str]) -> str:
    """``60000000, 7 microseconds`` as ``1 minute, 7 microseconds``."""
    return ", ".join(_duration(int(number)) for number in found[1].split(", "))


def _duration(micros: int) -> str:
    for unit, length in _UNITS:
        count, rest = divmod(micros, length)
        if count and not rest:
            return f"{count} {unit}" + ("" if count == 1 else "s")
    return f"{micros} microseconds"


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"
