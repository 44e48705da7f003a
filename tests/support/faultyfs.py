"""A file system in memory that fails on demand: torn writes, a full disk, bad syncs, power cuts.

It keeps apart what the system would show (the volatile state) and what is on disk (the durable
one). A killed process leaves the volatile state; a power cut leaves the durable state plus some
random part of what was not synced: a prefix of the changes in each folder, a prefix of the new
bytes of each file (perhaps followed by zeros, as file systems do that grow a file before its data).
With ``page`` set, any of a file's unsynced pages can reach the disk without the others.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence

from tidemill.log.disk.files import Buffer, Lock, RawFile
from tidemill.log.errors import DataDirLockedError


class CrashError(Exception):
    """The process ends here: nothing after this point happened."""


class _File:
    __slots__ = ("data", "durable")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable: bytes = b""


_LOCK = threading.Lock()
"""Threads of a broker change and sync the same folder."""


class _Folder:
    __slots__ = ("durable", "entries", "pending")

    def __init__(self) -> None:
        self.entries: dict[str, _File | _Folder] = {}
        self.durable: dict[str, _File | _Folder] = {}
        self.pending: list[dict[str, _File | _Folder | None]] = []
        """Changes since the last sync of the folder, in order; None takes an entry away."""

    def change_all(self, entries: dict[str, _File | _Folder | None]) -> None:
        with _LOCK:
            self.pending.append(entries)
            _apply(self.entries, entries)

    def sync(self) -> None:
        with _LOCK:
            self.durable = dict(self.entries)
            self.pending.clear()


def _apply(entries: dict[str, _File | _Folder], change: dict[str, _File | _Folder | None]) -> None:
    for name, node in change.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


class _Handle:
    def __init__(self, fs: FaultyFileSystem, node: _File, path: str) -> None:
        self._fs = fs
        self._node = node
        self._path = path
        fs.open_handles += 1

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> int:
        return self._fs.write_into(self._node, b"".join(buffers), position, self._path)

    def pread(self, length: int, position: int) -> bytes:
        self._fs.check("read", self._path)
        return bytes(self._node.data[position : position + length])

    def pread_nowait(self, length: int, position: int) -> Buffer | None:
        if self._fs.cold:
            return None
        data = self.pread(length, position)
        return data if len(data) == length else None

    def fileno(self) -> None:
        return None

    def datasync(self) -> None:
        self._fs.check("sync", self._path)
        self._fs.syncs += 1
        self._node.durable = bytes(self._node.data)

    def truncate(self, size: int) -> None:
        self._fs.check("truncate", self._path)
        data = self._node.data
        if size < len(data):
            del data[size:]
        else:
            data.extend(bytes(size - len(data)))

    def size(self) -> int:
        return len(self._node.data)

    def close(self) -> None:
        self._fs.open_handles -= 1


class _Lock:
    def __init__(self, release: Callable[[], None]) -> None:
        self.close = release

    def is_in_place(self) -> bool:
        return True


class Unlucky(random.Random):
    """A power cut with it leaves nothing that was not synced."""

    def randint(self, a: int, b: int) -> int:
        return a

    def random(self) -> float:
        return 0.9


class FaultyFileSystem:
    """Implements ``log.files.FileSystem``.

    Attributes:
        capacity: bytes that fit; writes beyond are cut and raise ENOSPC.
        cold: nothing is in the page cache: ``pread_nowait`` finds nothing.
        ordered: changes of a folder reach the disk in their order, as journals do it; False is
            all that POSIX promises.
        page: bytes of a page; each page that was not synced is kept or lost by itself. 0 keeps a
            prefix of a file.
        open_handles, syncs: counts.
    """

    def __init__(self) -> None:
        self._root = _Folder()
        self._locks: set[str] = set()
        self._faults: dict[str, list[tuple[str, int]]] = {}
        self._tear_after: int | None = None
        self.capacity: int | None = None
        self.cold = False
        self.ordered = True
        self.page = 0
        self.open_handles = 0
        self.syncs = 0

    # --- what goes wrong -------------------------------------------------------------------------

    def fail(
        self, operation: str, code: int = errno.EIO, *, times: int = 1, path: str = ""
    ) -> None:
        """Let the next calls fail.

        Args:
            operation: open, read, write, sync, truncate, rename, remove, create.
            code: errno.
            times: how many calls; -1 is all.
            path: only for paths that contain it.
        """
        self._faults.setdefault(operation, []).extend([(path, code)] * max(times, 1))
        if times < 0:
            self._faults[operation].append(("forever:" + path, code))

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._faults.clear()
        self._tear_after = None
        self.capacity = None

    def tear_next_write(self, after: int) -> None:
        """Let the next write end the process (CrashError) after this many bytes."""
        self._tear_after = after

    def kill(self) -> None:
        """End the process: release its locks, keep what it wrote."""
        self._locks.clear()
        self.clear_faults()
        self.open_handles = 0

    def power_cut(self, rng: random.Random, *, zeros: bool = True) -> None:
        """Keep what was synced, and a random part of the rest.

        Args:
            zeros: files may also have grown by bytes that were never written.
        """
        self.kill()
        seen: set[int] = set()
        self._cut_folder(self._root, rng, zeros, seen)

    def _cut_folder(self, folder: _Folder, rng: random.Random, zeros: bool, seen: set[int]) -> None:
        entries = dict(folder.durable)
        until = rng.randint(0, len(folder.pending)) if self.ordered else len(folder.pending)
        for change in folder.pending[:until]:
            if self.ordered or rng.random() < 0.5:
                _apply(entries, change)
        folder.entries = entries
        folder.sync()
        for node in entries.values():
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, _Folder):
                self._cut_folder(node, rng, zeros, seen)
            else:
                _cut_file(node, rng, zeros, self.page)

    def check(self, operation: str, path: str) -> None:
        """Raise the fault that waits for this call."""
        faults = self._faults.get(operation, [])
        for index, (where, code) in enumerate(faults):
            forever = where.startswith("forever:")
            if where.removeprefix("forever:") in path:
                if not forever:
                    del faults[index]
                raise OSError(code, os.strerror(code), path)

    def write_into(self, node: _File, data: bytes, position: int, path: str) -> int:
        """Write as far as tears, faults and space allow."""
        if self._tear_after is not None:
            _put(node, data[: self._tear_after], position)
            self._tear_after = None
            raise CrashError(path)
        self.check("write", path)
        if self.capacity is not None:
            space = self.capacity - self.used()
            grows = position + len(data) - len(node.data)
            if grows > space:
                fits = max(len(data) - (grows - max(space, 0)), 0)
                if fits == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
                data = data[:fits]
        _put(node, data, position)
        return len(data)

    def used(self) -> int:
        """Bytes in all files."""
        return _used(self._root)

    # --- FileSystem ------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> RawFile:
        folder, name = self._parent(path)
        node = folder.entries.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self.check("create", path)
            node = _File()
            folder.change_all({name: node})
        if isinstance(node, _Folder):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self.check("open", path)
        return _Handle(self, node, path)

    def read_bytes(self, path: str) -> bytes:
        self.check("read", path)
        return bytes(self._file(path).data)

    def map_bytes(self, path: str) -> bytes:
        return self.read_bytes(path)

    def write_bytes(self, path: str, data: Buffer) -> None:
        self._write(path, data, sync=False)

    def write_atomic(self, path: str, data: Buffer) -> None:
        self._write(path, data, sync=True)
        self.sync_dir(path.rpartition("/")[0])

    def _write(self, path: str, data: Buffer, *, sync: bool) -> None:
        folder, name = self._parent(path)
        self.check("create", path)
        node = _File()
        folder.change_all({name + ".tmp": node})
        try:
            if self.write_into(node, bytes(data), 0, path + ".tmp") != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            if sync:
                self.check("sync", path)
                node.durable = bytes(node.data)
            self.check("rename", path)
        except OSError:
            folder.change_all({name + ".tmp": None})
            raise
        folder.change_all({name: node, name + ".tmp": None})

    def sync_file(self, path: str) -> None:
        node = self._file(path)
        self.check("sync", path)
        self.syncs += 1
        node.durable = bytes(node.data)

    def sync_dir(self, path: str) -> None:
        folder = self._folder(path)
        self.check("sync", path)
        folder.sync()

    def sync_all(self, path: str) -> bool:
        self.check("sync", path)
        self.syncs += 1
        _settle(self._root)
        return True

    def mkdir(self, path: str) -> None:
        folder, name = self._parent(path)
        if name in folder.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.check("create", path)
        folder.change_all({name: _Folder()})

    def makedirs(self, path: str) -> None:
        folder = self._root
        for name in path.strip("/").split("/"):
            node = folder.entries.get(name)
            if node is None:
                node = _Folder()
                folder.change_all({name: node})
                folder.sync()
            assert isinstance(node, _Folder)
            folder = node

    def rename(self, old: str, new: str) -> None:
        self.check("rename", old)
        source, name = self._parent(old)
        target, other = self._parent(new)
        node = source.entries.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
        if source is not target:
            raise NotImplementedError("tidemill renames within one folder only")
        source.change_all({name: None, other: node})

    def remove(self, path: str) -> None:
        self.check("remove", path)
        self._file(path)
        folder, name = self._parent(path)
        folder.change_all({name: None})

    def remove_tree(self, path: str) -> None:
        self.check("remove", path)
        self._folder(path)
        folder, name = self._parent(path)
        folder.change_all({name: None})

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def files(self, path: str) -> dict[str, int]:
        entries = self._folder(path).entries
        return {name: len(node.data) for name, node in entries.items() if isinstance(node, _File)}

    def folders(self, path: str) -> list[str]:
        entries = self._folder(path).entries
        return [name for name, node in entries.items() if isinstance(node, _Folder)]

    def lock(self, path: str) -> Lock:
        if path in self._locks:
            raise DataDirLockedError(f"{path} is in use")
        self._locks.add(path)
        return _Lock(lambda: self._locks.discard(path))

    # --- for tests -------------------------------------------------------------------------------

    def content(self, path: str) -> bytearray:
        """Return the bytes of a file, to be damaged in place; ``settle`` puts them on disk."""
        return self._file(path).data

    def settle(self, path: str) -> None:
        """Put the present content of a file on disk, as a sync does."""
        node = self._file(path)
        node.durable = bytes(node.data)

    # --- nodes -----------------------------------------------------------------------------------

    def _find(self, path: str) -> _File | _Folder | None:
        node: _File | _Folder = self._root
        for name in path.strip("/").split("/"):
            if not isinstance(node, _Folder) or name not in node.entries:
                return None
            node = node.entries[name]
        return node

    def _file(self, path: str) -> _File:
        node = self._find(path)
        if not isinstance(node, _File):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def _folder(self, path: str) -> _Folder:
        node = self._find(path)
        if not isinstance(node, _Folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def _parent(self, path: str) -> tuple[_Folder, str]:
        parent, _, name = path.rpartition("/")
        return self._folder(parent), name


class HeldDisk(FaultyFileSystem):
    """A disk in memory whose syncs wait while it is held."""

    def __init__(self) -> None:
        super().__init__()
        self._may_sync = threading.Event()
        self._may_sync.set()

    @property
    def is_held(self) -> bool:
        """Whether syncs wait."""
        return not self._may_sync.is_set()

    def hold(self) -> None:
        """Let no sync of another thread end before ``release``."""
        self._may_sync.clear()

    def release(self) -> None:
        """Let syncs continue."""
        self._may_sync.set()

    def check(self, operation: str, path: str) -> None:
        """Wait in a sync while the disk is held."""
        if operation == "sync" and threading.current_thread() is not threading.main_thread():
            assert self._may_sync.wait(300)
        super().check(operation, path)


def _put(node: _File, data: bytes, position: int) -> None:
    if position > len(node.data):
        node.data.extend(bytes(position - len(node.data)))
    node.data[position : position + len(data)] = data


def _cut_file(node: _File, rng: random.Random, zeros: bool, page: int) -> None:
    if page:
        size = rng.randint(len(node.durable), max(len(node.durable), len(node.data)))
        old = node.durable + bytes(max(size - len(node.durable), 0))
        for at in range(0, size, page):
            if node.data[at : at + page] != old[at : at + page] and rng.random() < 0.5:
                node.data[at : at + page] = old[at : at + page]
        del node.data[size:]
    elif node.data.startswith(node.durable):
        kept = rng.randint(len(node.durable), len(node.data))
        grown = rng.randint(kept, len(node.data)) if zeros and rng.random() < 0.3 else kept
        node.data[kept:] = bytes(grown - kept)
    elif rng.random() < 0.5:
        node.data[:] = node.durable
    node.durable = bytes(node.data)


def _settle(folder: _Folder) -> None:
    folder.sync()
    for node in list(folder.entries.values()):  # other threads create files meanwhile
        if isinstance(node, _Folder):
            _settle(node)
        else:
            node.durable = bytes(node.data)


def _used(folder: _Folder) -> int:
    return sum(
        _used(node) if isinstance(node, _Folder) else len(node.data)
        for node in folder.entries.values()
    )
