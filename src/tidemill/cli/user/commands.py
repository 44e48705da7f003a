"""``tidemill user``: creates, lists and deletes users, and changes passwords."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli import output
from tidemill.cli.acl.presets import (
    GroupNames,
    NameOfPurpose,
    Purpose,
    Read,
    Write,
    rules_for,
)
from tidemill.cli.acl.text import rule_text
from tidemill.cli.broker_requests import requests_to
from tidemill.cli.client import Cluster
from tidemill.cli.options import LOCAL, Brokers, Config, DataDir, DryRun, Json, Yes, command_group
from tidemill.state.security.scram import DEFAULT_ITERATIONS, LEAST_ITERATIONS, MOST_ITERATIONS
from tidemill.state.security.types import ScramMechanism

app = command_group("Create, list and delete users that log in with a password.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="File whose first line is the password; - is the standard input. "
        "Without it, the command asks on the terminal.",
        show_default=False,
    ),
]
Mechanisms = Annotated[
    list[ScramMechanism] | None,
    typer.Option("--mechanism", help="Only this mechanism; default: both.", show_default=False),
]
Iterations = Annotated[
    int,
    typer.Option(
        "--iterations",
        metavar="N",
        min=LEAST_ITERATIONS,
        max=MOST_ITERATIONS,
        help="Rounds of the hash.",
    ),
]


Admin = Annotated[
    bool, typer.Option("--admin", help="Make the user a super user; only with --data-dir.")
]


@app.command()
def create(
    name: Name,
    password_file: PasswordFile = None,
    mechanisms: Mechanisms = None,
    iterations: Iterations = DEFAULT_ITERATIONS,
    purpose: Purpose = None,
    of: NameOfPurpose = None,
    read: Read = None,
    write: Write = None,
    groups: GroupNames = None,
    data_dir: DataDir = None,
    admin: Admin = False,
    config: Config = None,
    brokers: Brokers = LOCAL,
) -> None:
    """Create a user, or change its password.

    With --data-dir it writes into the folder of a broker that does not run: so the first super user
    comes to be. --for creates the rules, too, that a pipeline, source, gateway, bridge, webhook or
    alerts needs; --read, --write and --group add those for topics and groups.
    """
    rules = rules_for(name, purpose, of, read or [], write or [], groups or [])
    if data_dir is None and admin:
        raise output.UsageError(
            "--admin needs --data-dir",
            hint="Stop the broker, create the super user on its machine, and start it again.",
        )
    if data_dir is not None and rules:
        raise output.UsageError("--data-dir creates no rules", hint="Use 'tidemill acl create'.")
    password = _password(name, password_file)
    kinds = mechanisms or list(ScramMechanism)
    if data_dir is not None:
        from tidemill.cli.server.config import load_settings
        from tidemill.cli.user.offline import check_exists, create_user

        settings = load_settings(config, data_dir).settings
        check_exists(settings)
        create_user(settings, name, password, kinds, iterations, is_admin=admin)
    else:
        from tidemill.cli.acl.requests import create_rules
        from tidemill.cli.user.requests import set_password

        with requests_to(Cluster.at(brokers)) as requests:
            set_password(requests, name, password, kinds, iterations)
            if rules:
                create_rules(requests, rules)
    print(f"created user {name}{' as a super user' if admin else ''}")
    for rule in rules:
        print(f"created: {rule_text(rule)}")


@app.command("set-password")
def set_password_(
    name: Name,
    password_file: PasswordFile = None,
    iterations: Iterations = DEFAULT_ITERATIONS,
    brokers: Brokers = LOCAL,
) -> None:
    """Change the password of a user that exists, for all its mechanisms."""
    from tidemill.cli.user.requests import list_users, set_password

    with requests_to(Cluster.at(brokers)) as requests:
        found = list_users(requests).get(name)
        if found is None:
            raise output.NotFoundError(
                f"there is no user {name!r}", hint=f"Create it: tidemill user create {name}"
            )
        mechanisms = [mechanism for mechanism, _ in found]
        set_password(requests, name, _password(name, password_file), mechanisms, iterations)
    print(f"changed the password of {name}")


@app.command("list")
def list_(as_json: Json = False, brokers: Brokers = LOCAL) -> None:
    """List users with their mechanisms."""
    from tidemill.cli.user.requests import list_users

    with requests_to(Cluster.at(brokers)) as requests:
        found = list_users(requests)
    if as_json:
        output.emit_json(
            [
                {
                    "user": user,
                    "credentials": [
                        {"mechanism": mechanism.value, "iterations": iterations}
                        for mechanism, iterations in known
                    ],
                }
                for user, known in found.items()
            ]
        )
        return
    output.emit_table(
        ["USER", "MECHANISMS"],
        [
            (user, ", ".join(mechanism.value for mechanism, _ in known))
            for user, known in found.items()
        ],
    )


@app.command("revoke-admin")
def revoke_admin(
    name: Name,
    data_dir: DataDir = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    config: Config = None,
) -> None:
    """Make a super user an ordinary user again: the opposite of create --admin.

    It writes into the folder of a broker that does not run. The user keeps its password and its
    rules.
    """
    from tidemill.cli.server.config import load_settings
    from tidemill.cli.user import offline

    settings = load_settings(config, data_dir).settings
    offline.check_exists(settings)
    is_named = False

    def may_revoke(rest: frozenset[str], one_can_log_in: bool) -> bool:
        nonlocal is_named
        is_named = f"User:{name}" in rest
        follows = ""
        if not rest and not settings.security.allow_everyone_if_no_acl_found:
            follows = "It is the last one: everyone who can connect may do everything then."
        elif not one_can_log_in:
            follows = "No other one can log in: no user can change users and rules then."
        if follows and (yes or dry_run):
            output.warn(follows)
        if not dry_run:
            output.confirm(f"Make super user {name} an ordinary user? {follows}".rstrip(), yes=yes)
        return not dry_run

    offline.revoke_admin(settings, name, may_revoke)
    print(f"{'would make' if dry_run else 'made'} {name} an ordinary user")
    if is_named:
        output.warn(f"{name} stays a super user: the settings name it")


@app.command()
def delete(name: Name, yes: Yes = False, dry_run: DryRun = False, brokers: Brokers = LOCAL) -> None:
    """Delete a user, and end its connections. Rules that name it stay: see acl delete --user.

    So do its permissions; and a super user is one again if a user of this name is created, unless
    revoke-admin has changed that.
    """
    from tidemill.cli.user.requests import delete_user, is_last_super_user, list_users

    with requests_to(Cluster.at(brokers)) as requests:
        follows = ""
        if is_last_super_user(requests, name):
            follows = "No other super user has a password: no user can change users and rules then."
            if yes or dry_run:
                output.warn(follows)
        if dry_run:
            if name not in list_users(requests):
                raise output.NotFoundError(f"there is no user {name!r}")
        else:
            output.confirm(f"Delete user {name}? {follows}".rstrip(), yes=yes)
            delete_user(requests, name)
    print(f"{'would delete' if dry_run else 'deleted'} user {name}")


def _password(name: str, file: Path | None) -> str:
    """Return the password from a file, the standard input or a question."""
    if file is None:
        if not output.can_ask():
            raise output.UsageError(
                "a password is needed, but this is not a terminal",
                hint="Use --password-file FILE, or --password-file - for the standard input.",
            )
        password = getpass.getpass(f"Password for {name}: ", sys.stderr)
        if password != getpass.getpass("Again: ", sys.stderr):
            raise output.UsageError("the passwords differ: nothing was changed")
    else:
        try:
            text = sys.stdin.readline() if str(file) == "-" else file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise output.UsageError(f"--password-file {file}: {error}") from error
        password = text.split("\n", 1)[0].rstrip("\r")
    if not password:
        raise output.UsageError("the password is empty")
    return password
