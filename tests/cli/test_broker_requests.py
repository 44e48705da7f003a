"""The command line's own client: what it does when a broker does not answer as it should."""

from __future__ import annotations

import socket
import struct

import pytest

from tests.kafka_client.admin.test_requests import answering, versions
from tidemill.cli.broker_requests import requests_to
from tidemill.cli.client import Cluster
from tidemill.cli.output import CONFLICT, FAILURE, NOT_FOUND, exit_code
from tidemill.errors import TidemillError, UnreachableError
from tidemill.kafka_client.errors import RefusedError, RequestNotSupportedError
from tidemill.kafka_client.settings import Address


def ask_to_list(broker: Address) -> object:
    with requests_to(Cluster(str(broker))) as client:
        return client.ask(broker, 66, (0, 2), {})


@pytest.mark.parametrize(
    ("answers", "kind", "said"),
    [
        ([bytes(2)], UnreachableError, "Disconnected"),
        ([struct.pack(">ii", 1 << 30, 1)], UnreachableError, "1073741824 bytes"),
        ([struct.pack(">ii", -1, 1)], UnreachableError, "-1 bytes"),
        ([struct.pack(">iih", 6, 1, 0)], UnreachableError, "ends in the middle"),
        ([versions((66, 3, 9))], RequestNotSupportedError, "does not support ListTransactions"),
        ([versions((1, 0, 1))], RequestNotSupportedError, "does not support ListTransactions"),
        ([versions((66, 0, 9)), versions()], UnreachableError, "belongs to no request"),
    ],
    ids=["closed", "huge", "negative", "torn", "newer", "unknown", "another's"],
)
def test_an_invalid_response_is_an_error(
    answers: list[bytes], kind: type[TidemillError], said: str
) -> None:
    with answering(answers) as broker, pytest.raises(kind) as failed:
        ask_to_list(broker)
    assert said in str(failed.value)


def test_a_port_without_a_broker_is_unreachable() -> None:
    with socket.socket() as bound:  # bound but not listening
        bound.bind(("127.0.0.1", 0))
        broker = Address("127.0.0.1", bound.getsockname()[1])
        with pytest.raises(UnreachableError, match=f"no broker answers at {broker}"):
            ask_to_list(broker)


def test_what_a_broker_refuses_has_the_exit_code_of_our_own_error() -> None:
    cases = {105: NOT_FOUND, 69: NOT_FOUND, 3: NOT_FOUND, 48: CONFLICT, 51: CONFLICT, 68: CONFLICT}
    cases |= dict.fromkeys((90, 47, 6, 31, 58, 9999), FAILURE)
    for code, exit_ in cases.items():
        assert exit_code(RefusedError(code, "id x", "why")) == exit_, code


def test_where_no_address_of_the_flags_answers_the_error_names_them() -> None:
    with socket.socket() as bound:  # bound but not listening
        bound.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{bound.getsockname()[1]}"
        with (
            pytest.raises(UnreachableError, match=f"no broker answers at {servers}") as failed,
            requests_to(Cluster(servers)) as requests,
        ):
            requests.brokers()
    assert "--bootstrap-servers" in failed.value.hint
