"""Keep a query's folder: Spark's checkpoint, and beside it what tidemill needs to know of it.

    <data>/pipelines/<pipeline>/<query>/
        identity.json       id, time of creation and fingerprint of this checkpoint
        earlier.json        the time of creation of the youngest checkpoint that was removed
        begun.json          the batch that was begun last, if the sink is a database
        rebuild.json        the sink was rebuilt and is being switched
        checkpoint/         Spark's own files

Sinks use the identity to tell the output of this checkpoint from that of another one. So a
checkpoint keeps its identity as long as Spark continues to number its batches. When Spark begins
at batch 0 again, for any reason, the checkpoint gets a new identity with a later time of creation,
even if the clock was set back. Must not know: Spark, Kafka clients.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from tidemill.spark.base.plan_difference import difference
from tidemill.spark.errors import PipelineError, PipelineRunningError
from tidemill.spark.pipelines.earlier_fingerprints import converted
from tidemill.system import replace_file

_IDENTITY = "identity.json"
_EARLIER = "earlier.json"
_BEGUN = "begun.json"
_REBUILD = "rebuild.json"
_SPARK = "checkpoint"
_REMOVED = "checkpoint.removed"
_LOCK = ".lock"
_FIELD = "shape"
"""Field of ``identity.json`` with the fingerprint; renaming it would break old checkpoints."""
ID_LENGTH = 12
"""Letters of an identity's id."""
_APART_MS = 1000  # sinks compare whole seconds


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The properties of a query that must not change while it uses the same checkpoint.

    Attributes:
        sources: its streaming sources, in the order of its plan.
        mode: its output mode.
        state: lines that describe the part of its plan that decides what is kept in state; empty
            if it keeps no state.
        made_by: the version that wrote ``state``. Lines of different versions can't be compared.
    """

    sources: tuple[str, ...]
    mode: str
    state: tuple[str, ...]
    made_by: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of one checkpoint.

    Attributes:
        id: unique.
        created_ms: milliseconds since 1970; each later checkpoint of a query has a greater value.
        fingerprint: the fingerprint of the query that used the checkpoint last; None before the
            first one.
    """

    id: str
    created_ms: int
    fingerprint: Fingerprint | None = None


