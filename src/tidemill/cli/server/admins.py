"""Reads the super users of a new broker from a file and from the environment. Must not print."""

from __future__ import annotations

import os

from tidemill.errors import SettingsError
from tidemill.protocols.logins.users_file import check_mode, read_users
from tidemill.settings import Settings

ADMIN_VARIABLE = "TIDEMILL_ADMIN"


def read_admins(settings: Settings) -> dict[str, str]:
    """Return the passwords of super users by name.

    The variable is removed from the environment, so that no worker process gets it.

    Raises:
        SettingsError: the file or the variable can't be used.
    """
    file = settings.security.admin_file
    check_mode(file, "security.admin_file")
    admins = read_users(file, "security.admin_file")
    given = os.environ.pop(ADMIN_VARIABLE, None)
    if given is not None:
        name, colon, password = given.partition(":")
        if not name or not colon or not password:
            raise SettingsError(
                f"{ADMIN_VARIABLE} is invalid: expected name:password",
                hint="Its value is not shown, because it can have a password.",
            )
        admins[name] = password
    return admins
