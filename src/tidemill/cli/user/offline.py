"""Changes super users in a data folder that no broker uses. Must not print."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tidemill.cli.output import NotFoundError
from tidemill.cli.server.admins import read_admins
from tidemill.errors import TidemillError
from tidemill.settings import Settings
from tidemill.state.security.types import ScramMechanism

if TYPE_CHECKING:
    from tidemill.engine.engine import Engine


def create_user(
    settings: Settings,
    user: str,
    password: str,
    mechanisms: Sequence[ScramMechanism],
    iterations: int,
    *,
    is_admin: bool,
) -> None:
    """Create a user in the data folder of the settings, or change its password.

    Raises:
        DataDirLockedError: a broker uses the folder.
        TidemillError: the folder can't be opened, or the user is invalid.
    """

    async def create() -> None:
        async with _engine(settings) as engine:
            await engine.user_admin.set_password(user, password, mechanisms, iterations)
            if is_admin:
                await engine.user_admin.set_admin(user, is_admin=True)

    asyncio.run(create())


def revoke_admin(
    settings: Settings, user: str, may_revoke: Callable[[frozenset[str], bool], bool]
) -> None:
    """Make a super user of the data folder an ordinary user.

    Args:
        may_revoke: is asked before. It gets the principals that then are super users, those of the
            settings too, and whether one of them can log in as far as is known.

    Raises:
        DataDirLockedError: a broker uses the folder.
        NotFoundError: the folder has no such super user.
        TidemillError: the folder can't be opened.
    """
    from tidemill.engine.security.assembly import super_users_of

    given = read_admins(settings)

    async def revoke() -> None:
        async with _engine(settings) as engine:
            admins = engine.user_admin.admins
            if user not in admins:
                hint = "Those of security.super_users and security.admin_file are named only there."
                raise NotFoundError(f"{user} is not a super user of {settings.data_dir}", hint=hint)
            rest = super_users_of(settings, [*admins.keys() - {user}, *given])
            known = any(has_password for name, has_password in admins.items() if name != user)
            if may_revoke(rest, known or bool(given or settings.security.super_users)):
                await engine.user_admin.set_admin(user, is_admin=False)

    asyncio.run(revoke())


@asynccontextmanager
async def _engine(settings: Settings) -> AsyncIterator[Engine]:
    from tidemill.engine.engine import Engine

    engine = Engine(settings)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def check_exists(settings: Settings) -> None:
    """Check that the data folder exists, so that a misspelt one is not created.

    Raises:
        TidemillError: it does not exist.
    """
    if not settings.data_dir.is_dir():
        raise TidemillError(
            f"there is no data folder {settings.data_dir}",
            hint="Create it by starting the broker once, or with mkdir.",
        )
