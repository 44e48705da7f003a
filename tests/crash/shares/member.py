"""A member of a share group that tells what it gets. It is killed at any moment.

Run as ``python -m tests.crash.shares.member BOOTSTRAP GROUP TOPIC MODE``. Modes: ``work`` accepts
what it gets, and sometimes releases it; ``hold`` accepts numbers that are even and keeps the
others.

Each line on stdout is written before the next thing happens. ``D n count``: number n is delivered
for the count-th time; ``S n``: it is about to be accepted; ``A n``: the broker has answered that;
``H``: the member does nothing any more.
"""

from __future__ import annotations

import os
import random
import sys
import time

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer

RELEASED = 0.05
"""How likely a record is released."""

Accepted = dict[tuple[str, int], list[int]]
"""Numbers by topic and partition."""


def say(*fields: object) -> None:
    os.write(1, (" ".join(map(str, fields)) + "\n").encode())


def number_of(value: bytes) -> int:
    """Return the number in a value of ``tests.crash.load``: ``name:number:filler``."""
    return int(value.split(b":")[1])


class Member:
    """One share consumer."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._dice = random.Random(os.getpid())
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "share.acknowledgement.mode": "explicit",
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic])

    def poll(self) -> list[Message]:
        """Return messages."""
        try:
            return [each for each in self._consumer.poll(timeout=0.2) if each.error() is None]
        except KafkaException as error:  # the broker is gone for a moment
            print(error, file=sys.stderr)
            return []

    def work(self, messages: list[Message]) -> None:
        """Accept what came, and release some of it."""
        accepted: Accepted = {}
        for message in messages:
            if self._dice.random() < RELEASED:
                self._note(message)
                self._consumer.acknowledge(message, AcknowledgeType.RELEASE)
            else:
                self._accept(message, accepted)
        self._commit(accepted)

    def hold(self, messages: list[Message]) -> None:
        """Accept what is even, and keep the others. If nothing was accepted in time, go on."""
        accepted: Accepted = {}
        kept = []
        for message in messages:
            if number_of(message.value() or b"") % 2 == 0:
                self._accept(message, accepted)
            else:
                self._note(message)
                kept.append(message)
        if self._commit(accepted) and kept:
            say("H")
            while True:
                time.sleep(3600)
        for message in kept:
            self._consumer.acknowledge(message, AcknowledgeType.RELEASE)

    def _note(self, message: Message) -> int:
        number = number_of(message.value() or b"")
        say("D", number, message.delivery_count())
        return number

    def _accept(self, message: Message, accepted: Accepted) -> None:
        number = self._note(message)
        say("S", number)
        self._consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        place = str(message.topic()), int(message.partition() or 0)
        accepted.setdefault(place, []).append(number)

    def _commit(self, accepted: Accepted) -> bool:
        """Send acknowledgements, and tell which were answered without an error, if any."""
        try:
            answers = self._consumer.commit_sync()
        except KafkaException as error:
            print(error, file=sys.stderr)
            return False
        answered = []
        for place, error_of in answers.items():
            if error_of is None:
                answered += accepted.get((place.topic, place.partition), [])
        for number in answered:
            say("A", number)
        return bool(answered)


def main(bootstrap: str, group: str, topic: str, mode: str) -> None:
    member = Member(bootstrap, group, topic)
    act = member.work if mode == "work" else member.hold
    while True:
        messages = member.poll()
        if messages:
            act(messages)


if __name__ == "__main__":
    main(*sys.argv[1:5])
