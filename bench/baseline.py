"""The raw baseline: copies bytes from a loopback socket to a file and back, and nothing else.

Frames have a length and no other structure. In ``write`` mode the server appends each frame to one
of ``--files`` files and sends as many bytes as a response to Produce has. With ``--sync`` responses
wait for fdatasync, which runs once per file for all frames that arrived meanwhile. With
``--checked`` the server also does what a broker can't leave out: it computes the CRC of each frame,
and it syncs the files every 50 ms unless responses wait for that. In ``read`` mode it sends the
next ``--chunk`` bytes of the file for each 8-byte request. It uses plain blocking calls: the best
that Python can do without looking at the data.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

from bench.wire import read_exactly, read_response
from tidemill.log.format.crc import crc32c

ANSWER = struct.pack(">i", 64) + bytes(64)
SYNC_THREADS = 4
SYNC_INTERVAL_S = 0.05
"""The default of ``log.sync_interval_ms``."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=["write", "read"])
    parser.add_argument("folder")
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--checked", action="store_true")
    parser.add_argument("--chunk", type=int, default=1 << 20)
    args = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    paths = [os.path.join(args.folder, f"raw-{i}") for i in range(args.files)]
    while True:
        sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with sock:
            if args.mode == "write":
                write(sock, paths, args.sync, args.checked)
            else:
                read(sock, paths, args.chunk)


def write(sock: socket.socket, paths: list[str], sync: bool, checked: bool) -> None:
    """Append frames round robin until the client disconnects."""
    files = [os.open(p, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for p in paths]
    written: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    syncer = threading.Thread(target=_sync_and_answer, args=(sock, written), daemon=True)
    if sync:
        syncer.start()
    stop = threading.Event()
    behind = threading.Thread(target=_sync_behind, args=(files, stop), daemon=True)
    if checked and not sync:
        behind.start()
    buffer = bytearray(4 << 20)
    turn = 0
    with contextlib.suppress(ConnectionError):  # the client ends the loop
        while True:
            size = read_response(sock, buffer)
            fd = files[turn % len(files)]
            turn += 1
            if checked:
                crc32c(memoryview(buffer)[:size])
            os.write(fd, memoryview(buffer)[:size])
            if sync:
                written.put(fd)
            else:
                sock.sendall(ANSWER)
    if sync:
        written.put(None)
        syncer.join()
    stop.set()
    if behind.is_alive():
        behind.join()
    for fd in files:
        os.close(fd)


def _sync_behind(files: list[int], stop: threading.Event) -> None:
    with ThreadPoolExecutor(SYNC_THREADS) as pool:
        while not stop.wait(SYNC_INTERVAL_S):
            list(pool.map(os.fdatasync, files))


def _sync_and_answer(sock: socket.socket, written: queue.SimpleQueue[int | None]) -> None:
    pool = ThreadPoolExecutor(SYNC_THREADS)
    while True:
        fds = [written.get()]
        while not written.empty():
            fds.append(written.get())
        dirty = {fd for fd in fds if fd is not None}
        if len(dirty) == 1:
            os.fdatasync(dirty.pop())
        else:
            list(pool.map(os.fdatasync, dirty))
        sock.sendall(ANSWER * sum(fd is not None for fd in fds))
        if None in fds:
            return


def read(sock: socket.socket, paths: list[str], chunk: int) -> None:
    """Send the next part of the next file for each request, until all are sent."""
    files = [os.open(p, os.O_RDONLY) for p in paths]
    positions = [0] * len(files)
    turn = 0
    request = bytearray(8)
    with contextlib.suppress(ConnectionError):  # the client ends the loop
        while True:
            read_exactly(sock, memoryview(request))
            index = turn % len(files)
            turn += 1
            data = os.pread(files[index], chunk, positions[index])
            positions[index] += len(data)
            sock.sendall(struct.pack(">i", len(data)))
            sock.sendall(data)
    for fd in files:
        os.close(fd)


if __name__ == "__main__":
    main()
