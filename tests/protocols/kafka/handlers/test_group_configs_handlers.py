"""Configs of groups over the wire: what an admin sets is what members get, after a restart too."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.protocols.kafka.wire import Client
from tests.support.faultyfs import FaultyFileSystem
from tidemill.engine.api import NewTopic
from tidemill.engine.engine import Engine
from tidemill.protocols.kafka.server import KafkaServer
from tidemill.protocols.kafka.settings import KafkaListener
from tidemill.settings import Settings

DESCRIBE_CONFIGS, ALTER, HEARTBEAT, LIST_RESOURCES = 32, 44, 68, 74
GROUP = 32
NAME = "consumer.heartbeat.interval.ms"


async def interval(client: Client) -> int:
    answer = await client.call(
        HEARTBEAT,
        1,
        {
            "group_id": "g",
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout": 1000,
            "subscribed_topic_names": ["t"],
            "topic_partitions": [],
        },
    )
    assert answer["error_code"] == 0, answer
    return int(answer["heartbeat_interval"])


async def alter(client: Client, value: str) -> dict[str, Any]:
    config = {"name": NAME, "config_operation": 0, "value": value}
    answer = await client.call(
        ALTER,
        1,
        {
            "resources": [
                {"resource_type": GROUP, "resource_name": "g", "configs": [config]},
            ],
            "validate_only": False,
        },
    )
    (response,) = answer["responses"]
    return dict(response)


def test_a_group_config_reaches_the_members_and_survives_a_restart() -> None:
    async def body() -> None:
        fs = FaultyFileSystem()
        for started in range(2):
            values = {"data_dir": "/data", "sections": (KafkaListener(port=0),)}
            settings = Settings.model_validate(values)
            engine = Engine(settings, fs=fs)
            await engine.start()
            server = KafkaServer(engine, settings)
            client = await Client.connect(await server.start())
            if not started:
                await engine.topics.create([NewTopic("t", 1)])
                assert await interval(client) == 5000
                refused = await alter(client, "45000")
                assert refused["error_code"] == 40
                assert "must be below" in refused["error_message"]
                assert (await alter(client, "700"))["error_code"] == 0
            assert await interval(client) == 700
            asked = {
                "resources": [{"resource_type": GROUP, "resource_name": "g"}],
                "include_synonyms": True,
                "include_documentation": False,
            }
            (found,) = (await client.call(DESCRIBE_CONFIGS, 4, asked))["results"]
            entries = {each["name"]: each for each in found["configs"]}
            assert (entries[NAME]["value"], entries[NAME]["config_source"]) == ("700", 8)
            assert [each["source"] for each in entries[NAME]["synonyms"]] == [8, 5]
            listed = await client.call(LIST_RESOURCES, 1, {"resource_types": [GROUP]})
            assert listed["config_resources"] == [{"resource_name": "g", "resource_type": GROUP}]
            client.close()
            await server.stop(grace_seconds=1)
            await engine.stop()

    asyncio.run(asyncio.wait_for(body(), 600))
