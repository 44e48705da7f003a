"""Names of certificates, and Kafka's rules that make principals of them."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.errors import SettingsError
from tidemill.protocols.logins.certificates import PrincipalRules, distinguished_name
from tidemill.protocols.logins.contract import LoginFailedError

DUKE = "CN=Duke, OU=ServiceUsers, O=Org, C=US"
RULES = """RULE:^CN=(.*?), OU=ServiceUsers.*$/$1/L ,
  RULE:^CN=(.*?), OU=(.*?), O=(.*?), L=(.*?), ST=(.*?), C=(.*?)$/$1@$2/L
  , RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT"""


@pytest.mark.parametrize(
    ("name", "principal"),
    [  # those of Apache Kafka's SslPrincipalMapperTest
        (DUKE, "duke"),
        ("CN=duke, OU=SME, O=mycp, L=Fulton, ST=MD, C=US", "duke@sme"),
        ("cn=Duke,ou=JavaSoft,o=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_counts(name: str, principal: str) -> None:
    assert PrincipalRules(RULES).principal(name) == principal


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", DUKE, DUKE),
        (r"RULE:^CN=(\w+).*$/team-$1/", DUKE, "team-Duke"),
        (r"RULE:^CN=(\w+).*$/\$1/", DUKE, "$1"),
        (r"RULE:^(\w+)\/(\w+)$/$2\/$1/,DEFAULT", "a/b", "b/a"),
    ],
)
def test_replacements(rules: str, name: str, principal: str) -> None:
    assert PrincipalRules(rules).principal(name) == principal


@pytest.mark.parametrize("rules", ["RULE:^CN=(.*)$/$1/", "", "RULE:^.*Sun.*$//"])
def test_no_match_is_an_error(rules: str) -> None:
    with pytest.raises(LoginFailedError, match="no rule"):
        PrincipalRules(rules).principal("OU=Sun")


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAULT RULE",
        "DEFAULT,, DEFAULT",
        "RULE:",
        "RULE:^CN=(.*)$",
        "RULE:^CN=(.*)$/$1",
        "RULE:^CN=(.*)$/$1/LU",
        "RULE:^CN=(.*)$/$2/",
        "RULE:^CN=($/$1/",
        "RULE:^CN=(.*)$/$1/L,RULE:(",
    ],
)
def test_malformed_rules_are_refused(rules: str) -> None:
    with pytest.raises(SettingsError):
        PrincipalRules(rules)


def certificate(*parts: tuple[str, str]) -> dict[str, Any]:
    return {"subject": tuple((part,) for part in parts)}


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ([("countryName", "US"), ("organizationName", "Org"), ("commonName", "Duke")],
         "CN=Duke,O=Org,C=US"),
        ([("commonName", 'a,b+c"d\\e<f>g;h')], 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h'),
        ([("commonName", " a "), ("userId", "#1")], "UID=\\#1,CN=\\ a\\ "),
        ([("emailAddress", "a@b")], "1.2.840.113549.1.9.1=#1603614062"),
        ([("title", "a" * 200)], "2.5.4.12=#0c81c8" + "61" * 200),
        ([("title", "a" * 300)], "2.5.4.12=#0c82012c" + "61" * 300),
        ([("title", "a" * 70_000)], "2.5.4.12=#0c83011170" + "61" * 70_000),
        ([], ""),
    ],
)  # fmt: skip
def test_names_are_written_as_java_does(parts: list[tuple[str, str]], name: str) -> None:
    assert distinguished_name(certificate(*parts)) == name
    assert distinguished_name(None) == ""


def test_a_hostile_name_takes_no_time() -> None:
    rules = PrincipalRules("RULE:^CN=(.*?),OU=(.*?)$/$1/,DEFAULT")
    assert rules.principal("CN=" + "a" * 4000) == "CN=" + "a" * 4000
    with pytest.raises(LoginFailedError):
        rules.principal("CN=" + "a" * 5000)
