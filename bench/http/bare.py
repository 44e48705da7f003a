"""Post records of a topic with aiohttp and nothing else: the loop that a program would write.

``python -m bench.http.bare SERVERS TOPIC URL CONNECTIONS`` consumes the topic from its beginning
and posts each value, unsigned, without retries and without a committed position. It ends after the
last record, and prints the posts per second and the processor time for each, in microseconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import aiohttp
import uvloop
from confluent_kafka import Consumer, TopicPartition


async def _post(servers: str, topic: str, url: str, connections: int) -> None:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bare", "log_level": 0})
    place = TopicPartition(topic, 0, 0)
    _, end = consumer.get_watermark_offsets(place)
    consumer.assign([place])
    values: list[bytes] = []
    while len(values) < end:
        values += [each.value() or b"" for each in consumer.consume(1000, 0.1)]
    consumer.close()
    left = iter(values)

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections),
        headers={"Content-Type": "application/json"},
    ) as session:

        async def work() -> None:
            for value in left:
                async with session.post(url, data=value) as answer:
                    await answer.read()

        started, spent = time.monotonic(), time.process_time()
        await asyncio.gather(*(work() for _ in range(connections)))
        rate = len(values) / (time.monotonic() - started)
        cpu_us = (time.process_time() - spent) / len(values) * 1e6
        print(json.dumps([rate, cpu_us]), flush=True)


if __name__ == "__main__":
    uvloop.run(_post(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
