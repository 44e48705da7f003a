"""A client of AMQP that continues while its broker is killed, and is killed itself.

``python -m tests.crash.queues.client WHAT URL FIRST_NUMBER RANDOM_SEED``. WHAT is one of ``WORK``.
Each line on stdout is written before the next thing happens; times are those of the machine's
monotonic clock:

    C begun opened       connected: when that began, and when the channel was open
    P n                  message n is confirmed
    D n 0|1 time         n was delivered, redelivered or not
    A n time             the commit with the acknowledgement of n was answered

A publisher never repeats a number. What it has no confirm for is given up.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Iterator

import aio_pika
import aiormq.exceptions
import amqp
import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

JOBS, DEAD = "jobs", "dead"
POISON, HESITANT = 7, 11
"""Multiples of the first are always rejected. Multiples of the second are returned once."""
PAD = bytes(1500)
AGAIN_S = 0.02
"""Pause before the next attempt to connect."""
PIKA_ERRORS = (pika.exceptions.AMQPError, OSError)
AMQP_ERRORS = (amqp.exceptions.AMQPError, OSError)
AIO_ERRORS = (aiormq.exceptions.AMQPError, OSError, RuntimeError, asyncio.TimeoutError)


def note(*fields: object) -> None:
    """Write a line. It survives a kill of this process."""
    os.write(1, (" ".join(map(str, fields)) + "\n").encode())


def body_of(number: int) -> bytes:
    return b"%012d" % number + PAD


def number_of(body: bytes) -> int:
    return int(body[:12])


# --- publishers -----------------------------------------------------------------------------------


def publish_with_pika(url: str, numbers: Iterator[int], dice: random.Random) -> None:
    """Publish one message after the other; each waits for its confirm."""
    while True:
        try:
            channel = open_pika(url)
            channel.confirm_delivery()
            for number in numbers:
                channel.basic_publish("", JOBS, body_of(number), mandatory=True)
                note("P", number)
                time.sleep(dice.random() * 0.004)
        except PIKA_ERRORS:
            time.sleep(AGAIN_S)


def publish_with_aio_pika(url: str, numbers: Iterator[int], dice: random.Random) -> None:
    """Publish many messages at once, to an exchange."""

    async def publish_all() -> None:
        while True:
            connection = None
            try:
                begun = time.monotonic()
                connection = await asyncio.wait_for(aio_pika.connect(url), 30)
                channel = await connection.channel(publisher_confirms=True)
                exchange = await channel.get_exchange("work")
                note("C", begun, time.monotonic())
                while True:
                    batch = list(itertools.islice(numbers, dice.randint(1, 40)))
                    messages = [aio_pika.Message(body_of(number)) for number in batch]
                    await asyncio.gather(*(confirmed(exchange, each) for each in messages))
                    await asyncio.sleep(0.1 * dice.random())
            except AIO_ERRORS:
                if connection is not None:
                    await asyncio.gather(connection.close(), return_exceptions=True)
                await asyncio.sleep(AGAIN_S)

    async def confirmed(exchange: aio_pika.abc.AbstractExchange, message: aio_pika.Message) -> None:
        try:
            await exchange.publish(message, JOBS, mandatory=True, timeout=30)
        except asyncio.CancelledError:  # so aiormq ends what waits on a lost connection
            raise ConnectionError from None
        note("P", number_of(message.body))

    asyncio.run(publish_all())


# --- consumers ------------------------------------------------------------------------------------


def open_pika(url: str) -> BlockingChannel:
    """Connect, and note when."""
    begun = time.monotonic()
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    note("C", begun, time.monotonic())
    return channel


def consume_in_transactions(url: str, _: Iterator[int], dice: random.Random) -> None:
    """Consume with pika. A commit is answered when the acknowledgements are on disk."""
    while True:
        try:
            channel = open_pika(url)
            channel.tx_select()
            channel.basic_qos(prefetch_count=dice.choice((1, 20, 100)))
            done: list[int] = []
            for method, _properties, body in channel.consume(JOBS, inactivity_timeout=0.05):
                if method is not None and body is not None:
                    number = number_of(body)
                    note("D", number, int(method.redelivered), time.monotonic())
                    if number % POISON == 0:
                        channel.basic_reject(method.delivery_tag, requeue=False)
                    elif number % HESITANT == 0 and not method.redelivered:
                        channel.basic_nack(method.delivery_tag, requeue=True)
                    else:
                        channel.basic_ack(method.delivery_tag)
                        done.append(number)
                if method is None or dice.random() < 0.2:
                    channel.tx_commit()
                    for number in done:
                        note("A", number, time.monotonic())
                    done.clear()
        except PIKA_ERRORS:
            time.sleep(AGAIN_S)


def consume_with_amqp(url: str, _: Iterator[int], dice: random.Random) -> None:
    """Consume with py-amqp. It never knows whether an acknowledgement is on disk."""
    parameters = pika.URLParameters(url)
    address = f"{parameters.host}:{parameters.port}"
    while True:
        try:
            begun = time.monotonic()
            with amqp.Connection(address, connect_timeout=30) as connection:
                channel = connection.channel()
                note("C", begun, time.monotonic())
                channel.basic_qos(0, dice.choice((1, 5, 50)), False)
                channel.basic_consume(JOBS, callback=settle_with_amqp)
                while True:
                    connection.drain_events()
        except AMQP_ERRORS:
            time.sleep(AGAIN_S)


def settle_with_amqp(message: amqp.Message) -> None:
    """Note a delivery, and settle it."""
    number = number_of(message.body)
    redelivered = message.delivery_info["redelivered"]
    note("D", number, int(redelivered), time.monotonic())
    if number % POISON == 0:
        message.channel.basic_reject(message.delivery_tag, requeue=False)
    elif number % HESITANT == 0 and not redelivered:
        message.channel.basic_reject(message.delivery_tag, requeue=True)
    else:
        message.channel.basic_ack(message.delivery_tag)


WORK: dict[str, Callable[[str, Iterator[int], random.Random], None]] = {
    "publish-pika": publish_with_pika,
    "publish-aio-pika": publish_with_aio_pika,
    "consume-pika": consume_in_transactions,
    "consume-amqp": consume_with_amqp,
}


if __name__ == "__main__":
    what, url, first, seed = sys.argv[1:]
    WORK[what](url, itertools.count(int(first)), random.Random(int(seed)))
