"""Follow two logs and store what comes, as a program that tests kill.

    python -m tests.connect.direct.zeromq_follower FILE PUBLISH REQUESTS FILE PUBLISH REQUESTS

Of the first log it stores each record, of the second one the last values. Each line of a file has
what one poll returned, and the positions behind it, so that a start resumes from the last line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tidemill.direct.pubsub import LogRecord, LogSubscriber


def lines(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file. One that a kill has cut is left out."""
    raw = file.read_bytes() if file.exists() else b""
    return [json.loads(line) for line in raw.split(b"\n")[:-1] if line.endswith(b"}")]


def main(*arguments: str) -> None:
    """Follow until the process is killed."""
    followed = []
    for at, mode in ((0, "earliest"), (3, "last-values")):
        file = Path(arguments[at])
        stored = lines(file)
        positions = {int(key): each for key, each in stored[-1]["at"].items()} if stored else {}
        start: Any = positions or mode
        subscriber = LogSubscriber(
            *arguments[at + 1 : at + 3], start=start, last_values=mode == "last-values"
        )
        handle = file.open("ab", buffering=0)
        handle.write(b"\n")  # the end of a line that a kill has cut
        followed.append((subscriber, handle))
    while True:
        for subscriber, handle in followed:
            events = subscriber.poll(0.02)
            if not events:
                continue
            assert all(isinstance(each, LogRecord) for each in events), events
            found = [
                [each.offset, (each.key or b"").decode(), each.value and each.value.decode()]
                for each in events
                if isinstance(each, LogRecord)
            ]
            line = {"found": found, "at": subscriber.positions}
            handle.write(json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
