"""The document and the page say what the routes do."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from tidemill.gateway.app import ROUTES
from tidemill.gateway.openapi import document, operations

OWN = {"/", "/docs", "/openapi.json"}
OPERATIONS = [(method, path) for method, path, _ in operations()]


def parameters(document: dict[str, Any], operation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parameters of an operation, with those that it refers to."""
    shared = document["components"]["parameters"]
    given = operation["parameters"]
    return [shared[each["$ref"].rpartition("/")[2]] if "$ref" in each else each for each in given]


def test_the_document_has_the_routes_and_no_others() -> None:
    routes = {
        (method, route.path)
        for route in ROUTES
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
        if route.path not in OWN
    }
    assert routes == set(OPERATIONS)


def test_the_paths_and_references_of_the_document_exist(http: httpx.Client) -> None:
    found = http.get("/openapi.json").json()
    assert found["openapi"] == "3.1.0"
    for path, methods in found["paths"].items():
        for operation in methods.values():
            given = parameters(found, operation)
            in_path = {each["name"] for each in given if each["in"] == "path"}
            assert in_path == set(re.findall(r"\{(\w+)\}", path))
            assert operation["responses"]
    for kind, name in re.findall(r'"#/components/(\w+)/(\w+)"', http.get("/openapi.json").text):
        assert name in found["components"][kind]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_each_parameter_of_a_url_is_known_to_its_route(
    http: httpx.Client, topic: str, method: str, path: str
) -> None:
    url = path.format(topic=topic, partition="0", group="missing")
    operation = document()["paths"][path][method.lower()]
    for each in parameters(document(), operation):
        if each["in"] != "query" or each["name"] in ("from", "last_event_id", "answer"):
            continue  # those of a stream have tests of their own
        value = {"header": "a:1", "internal": "true", "timestamp": "1"}.get(each["name"], "1")
        headers = {"content-type": "text/plain"} if method == "POST" else {}
        answer = http.request(method, url, params={each["name"]: value}, headers=headers)
        assert answer.status_code == 200, (each["name"], answer.text)
        for limit, step in (("minimum", -1), ("maximum", 1)):
            if limit in each["schema"]:
                beyond = {each["name"]: each["schema"][limit] + step}
                answer = http.request(method, url, params=beyond, headers=headers)
                assert answer.status_code == 400, (beyond, answer.text)


def test_the_page_needs_nothing_from_elsewhere(http: httpx.Client) -> None:
    answer = http.get("/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.findall(r"<script|(?:src|href)=['\"]?https?:", answer.text)
    for method, path in OPERATIONS:
        assert f"<b>{method}</b> <code>{path}</code>" in answer.text
