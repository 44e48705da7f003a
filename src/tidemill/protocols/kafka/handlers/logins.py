"""SaslHandshake and SaslAuthenticate: a login, also again on an open connection (KIP-368)."""

from __future__ import annotations

from typing import Any

from tidemill.kafka_codec.declared import SASL_AUTHENTICATE, SASL_HANDSHAKE
from tidemill.protocols.kafka.apis import RequestContext, Tree, handles
from tidemill.protocols.kafka.error_codes import NONE, error_code
from tidemill.protocols.kafka.sasl import Sasl
from tidemill.protocols.logins.contract import (
    LoginFailedError,
    LoginStateError,
    UnknownMechanismError,
)


@handles(SASL_HANDSHAKE)
def handle_handshake(ctx: RequestContext, request: Any) -> Tree:
    """Begin a login by the mechanism that the client names."""
    names = list(ctx.connection.sasl.mechanisms) if ctx.connection.sasl is not None else []
    try:
        sasl = _login(ctx)
        if sasl.proved is None or ctx.api_version > 0:
            sasl.begin(request.mechanism)
            return {"error_code": NONE, "mechanisms": names}
        # Messages without a header look like requests.
        error: Exception = LoginStateError("a login is renewed with version 1")
    except (LoginStateError, UnknownMechanismError) as refusal:
        error = refusal
    return {"error_code": error_code(error), "mechanisms": names}


@handles(SASL_AUTHENTICATE)
async def handle_authenticate(ctx: RequestContext, request: Any) -> Tree:
    """Pass a message of the mechanism on, and answer with what it answers."""
    try:
        sasl = _login(ctx)
        answer = await sasl.step(bytes(request.auth_bytes))
    except LoginFailedError as error:
        return _refused(error, _login(ctx).refusal())
    except LoginStateError as error:
        return _refused(error, str(error))
    lifetime = None if sasl.is_begun else sasl.lifetime_s
    return {
        "error_code": NONE,
        "auth_bytes": answer,
        "session_lifetime": 0 if lifetime is None else max(1, int(lifetime * 1000)),
    }


def _login(ctx: RequestContext) -> Sasl:
    if ctx.connection.sasl is None:
        raise LoginStateError("this listener needs no login")
    return ctx.connection.sasl


def _refused(error: Exception, text: str) -> Tree:
    return {"error_code": error_code(error), "error_message": text}
