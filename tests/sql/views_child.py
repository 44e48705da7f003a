"""Keeps a view current until it is killed: ``views_child.py SERVERS FOLDER NAME QUERY``."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from tidemill.confluent.clients import Kafka
from tidemill.sql import feed
from tidemill.sql.views.definition import Definition
from tidemill.sql.views.store import Store

if __name__ == "__main__":
    servers, folder, name, query = sys.argv[1:]
    feed.BATCH = 50
    definition = Definition(name=name, query=query)
    with Store(Path(folder), definition, Kafka(servers), threading.Event()) as store:
        while True:
            if store.advance():
                print("batch", flush=True)
