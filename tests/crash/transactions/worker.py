"""The consume-transform-produce loop, in a process that gets killed.

It says what it does in a file, a line per step, so that the driver can see how far it is and a
failed test can show what happened. Knows nothing of how it is started and killed.
"""

from __future__ import annotations

import os
import signal
import traceback

from tests.crash.transactions.clients import CLIENTS, Client, Job, Record

FENCED = 3
"""Exit code of a worker whose client can't go on: another one has its identity, or so it seems."""


class Steps:
    """What the worker does, as lines of a file; a stop where the job asks for one."""

    def __init__(self, job: Job) -> None:
        self._fd = os.open(job.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._stop_at = job.stop_at

    def note(self, step: str, why: object = "") -> None:
        """One write a line: a kill leaves whole lines."""
        os.write(self._fd, f"{step} {why!r}\n".encode() if why else f"{step}\n".encode())
        if step == self._stop_at:
            self._stop_at = ""
            os.write(self._fd, b"stopped\n")
            os.kill(os.getpid(), signal.SIGSTOP)


def result_of(record: Record) -> bytes:
    """What the worker makes of an input record; tells which one it was."""
    return b"%d/%d/%b" % (record.partition, record.offset, record.value[::-1])


def run(job: Job) -> None:
    """Work until the client can't go on; the process then ends with ``FENCED``."""
    output = os.open(job.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    steps = Steps(job)
    try:
        client = CLIENTS[job.client](job)
        client.start()
        steps.note("up")
        _work(job, client, steps)
    except BaseException as error:
        traceback.print_exc()
        steps.note("fatal", error)
        # Not a clean exit: closing the clients would wait for what can't come.
        os._exit(FENCED)


def _work(job: Job, client: Client, steps: Steps) -> None:
    transactions = 0
    while True:
        records = client.poll()
        if not records:
            continue
        transactions += 1
        try:
            client.begin()
            steps.note("begin")
            for record in records:
                client.send(record.partition, record.key, result_of(record))
            if transactions % 2:  # the other half leaves it to the client when it is sent
                client.flush()
            steps.note("sent")
            if job.aborts and transactions % job.aborts == 0:
                raise InterruptedError("changed its mind")
            # Records of a partition are in order: the last one says where to go on.
            client.send_offsets({r.partition: r.offset + 1 for r in records})
            steps.note("offsets")
            client.commit()
            steps.note("commit")
        except Exception as error:
            steps.note("abort", error)
            client.abort()
            # Of several records of a partition the last one in this order, so the first, stays.
            client.rewind({r.partition: r.offset for r in reversed(records)})
            steps.note("aborted")
