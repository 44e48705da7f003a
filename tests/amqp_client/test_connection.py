"""The client's address."""

from __future__ import annotations

import pytest

from tidemill.amqp_client.connection import AmqpClient
from tidemill.amqp_client.errors import AmqpUrlError


@pytest.mark.parametrize(
    "url",
    [
        "amqp://shop:pass/word@127.0.0.1:5672/",
        "amqp://shop:pass@word@127.0.0.1:port/",
        "amqp://shop:password@127.0.0.1:99999/",
        "amqp://shop:password@[127.0.0.1/",
        "http://shop:password@127.0.0.1/",
    ],
)
def test_an_invalid_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(AmqpUrlError) as caught:
        AmqpClient(url)
    assert "invalid AMQP URL" in str(caught.value)
    assert "pass" not in str(caught.value).replace("a password", "")
    assert caught.value.__cause__ is None