class Checkpoint:
    """The folder of one query.

    Args:
        root: the folder of all pipelines.

    Attributes:
        spark_folder: the folder of Spark's own checkpoint.
        begun_file: the file in which a sink notes the batch that it began last.
    """

    def __init__(self, root: Path, pipeline: str, query: str) -> None:
        self.folder = root / pipeline / query
        self.spark_folder = self.folder / _SPARK
        self.begun_file = self.folder / _BEGUN
        self._name = f"{pipeline}/{query}"

    def begin(self, fingerprint: Fingerprint) -> Identity:
        """Return the identity with which a query starts; a new one if no batch was ever begun.

        Raises:
            PipelineError: the identity is damaged or missing, or the folder can't be written.
        """
        found = self._found()
        if found is None or self.is_fresh:
            now = time.time_ns() // 1_000_000
            created_ms = max(now, self._youngest(found) + _APART_MS)
            made = Identity(uuid.uuid4().hex[:ID_LENGTH], created_ms, fingerprint)
        else:
            made = replace(found, fingerprint=fingerprint)
        content = {"id": made.id, "created_ms": made.created_ms, _FIELD: asdict(fingerprint)}
        if self._content(_IDENTITY) != json.loads(json.dumps(content)):
            self._write(_IDENTITY, content)  # also a fingerprint of an earlier format
        return made

    @property
    def is_fresh(self) -> bool:
        """Whether no batch was ever begun, so that Spark will number them from 0."""
        offsets = self.spark_folder / "offsets"
        found = offsets.iterdir() if offsets.is_dir() else iter(())
        return not any(each.name.isdecimal() for each in found)

    def check(self, fingerprint: Fingerprint) -> None:
        """Check that a query can continue from this checkpoint.

        Raises:
            PipelineError: the query has changed in a way that the checkpoint does not allow (the
                message says which), or the identity is damaged or missing.
        """
        if self.is_switching:
            raise PipelineError(
                "a rebuild of its sink was interrupted when it was switched",
                hint="Run the command again: tidemill pipeline rebuild.",
            )
        identity = self._found()
        before = None if identity is None else identity.fingerprint
        if before is None or before == fingerprint or self.is_fresh:
            return
        changes = list(_changes(before, fingerprint))
        if changes:
            raise PipelineError(
                f"it can't continue from its checkpoint: {'; '.join(changes)}",
                hint=f"Undo the change, give the query a new name, or reset it: {self.reset}",
            )

    # --- a rebuild ---

    @property
    def is_switching(self) -> bool:
        """Whether a rebuild of the sink has begun to switch it, and has not ended."""
        return (self.folder / _REBUILD).exists()

    def begin_switch(self) -> None:
        """Note that a rebuild switches the sink. Until it has ended, the query can't start."""
        self._write(_REBUILD, {"step": "switching"})

    def adopt(self, other: Checkpoint) -> None:
        """Replace this checkpoint by that of the rebuild, and end the switch.

        It can be repeated after a crash at any point.

        Args:
            other: the checkpoint of the rebuild; its folder is removed.

        Raises:
            PipelineError: the folder can't be written.
        """
        removed = self.folder / _REMOVED
        try:
            if other.spark_folder.exists():
                shutil.rmtree(removed, ignore_errors=True)
                if self.spark_folder.exists():
                    self.spark_folder.rename(removed)
                other.spark_folder.rename(self.spark_folder)
            identity = other.folder / _IDENTITY
            if identity.exists():  # it is moved last
                self.begun_file.unlink(missing_ok=True)
                if other.begun_file.exists():
                    shutil.copyfile(other.begun_file, self.begun_file)
                identity.replace(self.folder / _IDENTITY)
            shutil.rmtree(removed, ignore_errors=True)
            shutil.rmtree(other.folder, ignore_errors=True)
            (self.folder / _REBUILD).unlink(missing_ok=True)
        except OSError as error:
            raise PipelineError(f"{self.folder} can't be written: {error.strerror}") from error

    def remove(self) -> bool:
        """Remove the checkpoint, but keep its time of creation.

        Returns:
            Whether there was a checkpoint.

        Raises:
            PipelineError: the folder can't be written, or its content can't be removed.
        """
        if not self.folder.exists() or {each.name for each in self.folder.iterdir()} <= {_EARLIER}:
            return False
        try:
            youngest = self._youngest(self._read())
        except PipelineError:  # A damaged identity may be the reason to remove the checkpoint.
            youngest = max(self._youngest(None), time.time_ns() // 1_000_000)
        self._write(_EARLIER, {"created_ms": youngest})
        # The rename is atomic: if the process is killed, no half of a checkpoint is left in use.
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
        """The command that removes the checkpoint."""
        pipeline, _, query = self._name.partition("/")
        return f"tidemill pipeline reset {pipeline} --query {query}"

    def _found(self) -> Identity | None:
        """Return the stored identity, if there is one."""
        found = self._read()
        if found is None and not self.is_fresh:
            raise PipelineError(
                f"{self.folder} holds a checkpoint, but no {_IDENTITY}",
                hint=f"Restore the file from a backup, or remove the checkpoint: {self.reset}",
            )
        return found

    def _read(self) -> Identity | None:
        content = self._content(_IDENTITY)
        if content is None:
            return None
        try:
            fingerprint = _fingerprint(content[_FIELD])
            return Identity(content["id"], int(content["created_ms"]), fingerprint)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._unreadable(_IDENTITY, error) from error

    def _youngest(self, identity: Identity | None) -> int:
        """Return when the youngest known checkpoint was created, in ms since 1970."""
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
            hint=f"Restore the file from a backup, or remove the checkpoint: {self.reset}",
        )

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        path = self.folder / name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps(content))
        except OSError as error:
            raise PipelineError(f"{path} can't be written: {error.strerror}") from error


class PipelineLock:
    """A lock for the process that runs or resets a pipeline. Two would damage its checkpoints.

    Args:
        root: the folder of all pipelines.

    Raises:
        PipelineRunningError: on entering, if another process holds the lock.
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
                f"another process runs pipeline {self._pipeline} ({self._path})"
            ) from None
        self._file = file
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def queries_of(root: Path, pipeline: str) -> list[str]:
    """Return the names of a pipeline's queries that have a checkpoint."""
    folder = root / pipeline
    found = folder.iterdir() if folder.is_dir() else iter(())
    return sorted(
        each.name for each in found if (each / _IDENTITY).exists() or (each / _SPARK).exists()
    )


def _fingerprint(content: Mapping[str, Any] | None) -> Fingerprint | None:
    if content is None:
        return None
    state, made_by = converted(content["state"], content.get("made_by", ""))
    return Fingerprint(tuple(content["sources"]), content["mode"], state, made_by)


def _changes(before: Fingerprint, now: Fingerprint) -> Iterator[str]:
    """Yield the differences that prevent a query from using the checkpoint of another one."""
    if before.sources != now.sources:
        yield f"it read {_list(before.sources)}, and now reads {_list(now.sources)}"
    elif before.state != now.state and before.made_by == now.made_by:
        yield _difference(before.state, now.state)
    if before.mode != now.mode and (before.state or now.state):
        yield f"its output mode was {before.mode}, and now is {now.mode}"


def _difference(before: tuple[str, ...], now: tuple[str, ...]) -> str:
    if not before or not now:
        return "it kept no state, and now does" if now else "it kept state, and now keeps none"
    gone, new = difference(before, now)
    text = "what it keeps in its state has changed"
    if gone:
        text += f"; before: {gone}"
    return f"{text}; now: {new}" if new else text


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"
