"""The messages that are written out for the client are those of kio."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidemill.kafka_codec.declared import DECLARED, FETCH, PRODUCE, find, is_flexible
from tidemill.kafka_codec.fields import Field, Structure
from tidemill.kafka_codec.primitives import FIXED_FORMATS
from tidemill.kafka_codec.schema import known_versions, request_type, structure


def shape(found: Structure) -> object:
    """What decides the bytes of a structure."""
    return found.flexible, [
        (each.name, kind(each), each.is_array, each.nullable, each.tag) for each in found.fields
    ]


def kind(field: Field) -> object:
    if field.structure is not None:
        return shape(field.structure)
    return FIXED_FORMATS.get(field.kafka_type, field.kafka_type)


@pytest.mark.parametrize("api", DECLARED)
def test_declared_messages_have_the_fields_of_kio(api: int) -> None:
    for version in DECLARED[api]:
        for which in ("request", "response"):
            expected = structure(which, api, version)
            found = find("request" if which == "request" else "response", api, version)
            assert (found.name, shape(found)) == (expected.name, shape(expected))


def test_other_messages_are_those_of_kio() -> None:
    assert find("request", 3, 12) is structure("request", 3, 12)


@pytest.mark.parametrize("api", [PRODUCE, FETCH, *DECLARED])
def test_versions_are_flexible_as_in_kio(api: int) -> None:
    for version in known_versions(api):
        assert is_flexible(api, version) == request_type(api, version).__flexible__


def test_a_client_does_not_import_kio() -> None:
    program = """
import sys
import tidemill.kafka_client.producing.pipeline, tidemill.kafka_client.brokers
from tidemill.kafka_codec import declared, messages
for api, versions in declared.DECLARED.items():
    messages.encode_request(api, versions[-1], {})
    messages._reader("response", api, versions[-1])
assert not declared.is_flexible(declared.FETCH, 10)
print([name for name in sys.modules if name.partition(".")[0] == "kio"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
