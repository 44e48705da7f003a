"""Servers that the gateway is compared with: ``python -m bench.http.rest KIND PORT SERVERS``.

``bare`` is Starlette that reads a body and stores nothing. ``rest`` has the shape of the Confluent
REST proxy, made with confluent-kafka: it parses a list of records, produces each of them with
``acks=all``, and answers with their places. It has no limits, checks and retries.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import orjson
import uvicorn
from confluent_kafka import Producer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


async def _bare(request: Request) -> Response:
    await request.body()
    return Response(b'{"offsets":[]}', media_type="application/json")


class _Rest:
    def __init__(self, servers: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
            }
        )
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._producer.poll(0.1)

    async def post(self, request: Request) -> Response:
        loop = asyncio.get_running_loop()
        topic = request.path_params["topic"]
        waiting = []
        for record in orjson.loads(await request.body())["records"]:
            done: asyncio.Future[Any] = loop.create_future()

            def delivered(error: Any, message: Any, done: asyncio.Future[Any] = done) -> None:
                place = {"partition": message.partition(), "offset": message.offset()}
                loop.call_soon_threadsafe(done.set_result, place)

            self._producer.produce(topic, record["value"], record["key"], on_delivery=delivered)
            waiting.append(done)
        places = [await each for each in waiting]
        return Response(orjson.dumps({"offsets": places}), media_type="application/json")


if __name__ == "__main__":
    kind, port, servers = sys.argv[1:]
    endpoint = _bare if kind == "bare" else _Rest(servers).post
    app = Starlette(routes=[Route("/topics/{topic}", endpoint, methods=["POST"])])
    uvicorn.run(
        app, port=int(port), http="httptools", loop="uvloop", access_log=False, log_level="error"
    )
