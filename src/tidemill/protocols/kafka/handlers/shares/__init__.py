"""Records that members of share groups read and acknowledge (KIP-932).

The import of a module registers its handlers.
"""

from tidemill.protocols.kafka.handlers.shares import acknowledge, fetch, offsets

__all__ = ["acknowledge", "fetch", "offsets"]
