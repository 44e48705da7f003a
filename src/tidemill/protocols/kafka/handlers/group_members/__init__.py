"""Members of classic groups, consumer groups and share groups, and the offsets that they commit.

The import of a module registers its handlers.
"""

from tidemill.protocols.kafka.handlers.group_members import classic, modern, offsets

__all__ = ["classic", "modern", "offsets"]
