"""Serves the description of topics' routes: ``/openapi.json``, and a page made of it at ``/docs``.

``openapi.json`` beside this module is the description. The page needs no script and nothing from
another server. Must not know: how a route is served. Source: OpenAPI Specification 3.1.0.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from tidemill import __version__

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
h2{border-top:1px solid #ccc;padding-top:1rem}code,pre{font:14px/1.4 ui-monospace,monospace}
pre{background:#f4f4f4;padding:.6rem;overflow:auto}td,th{text-align:left;vertical-align:top;
padding:.2rem .8rem .2rem 0}b{color:#067}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}pre{background:#262626}}
"""


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    text = resources.files("tidemill.gateway").joinpath("openapi.json").read_bytes()
    found: dict[str, Any] = orjson.loads(text)
    found["info"]["version"] = __version__
    return found


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, path and description of each route."""
    for path, methods in document()["paths"].items():
        for method, about in methods.items():
            yield method.upper(), path, about


async def get_document(request: Request) -> Response:
    """Return the OpenAPI document."""
    return Response(orjson.dumps(document()), media_type="application/json")


async def get_page(request: Request) -> Response:
    """Return the documentation as a page."""
    headers = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return HTMLResponse(_page(str(request.base_url).rstrip("/")), headers=headers)


async def get_root(request: Request) -> Response:
    """Send a browser to the documentation."""
    return RedirectResponse("/docs")


def _page(url: str) -> str:
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>tidemill gateway</title>",
        "<meta name=viewport content='width=device-width'>",
        f"<style>{_STYLE}</style><h1>tidemill gateway {html.escape(__version__)}</h1>",
        "<p>Topics over HTTP. The same for programs: <a href=/openapi.json>/openapi.json</a>.</p>",
        f"<pre>{html.escape(_EXAMPLES.format(url=url))}</pre>",
    ]
    components = document()["components"]
    for method, path, about in operations():
        parts.append(f"<h2><b>{method}</b> <code>{html.escape(path)}</code></h2>")
        text = f"{about['summary']}. {about.get('description', '')}"
        parts.append(f"<p>{html.escape(text)}</p>")
        parameters = [
            components["parameters"][each["$ref"].rpartition("/")[2]] if "$ref" in each else each
            for each in about["parameters"]
        ]
        rows = [(each["name"], each["in"], each["description"]) for each in parameters]
        rows += [(kind, "body", "") for kind in about.get("requestBody", {}).get("content", ())]
        parts += _table(rows)
        answers = about["responses"].items()
        parts += _table([(code, "", each["description"]) for code, each in answers])
    parts.append("<h2>Schemas</h2>")
    shown = html.escape(json.dumps(components["schemas"], indent=2, ensure_ascii=False))
    return "".join([*parts, f"<pre>{shown}</pre></html>"])


_EXAMPLES = """\
curl {url}/topics/TOPIC -H 'content-type: application/json' -d '{{"key":"a","value":{{"n":1}}}}'
curl '{url}/topics/TOPIC/partitions/0?from=beginning&limit=10'
curl -N {url}/topics/TOPIC -H 'accept: text/event-stream'"""


def _table(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    cells = (
        f"<tr><td><code>{html.escape(name)}</code><td>{place}<td>{html.escape(about)}"
        for name, place, about in rows
    )
    return ["<table>", *cells, "</table>"] if rows else []
