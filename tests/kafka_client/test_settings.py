"""librdkafka's settings become those of our connections, once for all users of the client."""

from __future__ import annotations

import ssl

import pytest

from tidemill.kafka_client.errors import UnsupportedSettingError
from tidemill.kafka_client.settings import Address, connection_settings
from tidemill.kafka_client.tls import make_context

SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "u", "sasl.password": "secret"}
TLS = {"security.protocol": "SSL"}


def test_settings_of_something_else_are_left_out() -> None:
    given = {"bootstrap.servers": "a,[::1]:7", "fetch.min.bytes": "5", "log_level": 0}
    found = connection_settings({**given, "sasl.mechanism": "GSSAPI", "ssl.engine.id": "x"}, "me")
    assert found.servers == (Address("a", 9092), Address("::1", 7))
    assert (found.client_id, found.with_tls, found.with_sasl) == ("me", False, False)
    assert str(found.servers[1]) == "[::1]:7"


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "scram-sha-256", "SCRAM-SHA-512"])
def test_mechanisms_of_sasl(name: str, mechanism: str) -> None:
    found = connection_settings({**SASL, name: mechanism, "client.id": "own"}, "me")
    assert (found.mechanism, found.username, found.client_id) == (mechanism.upper(), "u", "own")
    assert "secret" not in repr(found)


def _token(config: str) -> tuple[str, float]:
    return "secret token", 0.0


BEARER = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "oauthbearer"}


def test_a_function_for_tokens() -> None:
    found = connection_settings({**BEARER, "oauth_cb": _token}, "me")
    assert (found.mechanism, found.tokens) == ("OAUTHBEARER", _token)
    assert "_token" not in repr(found)
    without = connection_settings({"oauth_cb": _token}, "me")
    assert without.tokens is None


@pytest.mark.parametrize(
    ("given", "said", "hint"),
    [
        ({**BEARER, "oauth_cb": "_token"}, "oauth_cb", ""),
        ({**SASL, "sasl.mechanism": "GSSAPI"}, "GSSAPI", "SCRAM-SHA-256"),
        ({**SASL, "sasl.mechanism": "OAUTHBEARER"}, "OAUTHBEARER", "SCRAM-SHA-256"),
        (SASL, "GSSAPI, its default", "SCRAM-SHA-256"),
        ({**TLS, "ssl.keystore.location": "x"}, "ssl.keystore.location", "ssl.ca.location"),
        ({**TLS, "ssl.key.location": "x"}, "do not fit together", ""),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "do not fit together", ""),
        ({"security.protocol": "tls"}, "security.protocol: tls", ""),
    ],
)
def test_what_only_librdkafka_knows_is_refused(given: dict[str, str], said: str, hint: str) -> None:
    with pytest.raises(UnsupportedSettingError, match=said) as refused:
        connection_settings(given, "me")
    assert hint in refused.value.hint
    assert "secret" not in str(refused.value)


def test_tls_is_set_up_as_librdkafka_would() -> None:
    context = make_context(connection_settings(TLS, ""))
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    anyone = make_context(
        connection_settings({**TLS, "enable.ssl.certificate.verification": "false"}, "")
    )
    assert (anyone.check_hostname, anyone.verify_mode) == (False, ssl.CERT_NONE)
    any_name = make_context(
        connection_settings({**TLS, "ssl.endpoint.identification.algorithm": "none"}, "")
    )
    assert (any_name.check_hostname, any_name.verify_mode) == (False, ssl.CERT_REQUIRED)
    suite = "ECDHE-RSA-AES128-GCM-SHA256"
    only = make_context(connection_settings({**TLS, "ssl.cipher.suites": suite}, ""))
    older = [each["name"] for each in only.get_ciphers() if each["protocol"] != "TLSv1.3"]
    assert older == [suite]
