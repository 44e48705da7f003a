"""The consume-transform-produce loop, in a process that gets killed.

It writes a line for each step to a file, so that the driver knows its progress and a failed test
can show what happened. Knows nothing of how it is started and killed.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import traceback

from tests.crash.transactions.clients import CLIENTS, Client, Job, Record

FENCED = 3
"""Exit code of a worker whose client can't continue, e.g. because it was fenced."""


class Steps:
    """Writes the steps of the worker to a file, and stops the process at the step of the job."""

    def __init__(self, job: Job) -> None:
        self._fd = os.open(job.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._stop_at = job.stop_at

    def note(self, step: str, why: object = "") -> None:
        """Record a step. One write per line: a kill leaves whole lines."""
        os.write(self._fd, f"{step} {why!r}\n".encode() if why else f"{step}\n".encode())
        if step == self._stop_at:
            self._stop_at = ""
            os.write(self._fd, b"stopped\n")
            os.kill(os.getpid(), signal.SIGSTOP)


def result_of(record: Record) -> bytes:
    """Return the result of an input record. It contains partition and offset of the record."""
    return b"%d/%d/%b" % (record.partition, record.offset, record.value[::-1])


def run(job: Job) -> None:
    """Work until the client can't continue, then end the process with ``FENCED``."""
    output = os.open(job.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.register(signal.SIGUSR1)  # writes where each thread is to the output
    steps = Steps(job)
    try:
        client = CLIENTS[job.client](job)
        client.start()
        steps.note("up")
        _work(job, client, steps)
    except BaseException as error:
        traceback.print_exc()
        steps.note("fatal", error)
        # Not a clean exit: closing the clients would wait for answers that never come.
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
            if transactions % 2:  # in the others, the client decides when it sends
                client.flush()
            steps.note("sent")
            if job.aborts and transactions % job.aborts == 0:
                raise InterruptedError("aborted on purpose")
            # Records of a partition are in order: the last one gives the next position.
            client.send_offsets({r.partition: r.offset + 1 for r in records})
            steps.note("offsets")
            client.commit()
            steps.note("commit")
        except Exception as error:
            steps.note("abort", error)
            client.abort()
            # In reversed order, the first record of a partition is the one that the dict keeps.
            client.rewind({r.partition: r.offset for r in reversed(records)})
            steps.note("aborted")
