"""The engine: what all protocols share, and the only asyncio below them.

``engine.Engine`` assembles and runs the parts. ``door.Door`` is what a protocol holds: one narrow
class per part (``records``, ``topics``, ``configs``, ``groups``, ``transactions``, ``storage``),
whose methods check access before they do anything. ``api`` has the data types, ``errors`` the
errors, ``authorize`` the access control.

Below the parts: ``state_log`` writes a state machine's records, ``flusher`` runs group commit,
``journaling`` writes the rounds of the journal, ``waiters`` holds the long polls, ``housekeeping``
works in the background. The engine imports no protocol and knows none.
"""
