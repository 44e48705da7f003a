"""``tidemill events forget`` and ``tidemill events keys``: personal content and its keys."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import output
from tidemill.cli.events.commands import StoreName, app, kafka_of, opened
from tidemill.cli.options import LOCAL, Brokers, Json, Yes, command_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidemill.eventstore.forgetting.sealed import SealedStore

keys_app = command_group("Make and change the file with master keys, which wrap subjects' keys.")
app.add_typer(keys_app, name="keys")

KeyFile = Annotated[Path, typer.Argument(metavar="FILE", help="The key file.")]
KeyFileOption = Annotated[
    Path, typer.Option("--key-file", metavar="FILE", help="The file with the master keys.")
]


@contextmanager
def _sealed(store: str, key_file: Path, brokers: Brokers) -> Iterator[SealedStore]:
    from tidemill.eventstore.forgetting.cipher import Masters
    from tidemill.eventstore.forgetting.keyring import Keyring
    from tidemill.eventstore.forgetting.sealed import SealedStore

    masters = Masters.read(key_file)
    with opened(store, brokers) as found:
        yield SealedStore(found, Keyring(kafka_of(brokers), store, masters), {})


@app.command(short_help="Forget a person for ever.")
def forget(
    store: StoreName,
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="The id of the person.")],
    key_file: KeyFileOption,
    yes: Yes = False,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Delete the keys of a person: sealed content can't be read any more, also in copies.

    Your program clears its snapshots and projections: see on_forget in the guide.
    """
    with _sealed(store, key_file, brokers) as sealed:
        count = len(sealed.keyring.ids_of(subject))
        if not count:
            raise output.NotFoundError(
                f"store {store} has no keys of {subject}",
                hint="It was forgotten, or has no sealed content.",
            )
        output.confirm(f"Forget {subject} for ever?", yes=yes)
        report = sealed.forget(subject)
    if as_json:
        output.emit_json(
            {
                "subject": subject,
                "keys": report.keys,
                "remains": report.remains,
                "out_of_reach": list(report.out_of_reach),
            }
        )
        return
    print(f"forgot {subject} ({output.plural(len(report.keys), 'key')} deleted)")
    if report.remains:
        print(f"until {store}.keys is compacted, its log has the bytes of the wrapped keys")
    for each in report.out_of_reach:
        print(f"out of reach: {each}")


@keys_app.command("init", short_help="Make a key file.")
def init(path: KeyFile) -> None:
    """Make a file with a new master key. Keep a copy: without it, sealed content is lost."""
    from tidemill.eventstore.forgetting.cipher import Masters

    Masters.create(path)
    print(f"created {path}")


@keys_app.command("rotate", short_help="Add a master key, and wrap all keys with it.")
def rotate(store: StoreName, path: KeyFile, brokers: Brokers = LOCAL) -> None:
    """Add a master key to the file, and wrap all keys of the store with it.

    The old master key is needed until the topic of keys is compacted, and by other stores.
    """
    from tidemill.eventstore.forgetting.cipher import Masters

    name = Masters.add(path)
    with _sealed(store, path, brokers) as sealed:
        print(f"master key {name} wraps {output.plural(sealed.rotate(), 'key')} of {store}")
