"""A small server that keeps the documented rules of Elasticsearch for versions, bulks and aliases.

No Elasticsearch is to hand, so the tests show that a client follows the documentation: the format
of a bulk request, external versions of indexing and deleting, tombstones, aliases that are changed
in one request, and searches that see refreshed documents only.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

AUTHORIZATION = "ApiKey a-hidden-key"


class FakeElasticsearch:
    """The indexes of a server.

    Attributes:
        busy: answers that a bulk request gets instead of its own, in order: 429 for the whole, or
            the set of places of documents that are rejected.
        requests: methods and paths, in order.
    """

    def __init__(self) -> None:
        self.documents: dict[str, dict[str, tuple[int, Any]]] = {}
        self.visible: dict[str, dict[str, Any]] = {}
        self.aliases: dict[str, str] = {}
        self.settings: dict[str, Any] = {}
        self.busy: list[Any] = []
        self.requests: list[tuple[str, str]] = []
        self.url = ""

    def answer(self, method: str, path: str, kind: str, body: bytes) -> tuple[int, Any]:
        """Return the status and the content of the response."""
        self.requests.append((method, path))
        if found := re.fullmatch(r"/_alias/([^/]+)", path):
            index = self.aliases.get(found[1])
            missing = (404, {"error": f"alias [{found[1]}] missing", "status": 404})
            return missing if index is None else (200, {index: {"aliases": {found[1]: {}}}})
        if path == "/_aliases" and method == "POST":
            return self._change_aliases(json.loads(body)["actions"])
        found = re.fullmatch(r"/([^/_][^/]*)(?:/(_bulk|_refresh|_search))?", path)
        if found is None:
            return 400, {"error": {"reason": f"no handler for {path}"}}
        index, call = self.aliases.get(found[1], found[1]), found[2]
        if call is None:
            return self._index(method, found[1], body)
        if index not in self.documents:
            return 404, {"error": {"reason": f"no such index [{index}]"}}
        if call == "_bulk":
            return self._bulk(index, kind, body)
        if call == "_refresh":
            live = self.documents[index].items()
            self.visible[index] = {key: row for key, (_, row) in live if row is not None}
            return 200, {}
        return self._search(index, json.loads(body))

    def _index(self, method: str, name: str, body: bytes) -> tuple[int, Any]:
        exists = name in self.documents or name in self.aliases
        if method == "HEAD":
            return (200 if exists else 404), {}
        if method == "DELETE":
            if name not in self.documents:
                return 404, {"error": {"reason": "no such index"}}
            del self.documents[name]
            self.aliases = {a: i for a, i in self.aliases.items() if i != name}
            return 200, {}
        if exists or not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
            return 400, {"error": {"reason": f"index [{name}] already exists or is invalid"}}
        made = json.loads(body)
        self.documents[name], self.visible[name] = {}, {}
        self.settings[name] = made["settings"]
        self.aliases |= dict.fromkeys(made["aliases"], name)
        return 200, {}

    def _change_aliases(self, actions: list[dict[str, Any]]) -> tuple[int, Any]:
        for action in actions:
            for what, arguments in action.items():
                if what not in ("add", "remove_index"):
                    return 400, {"error": {"reason": f"unknown action {what}"}}
                if arguments["index"] not in self.documents:
                    return 404, {"error": {"reason": "no such index"}}
        for action in actions:
            if "add" in action:
                self.aliases[action["add"]["alias"]] = action["add"]["index"]
        for action in actions:
            if "remove_index" in action:
                del self.documents[action["remove_index"]["index"]]
        return 200, {"acknowledged": True}

    def _bulk(self, index: str, kind: str, body: bytes) -> tuple[int, Any]:
        if kind != "application/x-ndjson" or not body.endswith(b"\n"):
            return 400, {"error": {"reason": "The bulk request must be terminated by a newline"}}
        busy = self.busy.pop(0) if self.busy else set()
        if busy == 429:
            return 429, {"error": {"reason": "rejected execution"}}
        lines = iter(body.splitlines())
        items: list[Any] = []
        for line in lines:
            ((action, how),) = json.loads(line).items()
            row = json.loads(next(lines)) if action == "index" else None
            if len(items) in busy:
                result = {"status": 429, "error": {"reason": "rejected execution"}}
            else:
                result = self._write(index, action, how, row)
            items.append({action: {"_id": how["_id"], **result}})
        return 200, {"errors": any(i[a]["status"] >= 300 for i in items for a in i), "items": items}

    def _write(self, index: str, action: str, how: dict[str, Any], row: Any) -> dict[str, Any]:
        if unknown := how.keys() - {"_id", "version", "version_type"}:
            return {"status": 400, "error": {"reason": f"Unknown parameter {unknown}"}}
        stored = self.documents[index].get(how["_id"])
        version, kind = how.get("version"), how.get("version_type", "internal")
        if kind not in ("internal", "external", "external_gte"):
            return {"status": 400, "error": {"reason": f"No version type match [{kind}]"}}
        if (kind == "internal") != (version is None) or not 0 <= (version or 0) < 1 << 63:
            return {"status": 400, "error": {"reason": "illegal version value"}}
        if version is not None and stored is not None:
            fits = version >= stored[0] if kind == "external_gte" else version > stored[0]
            if not fits:
                reason = f"version conflict, current version [{stored[0]}] is higher"
                return {"status": 409, "error": {"reason": reason}}
        made = version if version is not None else (1 if stored is None else stored[0] + 1)
        if row is not None and any(str(v) == "refused" for v in row.values()):
            return {"status": 400, "error": {"reason": "failed to parse field [text]"}}
        self.documents[index][how["_id"]] = (made, row)
        was_there = stored is not None and stored[1] is not None
        return {"status": 200 if action == "index" or was_there else 404}

    def _search(self, index: str, query: dict[str, Any]) -> tuple[int, Any]:
        ((name, _),) = query["sort"][0].items()
        rows = sorted(self.visible[index].values(), key=lambda row: row[name], reverse=True)
        hits = [{"_source": {name: row[name]}} for row in rows[: query["size"]]]
        return 200, {"hits": {"hits": hits}}


@contextmanager
def fake_elasticsearch() -> Iterator[FakeElasticsearch]:
    """Run a server on a free port."""
    server = FakeElasticsearch()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kind = self.headers.get("Content-Type") or ""
            with lock:
                if self.headers.get("Authorization") == AUTHORIZATION:
                    status, content = server.answer(self.command, self.path, kind, body)
                else:
                    status, content = 401, {"error": {"reason": "missing authentication"}}
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Write nothing."""

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{listener.server_port}"
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
