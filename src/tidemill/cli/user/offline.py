"""Creates users in a data folder that no broker uses: the first super user. Must not print."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidemill.errors import TidemillError
from tidemill.settings import Settings
from tidemill.state.security.types import ScramMechanism


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
    from tidemill.engine.engine import Engine

    async def create() -> None:
        engine = Engine(settings)
        await engine.start()
        try:
            await engine.user_admin.set_password(user, password, mechanisms, iterations)
            if is_admin:
                await engine.user_admin.set_admin(user, is_admin=True)
        finally:
            await engine.stop()

    asyncio.run(create())


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
