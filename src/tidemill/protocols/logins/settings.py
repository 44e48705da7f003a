"""The sections ``[logins]`` and ``[oauth]`` of the settings. Must not know a server."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from tidemill.settings.section import INT, Section


class LoginSettings(Section):
    """Logins of clients, on listeners with `mechanisms`."""

    key = "logins"

    users_file: Path | None = Field(
        None,
        description="File with a user in each line: name, colon, password. These users are there "
        "besides those that `tidemill user` makes. Only the broker's user can be able to read it.",
    )
    max_session_seconds: int = Field(
        0,
        ge=0,
        le=INT,
        description="How long a login holds, in seconds; then a client has to log in again on the "
        "open connection, or the broker closes it at the next request "
        "(connections.max.reauth.ms). 0: no limit.",
    )
    failed_delay_ms: int = Field(
        100,
        ge=0,
        le=60_000,
        description="How long the answer to a failed login is delayed, in milliseconds "
        "(connection.failed.authentication.delay.ms).",
    )


class OauthSettings(Section):
    """Tokens of the mechanism OAUTHBEARER: who signs them, and what they must say (KIP-768)."""

    key = "oauth"

    jwks: str = Field(
        "",
        description="File or https URL with the public keys that sign tokens, a JSON Web Key Set "
        "(sasl.oauthbearer.jwks.endpoint.url).",
    )
    issuer: str = Field(
        "",
        description="The issuer that tokens must have; empty: any "
        "(sasl.oauthbearer.expected.issuer).",
    )
    audience: str = Field(
        "",
        description="Audiences, with commas, of which tokens must have one; empty: any "
        "(sasl.oauthbearer.expected.audience).",
    )
    clock_skew_seconds: int = Field(
        30,
        ge=0,
        le=3600,
        description="How far the clocks of the issuer and of the broker can differ, in seconds "
        "(sasl.oauthbearer.clock.skew.seconds).",
    )
    user_claim: str = Field(
        "sub",
        min_length=1,
        description="The claim with the name of the user (sasl.oauthbearer.sub.claim.name).",
    )
    scope_claim: str = Field(
        "scope",
        min_length=1,
        description="The claim with the scopes (sasl.oauthbearer.scope.claim.name).",
    )
    scope: str = Field(
        "", description="Scopes, with spaces, that tokens must have; empty: none is needed."
    )
    refresh_seconds: int = Field(
        3600,
        ge=1,
        le=INT,
        description="How often the keys are read again, in seconds "
        "(sasl.oauthbearer.jwks.endpoint.refresh.ms). Before that, an unknown key makes the broker "
        "read them, at most every ten seconds.",
    )
