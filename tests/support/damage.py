"""Damages files: a table of structured damages over every kind of file, and random bytes.

A folder is a dict from path to content, so that thousands of damaged copies are cheap. Knows names
and the layout of batches and indexes, and nothing of how tidemill reads them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from tests.support.faultyfs import FaultyFileSystem
from tidemill.log.format.batch import iter_headers

Files = dict[str, bytes]
Damage = Callable[[Files, str, random.Random], str]
"""Changes one of the files, or another one, and says what it did. An empty string means nothing."""

# Where the fields of a batch begin, and how long they are.
FIELDS = {
    "base offset": (0, 8),
    "length": (8, 4),
    "leader epoch": (12, 4),
    "magic": (16, 1),
    "crc": (17, 4),
    "attributes": (21, 2),
    "last offset delta": (23, 4),
    "base timestamp": (27, 8),
    "max timestamp": (35, 8),
    "producer id": (43, 8),
    "producer epoch": (51, 2),
    "base sequence": (53, 4),
    "record count": (57, 4),
}
ENTRY_SIZES = {".index": 8, ".timeindex": 12, ".txnindex": 34, ".snapshot": 48}


def take_files(fs: FaultyFileSystem, folder: str) -> Files:
    """Return the content of all files below a folder. Empty folders are lost."""
    files = {f"{folder}/{name}": bytes(fs.content(f"{folder}/{name}")) for name in fs.files(folder)}
    for name in fs.folders(folder):
        files |= take_files(fs, f"{folder}/{name}")
    return files


def give_files(files: Files) -> FaultyFileSystem:
    """Return a file system with these files, all on disk."""
    fs = FaultyFileSystem()
    for path, data in files.items():
        fs.makedirs(path.rpartition("/")[0])
        fs.write_bytes(path, data)
    fs.sync_all("/")
    return fs


def kind_of(path: str) -> str:
    """Return the suffix of a partition's file, or the whole name of another file."""
    name = path.rpartition("/")[2]
    return name[20:] if name[:20].isdecimal() else name


def entry_size(path: str) -> int:
    """Return the size of an entry of an index, or 8."""
    return ENTRY_SIZES.get(kind_of(path), 8)


# --- one file -------------------------------------------------------------------------------------


def flip_any_bit(files: Files, path: str, dice: random.Random) -> str:
    data = files[path]
    if not data:
        return ""
    return flip(files, path, dice.randrange(len(data)), dice.randrange(8))


def flip(files: Files, path: str, position: int, bit: int) -> str:
    changed = bytearray(files[path])
    changed[position] ^= 1 << bit
    files[path] = bytes(changed)
    return f"bit {bit} of byte {position} flipped in {path}"


def flip_in_field(field: str) -> Damage:
    """Return a damage that flips a bit in a field of a batch."""
    start, size = FIELDS[field]

    def damage(files: Files, path: str, dice: random.Random) -> str:
        batches = list(iter_headers(files[path]))
        if kind_of(path) != ".log" or not batches:
            return ""
        position, header = dice.choice([batches[0], batches[-1], dice.choice(batches)])
        at = position + start + dice.randrange(size)
        return f"{field} of batch {header.base_offset}: " + flip(files, path, at, dice.randrange(8))

    return damage


def set_field(field: str, value: int) -> Damage:
    """Return a damage that writes an absurd value into a field of a batch."""
    start, size = FIELDS[field]

    def damage(files: Files, path: str, dice: random.Random) -> str:
        batches = list(iter_headers(files[path]))
        if kind_of(path) != ".log" or not batches:
            return ""
        position, header = dice.choice(batches)
        at = position + start
        _replace(files, path, at, value.to_bytes(size, "big", signed=True))
        return f"{field} of batch {header.base_offset} set to {value} in {path}"

    return damage


