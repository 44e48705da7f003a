"""The right to be forgotten: personal content is sealed with a key per subject, which is deleted.

Events can't be removed from a log. So the personal parts of an event are encrypted with a key of
the person they are about, and keys are stored apart. Without its key, the content is gone
everywhere: in the log, in indexes, in copies. Must not know: the engine, commands.
"""

from tidemill.eventstore.forgetting.cipher import Masters
from tidemill.eventstore.forgetting.keyring import Key, Keyring
from tidemill.eventstore.forgetting.sealed import (
    Forgotten,
    Personal,
    SealedStore,
    personal_fields,
)

__all__ = ["Forgotten", "Key", "Keyring", "Masters", "Personal", "SealedStore", "personal_fields"]
