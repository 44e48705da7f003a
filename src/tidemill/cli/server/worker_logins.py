"""Logins of workers: who gateway, sources, bridges, webhooks and pipelines are to the broker.

Without settings, each worker gets a user of its own with a random password, which nothing but this
process and the worker knows. A password is passed in a file that only the broker's user can read:
not in arguments, which every user of the machine can see. Must not know how workers run.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator

from tidemill.errors import SettingsError
from tidemill.settings import Section, Settings

_FOLDER = "workers"
_VARIABLE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_LONGEST_SECRET = 65_536


class WorkerLogin(Section):
    """The login of a worker at the broker, `[workers.default]` for those without a table."""

    key = "workers"
    is_repeated = True
    is_named = True

    name: str = Field(
        description="The worker, as `tidemill worker list` shows it: gateway, sources, webhooks, "
        'bridges, views, alerts, or "pipeline/NAME" in quotes.'
    )
    username: str | None = Field(None, min_length=1, description="The user.")
    password: SecretStr | None = Field(
        None, description="The password, or ${env:NAME} for a variable of the environment."
    )
    password_file: Path | None = Field(None, description="File with the password, instead.")
    mechanism: str = Field(
        "", description="The mechanism of SASL; default: the best one of `kafka.mechanisms`."
    )
    tls_cert: Path | None = Field(
        None, description="File with a PEM certificate that the worker shows."
    )
    tls_key: Path | None = Field(None, description="File with the PEM private key of tls_cert.")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Check that a user has one password."""
        given = [each for each in (self.password, self.password_file) if each is not None]
        if bool(self.username) != bool(given) or len(given) > 1:
            raise ValueError("a login needs username, and one of password and password_file")
        return self

    def secret(self) -> str:
        """Return the password.

        Raises:
            SettingsError: its variable is not set, or its file can't be read.
        """
        if self.password is not None:
            return _VARIABLE.sub(self._variable, self.password.get_secret_value())
        assert self.password_file is not None
        try:
            with self.password_file.open("r", encoding="utf-8") as file:
                return file.read(_LONGEST_SECRET).rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"can't read workers.{self.name}.password_file {self.password_file}: {error}"
            ) from error

    def _variable(self, found: re.Match[str]) -> str:
        value = os.environ.get(found[1])
        if not value:
            raise SettingsError(
                f"workers.{self.name}.password names the variable {found[1]}, which is not set",
                hint=f"Set {found[1]} in the environment of the broker.",
            )
        return value


class WorkerLogins:
    """The logins of the workers of one broker.

    Args:
        client: the properties of a client on this machine, without a login.

    Attributes:
        users: passwords of the users that exist for the workers only, by name.
    """

    def __init__(self, settings: Settings, client: Mapping[str, str]) -> None:
        self._folder = settings.data_dir / _FOLDER
        self._given = {each.name: each for each in settings.entries(WorkerLogin)}
        self._client = client
        self.users: dict[str, str] = {}

    @property
    def is_needed(self) -> bool:
        """Whether clients have to log in."""
        return self._client.get("security.protocol", "").startswith("SASL")

    def add(self, worker: str) -> None:
        """Make a user for a worker that has none in the settings.

        Raises:
            SettingsError: the listener has no mechanism with a password.
        """
        if self._login(worker) is not None or not self.is_needed:
            return
        if "sasl.mechanism" not in self._client:
            raise SettingsError(
                f"the worker {worker} can't log in: kafka.mechanisms has none with a password",
                hint="Add SCRAM-SHA-256 to kafka.mechanisms, for workers.",
            )
        self.users[f"worker/{worker}"] = secrets.token_urlsafe(32)

    def _login(self, worker: str) -> WorkerLogin | None:
        return self._given.get(worker) or self._given.get("default")

    def environment(self, worker: str) -> dict[str, str]:
        """Write the file with the login of a worker; return the variable that names it.

        Raises:
            SettingsError: a password can't be read.
            OSError: the file can't be written.
        """
        properties = self._properties(worker)
        if not properties:
            return {}
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / f"{worker.replace('/', '-')}.properties"
        path.unlink(missing_ok=True)
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        return {"TIDEMILL_CLIENT_CONFIG": str(path.absolute())}

    def _properties(self, worker: str) -> dict[str, str]:
        login = self._login(worker)
        found: dict[str, str] = {}
        user = f"worker/{worker}"
        if login is not None and login.tls_cert is not None:
            found["ssl.certificate.location"] = str(login.tls_cert)
            found["ssl.key.location"] = str(login.tls_key or login.tls_cert)
        if not self.is_needed:
            return found
        if login is not None and login.username is not None:
            found |= {"sasl.username": login.username, "sasl.password": login.secret()}
        elif user in self.users:
            found |= {"sasl.username": user, "sasl.password": self.users[user]}
        if login is not None and login.mechanism:
            found["sasl.mechanism"] = login.mechanism.upper()
        return found