def set_entry(files: Files, path: str, dice: random.Random) -> str:
    """Write an absurd number into an index or another binary file."""
    data = files[path]
    if len(data) < 8 or kind_of(path) == ".log":
        return ""
    at = dice.randrange(0, len(data) - 7, 4)
    value = dice.choice([bytes(8), b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7)])
    _replace(files, path, at, value[: dice.choice([4, 8])])
    return f"absurd number at byte {at} of {path}"


def _replace(files: Files, path: str, at: int, new: bytes) -> None:
    data = files[path]
    files[path] = data[:at] + new + data[at + len(new) :]


def truncate(files: Files, path: str, dice: random.Random) -> str:
    data = files[path]
    if not data:
        return ""
    entry = entry_size(path)
    kept = dice.choice(
        [0, len(data) // 2, len(data) - 1, max(len(data) - entry, 0), dice.randrange(len(data))]
    )
    files[path] = data[:kept]
    return f"{path} cut from {len(data)} to {kept} bytes"


def drop_batches(files: Files, path: str, dice: random.Random) -> str:
    """Cut out one or more complete batches, also from the middle."""
    batches = list(iter_headers(files[path]))
    if kind_of(path) != ".log" or not batches:
        return ""
    first = dice.randrange(len(batches))
    last = dice.choice([first, len(batches) - 1])
    start, end = batches[first][0], batches[last][0] + batches[last][1].size
    files[path] = files[path][:start] + files[path][end:]
    return f"bytes {start} to {end} cut out of {path}"


def repeat_batch(files: Files, path: str, dice: random.Random) -> str:
    """Write a batch a second time, behind itself or at the end."""
    batches = list(iter_headers(files[path]))
    if kind_of(path) != ".log" or not batches:
        return ""
    position, header = dice.choice(batches)
    data = files[path]
    batch = data[position : position + header.size]
    at = dice.choice([position + header.size, len(data)])
    files[path] = data[:at] + batch + data[at:]
    return f"batch {header.base_offset} repeated at byte {at} of {path}"


def swap_batches(files: Files, path: str, dice: random.Random) -> str:
    batches = list(iter_headers(files[path]))
    if kind_of(path) != ".log" or len(batches) < 2:
        return ""
    number = dice.randrange(len(batches) - 1)
    (first, one), (second, two) = batches[number], batches[number + 1]
    data = files[path]
    end = second + two.size
    files[path] = data[:first] + data[second:end] + data[first:second] + data[end:]
    return f"batches {one.base_offset} and {two.base_offset} exchanged in {path}"


def zero(files: Files, path: str, dice: random.Random) -> str:
    data = files[path]
    if not data:
        return ""
    start = dice.choice([0, dice.randrange(len(data)), max(len(data) - entry_size(path), 0)])
    end = dice.choice([len(data), min(start + 16, len(data)), min(start + 512, len(data))])
    _replace(files, path, start, bytes(end - start))
    return f"bytes {start} to {end} of {path} zeroed"


def overwrite(files: Files, path: str, dice: random.Random) -> str:
    data = files[path]
    if not data:
        return ""
    start = dice.randrange(len(data))
    size = min(dice.choice([1, 4, 8, 64, 600]), len(data) - start)
    _replace(files, path, start, dice.randbytes(size))
    return f"{size} random bytes at byte {start} of {path}"


def extend(files: Files, path: str, dice: random.Random) -> str:
    data = files[path]
    more = dice.choice([b"\0" * 100, dice.randbytes(50), data, data[-entry_size(path) :], b"\n"])
    if not more:
        return ""
    files[path] = data + more
    return f"{len(more)} bytes appended to {path}"


def fill(files: Files, path: str, dice: random.Random) -> str:
    files[path] = dice.randbytes(dice.choice([0, 1, 7, 100, len(files[path])]))
    return f"{path} replaced by {len(files[path])} random bytes"


def delete(files: Files, path: str, dice: random.Random) -> str:
    del files[path]
    return f"{path} deleted"


# --- several files --------------------------------------------------------------------------------


def exchange(files: Files, path: str, dice: random.Random) -> str:
    """Exchange a file with another one of its kind, or with any file."""
    other = _other(files, path, dice)
    if not other or files[other] == files[path]:
        return ""
    files[path], files[other] = files[other], files[path]
    return f"{path} exchanged with {other}"


def copy_over(files: Files, path: str, dice: random.Random) -> str:
    """Replace a file by a copy of another one."""
    other = _other(files, path, dice)
    if not other or files[other] == files[path]:
        return ""
    files[path] = files[other]
    return f"{path} replaced by a copy of {other}"


def _other(files: Files, path: str, dice: random.Random) -> str:
    same = [each for each in files if kind_of(each) == kind_of(path) and each != path]
    near = [each for each in same if each.rpartition("/")[0] == path.rpartition("/")[0]]
    pools = [pool for pool in (near, near, same, [each for each in files if each != path]) if pool]
    return dice.choice(dice.choice(pools)) if pools else ""


def copy_as(files: Files, path: str, dice: random.Random) -> str:
    """Copy a file to a name that no file has."""
    folder, _, name = path.rpartition("/")
    new = dice.choice(
        [
            f"{dice.randrange(200):020d}{kind_of(path)}",
            f"{1 << 62:020d}{kind_of(path)}",
            "9" * 20 + kind_of(path),
            f"x{name}",
            f"{name}.swap",
            f"{name}.deleted",
            f"{name}.cleaned",
            f"12{kind_of(path)}",
        ]
    )
    if f"{folder}/{new}" in files:
        return ""
    files[f"{folder}/{new}"] = files[path]
    return f"{path} copied as {new}"


def rename(files: Files, path: str, dice: random.Random) -> str:
    done = copy_as(files, path, dice)
    if done:
        del files[path]
    return done.replace("copied", "renamed")


def empty_folder(files: Files, path: str, dice: random.Random) -> str:
    """Delete all files of a partition; an empty file keeps the folder."""
    folder = path.rpartition("/")[0]
    for each in [each for each in files if each.startswith(folder + "/")]:
        del files[each]
    files[f"{folder}/keep"] = b""
    return f"all files of {folder} deleted"


ON_BATCHES: list[Damage] = [
    *(flip_in_field(field) for field in FIELDS),
    *(flip_in_field("base offset") for _ in range(5)),
    set_field("base offset", 0),
    set_field("base offset", -1),
    set_field("base offset", (1 << 63) - 1),
    set_field("base offset", 1 << 40),
    set_field("length", (1 << 31) - 1),
    set_field("length", -1),
    set_field("length", 0),
    set_field("last offset delta", (1 << 31) - 1),
    set_field("last offset delta", -1),
    set_field("record count", (1 << 31) - 1),
    drop_batches,
    repeat_batch,
    swap_batches,
]
ON_ANY: list[Damage] = [
    flip_any_bit,
    flip_any_bit,
    truncate,
    truncate,
    zero,
    overwrite,
    extend,
    fill,
    delete,
    exchange,
    copy_over,
    copy_as,
    rename,
]


def damages(files: Files, seed: int) -> Iterator[tuple[Files, str, str]]:
    """Yield (damaged files, path of the victim, what was done) without end.

    Each kind of file gets its share, however many files there are of it.
    """
    dice = random.Random(seed)
    kinds: dict[str, list[str]] = {}
    for path in files:
        kinds.setdefault(kind_of(path), []).append(path)
    while True:
        kind = dice.choice([*kinds, ".log", ".log"])
        path = dice.choice(sorted(kinds[kind]))
        table = [*ON_ANY, set_entry]
        if kind == ".log":
            table = [*ON_ANY, *ON_BATCHES, empty_folder]
        damaged = dict(files)
        done = dice.choice(table)(damaged, path, dice)
        if done and damaged != files:
            yield damaged, path, done
