"""Share groups (KIP-932). The import of a module registers its handlers."""

from tidemill.protocols.kafka.handlers.shares import acknowledge, fetch, groups, offsets

__all__ = ["acknowledge", "fetch", "groups", "offsets"]
