"""OAUTHBEARER (RFC 7628): a signed token instead of a password. Without I/O of its own.

``tokens`` checks the token.
"""

from __future__ import annotations

import json
import re

from tidemill.protocols.logins.contract import LoginFailedError, Proved, decoded
from tidemill.protocols.logins.tokens import Tokens

_FIRST = re.compile(r"n,(?:a=(?P<acting>[^,]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[^\x01]*\x01)*)\x01")
_BEARER = re.compile(r"(?i:bearer) +(?P<token>[A-Za-z0-9._~+/=-]+) *")


class OAuthBearer:
    """One login. Implements ``Exchange``.

    A token that is refused gets the answer of RFC 7628, which the client has to confirm.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._refused: LoginFailedError | None = None
        self.proved: Proved | None = None

    async def step(self, message: bytes) -> bytes:
        """Take the token, or the confirmation of a refusal."""
        if self._refused is not None:
            raise self._refused
        found = _FIRST.fullmatch(decoded(message))
        pairs = found["pairs"].split("\1") if found else []
        values = [each[5:] for each in pairs if each.startswith("auth=")]
        bearer = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
        if found is None or bearer is None:
            raise LoginFailedError("the message of OAUTHBEARER is malformed")
        try:
            acting = (found["acting"] or "").replace("=2C", ",").replace("=3D", "=")
            self.proved = await self._tokens.check(bearer["token"], acting)
        except LoginFailedError as error:
            self._refused = error
            answer = {"status": "invalid_token"}
            if self._tokens.scope:
                answer["scope"] = self._tokens.scope
            return json.dumps(answer).encode()
        return b""
